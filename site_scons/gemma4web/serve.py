"""A static file server on the loopback interface: the bundle as any plain host would serve it, and nothing else.

It sends no special headers that a static host could not send, answers HEAD as GET without a body, understands one byte
range, and never leaves its folder (P49). Every answer carries the server's nonce, by which a runner knows that it talks
to the server that it started (P59).
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import mimetypes
import os
import re
import secrets
import socketserver
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO, Final

from gemma4web.errors import UsageError

HOST: Final = "127.0.0.1"
NONCE_HEADER: Final = "X-Gemma4web-Nonce"
_BLOCK_BYTES: Final = 1 << 18
_IDLE_LIMIT_S: Final = 60.0

# The system's own table differs from machine to machine; module scripts and streaming compilation need exact types.
MIME_TYPES: Final[dict[str, str]] = {
    ".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8", ".json": "application/json", ".wasm": "application/wasm",
    ".txt": "text/plain; charset=utf-8", ".jinja": "text/plain; charset=utf-8", ".svg": "image/svg+xml",
    ".png": "image/png", ".safetensors": "application/octet-stream", ".g4p": "application/octet-stream",
}
_RANGE: Final = re.compile(r"bytes=(\d*)-(\d*)")


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteRange:
    """``begin`` and ``end`` (exclusive) inside a file."""

    begin: int
    end: int


class RangeNotSatisfiableError(ValueError):
    """The asked range lies outside the file: status 416."""


def locate(root: Path, url_path: str, prefix: str = "/") -> Path | None:
    """The regular file below ``root`` that a request path names, or None.

    The path is decoded once. A segment that is empty, `.`, `..`, or holds a separator of any system, and any file whose
    real place lies outside ``root`` (a symbolic link), names nothing.
    """
    if not url_path.startswith(prefix):
        return None
    raw = url_path[len(prefix):] or "index.html"
    segments = [urllib.parse.unquote(segment, errors="strict") for segment in raw.split("/")]
    if segments[-1] == "":
        segments[-1] = "index.html"
    if any(segment in ("", ".", "..") or set(segment) & set("/\\\0") for segment in segments):
        return None
    real_root = root.resolve()
    try:
        found = real_root.joinpath(*segments).resolve(strict=True)
    except (OSError, RuntimeError):
        return None
    return found if found.is_relative_to(real_root) and found.is_file() else None


def parse_range(header: str | None, size: int) -> ByteRange | None:
    """The range that a ``Range`` header asks of a file of ``size`` bytes; None asks for the whole file.

    Several ranges and other units are ignored, as RFC 9110 allows. Raises RangeNotSatisfiableError.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        length = min(int(match[2]), size)
        if length == 0:
            raise RangeNotSatisfiableError(header)
        return ByteRange(begin=size - length, end=size)
    begin = int(match[1])
    if match[2] and int(match[2]) < begin:
        return None
    if begin >= size:
        raise RangeNotSatisfiableError(header)
    return ByteRange(begin=begin, end=min(int(match[2]) + 1 if match[2] else size, size))


class BundleHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of one folder."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_LIMIT_S
    server: BundleServer

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, *, body: bool) -> None:
        path = self.path.split("?", 1)[0].split("#", 1)[0]
        try:
            found = locate(self.server.root, path, self.server.prefix)
        except UnicodeDecodeError:
            found = None
        if found is None:
            self._refuse(HTTPStatus.NOT_FOUND, body=body)
            return
        try:
            with found.open("rb") as stream:
                self._send_file(found, stream, body=body)
        except OSError as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            self._refuse(HTTPStatus.NOT_FOUND, body=body)

    def _send_file(self, path: Path, stream: BinaryIO, *, body: bool) -> None:
        size = os.fstat(stream.fileno()).st_size
        try:
            part = parse_range(self.headers.get("Range"), size)
        except RangeNotSatisfiableError:
            self._refuse(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, body=body, headers={"Content-Range": f"bytes */{size}"})
            return
        self.send_response(HTTPStatus.OK if part is None else HTTPStatus.PARTIAL_CONTENT)
        if part is not None:
            self.send_header("Content-Range", f"bytes {part.begin}-{part.end - 1}/{size}")
        whole = part or ByteRange(begin=0, end=size)
        self.send_header("Content-Type", content_type(path))
        self.send_header("Content-Length", str(whole.end - whole.begin))
        self.send_header("Accept-Ranges", "bytes")
        self.end_headers()
        if body:
            stream.seek(whole.begin)
            self.send_body(path, stream, whole.end - whole.begin)

    def send_body(self, path: Path, stream: BinaryIO, count: int) -> None:
        """Copies ``count`` bytes of an opened file to the client."""
        while count > 0 and (block := stream.read(min(_BLOCK_BYTES, count))):
            self.wfile.write(block)
            count -= len(block)

    def _refuse(self, status: HTTPStatus, *, body: bool, headers: dict[str, str] | None = None) -> None:
        text = f"{status.value} {status.phrase}\n".encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if body:
            self.wfile.write(text)

    def end_headers(self) -> None:
        # A development server whose files change under one name must not be cached (P47).
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(NONCE_HEADER, self.server.nonce)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        self.server.log(f"{self.command or '?'} {self.path if self.command else ''} {args[1] if len(args) > 1 else ''}")


class BundleServer(ThreadingHTTPServer):
    """Serves ``root`` under ``prefix``; ``nonce`` names this very server."""

    daemon_threads = True
    # A second server on the port of a living one must fail, not share it.
    allow_reuse_address = os.name == "posix"

    def __init__(self, root: Path, *, port: int = 0, prefix: str = "/", verbose: bool = False,
                 handler: type[BundleHandler] = BundleHandler) -> None:
        if not root.is_dir():
            raise UsageError(f"{root} is no folder", advice="stage a bundle first: `scons bundle`")
        if not 0 <= port <= 65535:
            raise UsageError(f"port {port} is not between 0 and 65535", advice="0 takes any free port")
        if not (prefix.startswith("/") and prefix.endswith("/")):
            raise UsageError(f"the prefix {prefix!r} does not start and end with a slash", advice="write it as /a/b/")
        self.root = root
        self.prefix = prefix
        self.nonce = secrets.token_hex(16)
        self.requests: list[str] = []
        self._verbose = verbose
        try:
            super().__init__((HOST, port), handler)
        except OSError as error:
            raise _bind_error(error, port) from None

    def server_bind(self) -> None:
        # HTTPServer's own looks up the host's name, which takes seconds where no name server answers.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}{self.prefix}"

    def log(self, line: str) -> None:
        self.requests.append(line)
        if self._verbose:
            print(line, flush=True)

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes a connection early is no fault of ours; everything else is printed."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _bind_error(error: OSError, port: int) -> UsageError:
    if error.errno == errno.EADDRINUSE:
        return UsageError(f"port {port} on {HOST} is in use by another program",
                          advice="name another port with --port N (`scons serve PORT=N`), or 0 for any free one")
    if error.errno == errno.EACCES:
        return UsageError(f"port {port} needs more rights than this user has", advice="use a port from 1024, or 0")
    return UsageError(f"port {port} on {HOST} cannot be opened: {error.strerror or error}",
                      advice="use a port from 1024 to 65535, or 0 for any free one")


def content_type(path: Path) -> str:
    return MIME_TYPES.get(path.suffix.lower()) or mimetypes.guess_type(path.name, strict=True)[0] or "application/octet-stream"


@contextlib.contextmanager
def serving(root: Path, *, port: int = 0, prefix: str = "/", handler: type[BundleHandler] = BundleHandler,
            ) -> Iterator[BundleServer]:
    """Serves ``root`` in a thread of its own for the length of a ``with`` block."""
    server = BundleServer(root, port=port, prefix=prefix, handler=handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="serve", daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def main(argv: Sequence[str] | None = None) -> int:
    """`scons serve`: the demo page on the loopback interface until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="gemma4web serve", description=main.__doc__)
    parser.add_argument("--bundle", type=Path, default=Path("build/bundle"), help="folder to serve (default: build/bundle)")
    parser.add_argument("--port", type=int, default=8420, help="0 takes any free port (default: 8420)")
    parser.add_argument("--prefix", default="/", help="serve under this path, to try a sub-path (default: /)")
    options = parser.parse_args(argv)
    if not (options.bundle / "manifest.json").is_file():
        raise UsageError(f"{options.bundle} is no staged bundle: it has no manifest.json",
                         advice="stage one first: `scons bundle`")
    with (contextlib.suppress(KeyboardInterrupt),
          BundleServer(options.bundle, port=options.port, prefix=options.prefix, verbose=True) as server):
        print(f"Serving {options.bundle} at {server.url} (stop with Ctrl-C)", flush=True)
        server.serve_forever(poll_interval=0.2)
    return 0
