"""A page in headless Chromium that runs single compute shaders on given bytes: the ``gpu_page`` fixture.

The page is served from 127.0.0.1: WebGPU needs a secure context, and bytes travel much faster over HTTP than over the
DevTools connection.
"""

from __future__ import annotations

import http.server
import itertools
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from playwright.sync_api import Error as PlaywrightError
from tests.support.chrome import Chrome

from gemma4web.chromium import Chromium
from gemma4web.errors import BrowserError
from gemma4web.toolchain import load_browser

_OPEN_MS: Final = 60_000
_RUN_MS: Final = 170_000
_PAGE: Final = b"<!doctype html><meta charset=utf-8><title>kernel tests</title><script src=gpu_page.js></script>"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One binding: ``kind`` is read, read_write or uniform; ``data`` its bytes, a multiple of 4."""

    kind: str
    data: bytes


class GpuDevice(Protocol):
    """What runs single compute shaders. Whatever a device, its driver or its process objects to is a BrowserError."""

    adapter: dict[str, Any]

    def run(self, wgsl: str, bindings: Sequence[Bound], grid: tuple[int, int, int]) -> list[bytes]:
        """Contents of the read_write bindings, in order, after one dispatch."""

    def compile(self, wgsl: str, kinds: Sequence[str]) -> None:
        """Compiles a shader for bindings of these kinds, with default limits."""


class _Server(http.server.ThreadingHTTPServer):
    """Serves the page, the bytes of the job in hand, and takes its result."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.number = 0
        self.job = b""
        self.result: bytes | None = None


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        known = {"/": ("text/html", _PAGE),
                 "/gpu_page.js": ("text/javascript", Path(__file__).with_suffix(".js").read_bytes()),
                 f"/job/{self.server.number}": ("application/octet-stream", self.server.job)}
        found = known.get(self.path)
        kind, body = found or ("text/plain", b"")
        self._answer(200 if found else 404, kind, body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        wanted = self.path == f"/job/{self.server.number}"
        if wanted:
            self.server.result = body
        self._answer(200 if wanted else 404, "text/plain", b"")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The test's output is no place for an access log."""


class GpuPage:
    """One page with one device of default limits, or with ``large`` buffers. ``adapter`` describes it."""

    def __init__(self, chrome: Chrome, *, large: bool = False) -> None:
        self._chrome, self._server = chrome, _Server()
        self._faults: list[str] = []
        threading.Thread(target=self._server.serve_forever, name="gpu-page-server", daemon=True).start()
        try:
            self._context = chrome.context()
            self._page = self._context.new_page()
            self._page.on("pageerror", lambda error: self._faults.append(str(error)))
            self._page.on("crash", lambda _: self._faults.append("the page crashed"))
            self._page.goto(f"http://127.0.0.1:{self._server.server_address[1]}/")
            self.adapter: dict[str, Any] = self._evaluate("([large, ms]) => gpuPage.open(large, ms)", [large, _OPEN_MS])
        except BaseException:
            self._server.shutdown()
            self._server.server_close()
            raise

    def run(self, wgsl: str, bindings: Sequence[Bound], grid: tuple[int, int, int]) -> list[bytes]:
        """Contents of the read_write bindings, in order, after one dispatch. Raises BrowserError with the GPU's words."""
        server = self._server
        server.number += 1
        server.job, server.result = b"".join(item.data for item in bindings), None
        request = {"id": server.number, "wgsl": wgsl, "grid": list(grid),
                   "bindings": [{"kind": item.kind, "size": len(item.data)} for item in bindings]}
        self._evaluate("([job, ms]) => gpuPage.run(job, ms)", [request, _RUN_MS])
        sizes = [len(item.data) for item in bindings if item.kind == "read_write"]
        result: bytes | None = server.result
        if result is None or len(result) != sum(sizes):
            raise BrowserError(f"the page sent {0 if result is None else len(result)} bytes, wanted {sum(sizes)}")
        ends = itertools.accumulate(sizes)
        return [result[end - size:end] for end, size in zip(ends, sizes, strict=True)]

    def compile(self, wgsl: str, kinds: Sequence[str]) -> None:
        """Raises BrowserError when the browser refuses the shader, with bindings of these kinds and default limits."""
        self._evaluate("([text, kinds, ms]) => gpuPage.compile(text, kinds, ms)", [wgsl, list(kinds), _RUN_MS])

    def close(self) -> None:
        self._context.close()
        self._server.shutdown()
        self._server.server_close()

    def _evaluate(self, script: str, argument: Any) -> Any:
        # The page keeps the deadline; the one of the connection is longer and for a browser that no longer answers.
        try:
            found = self._page.evaluate(script, argument)
        except (PlaywrightError, TimeoutError) as error:
            raise BrowserError("; ".join([str(error) or "the browser does not answer", *self._faults])) from None
        if self._faults:
            raise BrowserError("error on the page: " + "; ".join(self._faults))
        return found


def set_up_chromium() -> Chromium:
    """BROWSER= when it is given, else the one that set-up recorded. Skips the test when there is neither."""
    if named := os.environ.get("BROWSER"):
        return Chromium(executable=Path(named))
    recorded = Path(__file__).resolve().parents[2] / "build/browser.json"
    if not recorded.is_file():
        pytest.skip("no Chromium is set up: run `scons toolchain` or set BROWSER=")
    found = load_browser(recorded)
    return Chromium(executable=found.executable, env=found.env)
