"""One headless Chromium for all browser tests of a run, driven from any thread.

Playwright's synchronous interface belongs to the thread that started it and cannot be started twice in one thread. So it
lives in a thread of its own here; `Remote` stands for one of its objects and does every call over there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from playwright.sync_api import Browser, sync_playwright

from gemma4web.chromium import Chromium, launch_flags, launched

CALL_LIMIT_S: Final = 300.0
PAGE_LIMIT_MS: Final = 20_000

_PLAIN = (str, bytes, int, float, bool, type(None), list, dict, tuple)


class Remote:
    """A Playwright object of the other thread. Calls go there; what they return comes back as plain data or a Remote."""

    def __init__(self, chrome: Chrome, target: Any) -> None:
        self._chrome, self.target = chrome, target

    def __getattr__(self, name: str) -> Any:
        found = self._chrome.call(lambda: getattr(self.target, name))
        if callable(found):
            return lambda *words, **named: self._wrap(self._chrome.call(lambda: found(*words, **named)))
        return self._wrap(found)

    def _wrap(self, value: Any) -> Any:
        return value if isinstance(value, _PLAIN) else Remote(self._chrome, value)


class Chrome:
    """The browser and its thread. ``context()`` gives a fresh, empty profile each time."""

    def __init__(self, chromium: Chromium, *, gpu: bool = False) -> None:
        self._jobs: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._browser: Browser | None = None
        started: Future[None] = Future()
        self._thread = threading.Thread(target=self._work, args=(chromium, gpu, started), name="chrome", daemon=True)
        self._thread.start()
        started.result(timeout=CALL_LIMIT_S)

    def call(self, job: Callable[[], Any]) -> Any:
        if threading.current_thread() is self._thread:
            return job()
        future: Future[Any] = Future()
        self._jobs.put((job, future))
        return future.result(timeout=CALL_LIMIT_S)

    def context(self, **options: Any) -> Remote:
        browser = self._browser
        assert browser is not None
        context = Remote(self, self.call(lambda: browser.new_context(**options)))
        context.set_default_timeout(PAGE_LIMIT_MS)
        return context

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(CALL_LIMIT_S)

    def _work(self, chromium: Chromium, gpu: bool, started: Future[None]) -> None:
        try:
            with launched(chromium, launch_flags(gpu=gpu)) as running, sync_playwright() as driver:
                self._browser = driver.chromium.connect_over_cdp(running.endpoint, timeout=CALL_LIMIT_S * 1000)
                started.set_result(None)
                self._serve()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            if not started.done():
                started.set_exception(error)

    def _serve(self) -> None:
        while (item := self._jobs.get()) is not None:
            job, future = item
            try:
                future.set_result(job())
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits
                future.set_exception(error)
