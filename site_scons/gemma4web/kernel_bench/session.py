"""One page load: starts server and Chromium, asks the page for one thing after another, and notices whatever goes wrong."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from gemma4web.chromium import RunningBrowser, launch_flags, launched, log_tail, sigterm_as_exit
from gemma4web.errors import BrowserError
from gemma4web.kernel_bench.server import BenchServer
from gemma4web.launching import RunOptions

SILENCE_S: Final = 60.0
"""The page says every second that it lives, unless its thread is busy; that is never long."""
_POLL_S: Final = 0.2


class RowError(BrowserError):
    """The page could not do one job; it can still do others."""


class BenchPage:
    """The page as its jobs see it."""

    def __init__(self, server: BenchServer, browser: RunningBrowser, deadline_s: float) -> None:
        self._server, self._browser, self._deadline_s = server, browser, deadline_s
        self._numbers = itertools.count(1)

    def ask(self, job: Mapping[str, Any], payloads: Mapping[str, memoryview] | None = None) -> dict[str, Any]:
        """The page's answer to one job. Raises RowError with the page's words, BrowserError when the page is lost."""
        number = next(self._numbers)
        self._server.outputs.clear()
        if payloads is not None:
            self._server.payloads = payloads
        self._server.heard_s = time.monotonic()
        self._server.jobs.put({**job, "id": number})
        deadline = time.monotonic() + self._deadline_s
        while True:
            with contextlib.suppress(queue.Empty):
                found, answer = self._server.answers.get(timeout=_POLL_S)
                if found == number:
                    self._check()
                    if "error" in answer:
                        raise RowError(str(answer["error"]))
                    return answer
            self._check()
            if time.monotonic() > deadline:
                raise BrowserError(f"no answer within {self._deadline_s:.0f} s; the page was at: {self._server.doing}",
                                   advice="give it more time with --deadline SECONDS, or choose fewer --rows")

    def outputs(self, contender: str) -> dict[str, bytes]:
        """What the contender of the last job wrote, by result name."""
        return {name: data for (owner, name), data in self._server.outputs.items() if owner == contender}

    def _check(self) -> None:
        if self._server.faults:
            raise BrowserError("\n".join(dict.fromkeys(self._server.faults)))
        if not self._browser.alive():
            raise BrowserError(f"Chromium ended during: {self._server.doing}\n{log_tail(self._browser.log)}",
                               advice="if nobody ended it, look at its own output above")
        silent_s = time.monotonic() - self._server.heard_s
        if silent_s > SILENCE_S:
            raise BrowserError(f"the page says nothing for {silent_s:.0f} s; its last words: {self._server.doing}\n"
                               f"{log_tail(self._browser.log)}", advice="the page's process has probably crashed")


@contextlib.contextmanager
def bench_page(options: RunOptions, ort: Path | None) -> Iterator[BenchPage]:
    """A page that waits for jobs, for the length of a ``with`` block. Raises BrowserError."""
    flags = launch_flags(gpu=options.gpu, extra=options.browser_flags)
    server = BenchServer(ort)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="bench", daemon=True)
    thread.start()
    try:
        with sigterm_as_exit(), launched(options.chromium, flags, url=server.url) as browser:
            yield BenchPage(server, browser, options.deadline_s)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
