"""The page's only connection: it asks for jobs and bytes over HTTP and posts what it found. No DevTools are involved."""

from __future__ import annotations

import json
import queue
import time
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from gemma4web.serve import BundleHandler, BundleServer, locate

PAGE: Final = Path(__file__).with_name("page")
ORT_PREFIX: Final = "/ort/"
_JOB_WAIT_S: Final = 10.0


class BenchHandler(BundleHandler):
    """GET /job, /data/NAME, /ort/FILE and the page's files; POST /result/ID, /output/CONTENDER/NAME, /fault, /alive."""

    server: BenchServer

    def do_GET(self) -> None:
        path = self.path.split("?", 1)[0]
        if path == "/job":
            self._send_job()
        elif path.startswith("/data/"):
            self._send_bytes(self.server.payloads.get(path.removeprefix("/data/")), "application/octet-stream")
        elif path.startswith(ORT_PREFIX) and self.server.ort is not None:
            found = locate(self.server.ort, path, ORT_PREFIX)
            if found is None:
                self._refuse(HTTPStatus.NOT_FOUND, body=True)
            else:
                with found.open("rb") as stream:
                    self._send_file(found, stream, body=True)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        known = self.server.take(self.path, body)
        self._send_bytes(memoryview(b"") if known else None, "text/plain")

    def _send_job(self) -> None:
        """Waits a while for the next job; an empty answer means: ask again."""
        try:
            job = self.server.jobs.get(timeout=_JOB_WAIT_S)
        except queue.Empty:
            job = {"kind": "wait"}
        self._send_bytes(memoryview(json.dumps(job).encode()), "application/json")

    def _send_bytes(self, data: memoryview | None, kind: str) -> None:
        if data is None:
            self._refuse(HTTPStatus.NOT_FOUND, body=True)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class BenchServer(BundleServer):
    """Holds the job in hand. ``ort``: the folder of the onnxruntime-web package, or None."""

    def __init__(self, ort: Path | None) -> None:
        super().__init__(PAGE, handler=BenchHandler)
        self.ort = ort
        self.jobs: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.payloads: Mapping[str, memoryview] = {}
        self.answers: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        self.outputs: dict[tuple[str, str], bytes] = {}
        self.faults: list[str] = []
        self.doing = "nothing yet"
        self.heard_s = time.monotonic()

    def take(self, path: str, body: bytes) -> bool:
        """Keeps what the page posted; False for a path that means nothing."""
        self.heard_s = time.monotonic()
        match [urllib.parse.unquote(part) for part in path.strip("/").split("/")]:
            case ["alive"]:
                self.doing = body.decode(errors="replace") or self.doing
            case ["fault"]:
                self.faults.append(body.decode(errors="replace"))
            case ["result", number] if number.isdigit():
                self.answers.put((int(number), json.loads(body)))
            case ["output", contender, name]:
                self.outputs[contender, name] = body
            case _:
                return False
        return True
