"""A stand-in for a Hugging Face hub and for the store that it sends large files to, and the ways in which both misbehave.

The hub is 127.0.0.1, the store localhost: to a client two hosts. A fault answers one request for one file; the requests
after it are served as they should be.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

POINTER: Final = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n"
LARGE: Final = (".safetensors", ".gguf")

Fault = Callable[["Handler", bytes], None]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One request: which of the two servers, path, and headers in lower case."""

    server: str
    path: str
    headers: Mapping[str, str]


@dataclass
class Site:
    """``repos``: owner/name -> commit -> path -> bytes. ``branches``: (repo, branch) -> commit."""

    repos: dict[str, dict[str, dict[str, bytes]]] = field(default_factory=dict)
    branches: dict[tuple[str, str], str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    listings: dict[str, list[Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    page_entries: int = 1000
    hub: str = ""
    store: str = ""

    def clear(self) -> None:
        """As new, so that the tests of a module share two servers."""
        self.repos, self.branches, self.gated, self.faults, self.listings, self.asked = {}, {}, set(), {}, {}, []
        self.page_entries = 1000

    def add(self, repo: str, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A commit of a repository, and its branch; the commit's name follows from its content."""
        commit = hashlib.sha1(repr(sorted(files.items())).encode(), usedforsecurity=False).hexdigest()
        self.repos.setdefault(repo, {})[commit] = dict(files)
        self.branches[repo, branch] = commit
        return commit

    def fault(self, path: str, *faults: Fault) -> None:
        """The next requests for the file ``path`` meet these, one each. Of a large file it is the store's answer."""
        self.faults.setdefault(path, []).extend(faults)

    def asked_for(self, path: str, server: str | None = None) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.endswith(path) and server in (None, asked.server)]


def entry(path: str, data: bytes) -> dict[str, Any]:
    """A file as the hub's listing shows it."""
    sha256 = hashlib.sha256(data).hexdigest()
    blob = POINTER % (sha256.encode(), len(data)) if path.endswith(LARGE) else data
    oid = hashlib.sha1(b"blob %d\0" % len(blob) + blob, usedforsecurity=False).hexdigest()
    found: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": oid}
    if path.endswith(LARGE):
        found["lfs"] = {"oid": sha256, "size": len(data), "pointerSize": len(blob)}
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    site: Site
    server_name: str

    def log_message(self, format: str, *values: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            super().handle()

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def answer(self, status: int, data: bytes = b"", headers: Mapping[str, str] | None = None, *, length: int | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data) if length is None else length))
        self.end_headers()
        self.wfile.write(data)

    def refuse(self, status: int, code: str) -> None:
        self.answer(status, b"{}", {"X-Error-Code": code})

    def file(self, data: bytes, *, etag: str | None = None, ranges: bool = True) -> None:
        """A file as a good server sends it: entity tag, ranges, If-Range."""
        tag = etag or f'"{hashlib.sha256(data).hexdigest()[:32]}"'
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if span and ranges and self.headers.get("If-Range", tag) == tag:
            begin, end = int(span[1]), min(int(span[2]) + 1 if span[2] else len(data), len(data))
            if begin >= len(data):
                self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            else:
                self.answer(206, data[begin:end], {"ETag": tag, "Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})
        else:
            self.answer(200, data, {"ETag": tag, "Content-Type": "application/octet-stream"})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.site.asked.append(Asked(server=self.server_name, path=path,
                                     headers={name.lower(): value for name, value in self.headers.items()}))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._revision(found[1], found[2])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path):
            self._tree(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(found[1], found[2], found[3])
        elif self.server_name == "store" and (found := re.fullmatch(r"/store/([^/]+/[^/]+)/([^/]+)/(.+)", path)):
            self._serve(self.site.repos[found[1]][found[2]][found[3]], found[3])
        else:
            self.refuse(404, "")

    def _files(self, repo: str, commit: str) -> dict[str, bytes] | None:
        if repo in self.site.gated and self.headers.get("Authorization") != "Bearer good":
            self.refuse(403 if "Authorization" in self.headers else 401, "GatedRepo")
        elif repo not in self.site.repos:
            self.refuse(404, "RepoNotFound")
        elif commit not in self.site.repos[repo]:
            self.refuse(404, "RevisionNotFound")
        else:
            return self.site.repos[repo][commit]
        return None

    def _revision(self, repo: str, revision: str) -> None:
        commit = self.site.branches.get((repo, revision), revision)
        if self._files(repo, commit) is not None:
            self.answer(200, json.dumps({"id": repo, "sha": commit}).encode())

    def _tree(self, repo: str, commit: str, folder: str) -> None:
        files = self._files(repo, commit)
        if files is None:
            return
        listed = self.site.listings.get(repo)
        if listed is None:
            listed = [entry(path, data) for path, data in sorted(files.items()) if path.rpartition("/")[0] == folder]
            listed += [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0}
                       for name in sorted({path.split("/")[0] for path in files if "/" in path and not folder})]
        begin = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        end = begin + self.site.page_entries
        more = {"Link": f'<{self.site.hub}{urlsplit(self.path).path}?cursor={end}>; rel="next"'} if end < len(listed) else {}
        self.answer(200, json.dumps(listed[begin:end]).encode(), {"Content-Type": "application/json", **more})

    def _resolve(self, repo: str, commit: str, path: str) -> None:
        files = self._files(repo, commit)
        if files is None:
            return
        if path not in files:
            self.refuse(404, "EntryNotFound")
        elif path.endswith(LARGE):
            self.answer(302, b"Found", {"Location": f"{self.site.store}/store/{repo}/{commit}/{path}?signature=secret"})
        else:
            self._serve(files[path], path)

    def _serve(self, data: bytes, path: str) -> None:
        waiting = self.site.faults.get(path)
        if waiting:
            waiting.pop(0)(self, data)
        else:
            self.file(data)

    def end_connection(self, *, reset: bool = False) -> None:
        """Closes here and now, if wanted with a reset: a linger time of zero makes the close one."""
        self.wfile.flush()
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        self.close_connection = True


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """Both servers, for as long as the block runs."""
    site = Site()
    with contextlib.ExitStack() as stack:
        for name in ("hub", "store"):
            handler = type("Bound", (Handler,), {"site": site, "server_name": name})
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            server.daemon_threads = True
            server.block_on_close = False
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            setattr(site, name, f"http://{'127.0.0.1' if name == 'hub' else 'localhost'}:{server.server_port}")
        yield site


def status(code: int, headers: Mapping[str, str] | None = None, data: bytes = b"no") -> Fault:
    return lambda handler, _: handler.answer(code, data, headers)


def breaks_after(count: int, *, reset: bool = False) -> Fault:
    """Announces everything that was asked for, sends ``count`` bytes of it and hangs up."""
    def fault(handler: Handler, data: bytes) -> None:
        begin = int(re.match(r"bytes=(\d+)", handler.headers.get("Range", "bytes=0"))[1])  # type: ignore[index]
        headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"'}
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(data) - 1}/{len(data)}"
        handler.answer(206 if begin else 200, data[begin:begin + count], headers, length=len(data) - begin)
        handler.end_connection(reset=reset)
    return fault


def stalls_after(count: int, go_on: threading.Event) -> Fault:
    """Sends ``count`` bytes, then nothing until the event."""
    def fault(handler: Handler, data: bytes) -> None:
        handler.answer(200, data[:count], {"ETag": f'"{hashlib.sha256(data).hexdigest()[:32]}"'}, length=len(data))
        handler.wfile.flush()
        go_on.wait(60)
        with contextlib.suppress(OSError):
            handler.wfile.write(data[count:])
        handler.close_connection = True
    return fault


def drips(pause_s: float, seconds: float) -> Fault:
    """One byte at a time, never silent for long."""
    def fault(handler: Handler, data: bytes) -> None:
        handler.answer(200, b"", {}, length=len(data))
        pause = threading.Event()
        with contextlib.suppress(OSError):
            for position in range(int(seconds / pause_s)):
                handler.wfile.write(data[position:position + 1])
                handler.wfile.flush()
                pause.wait(pause_s)
        handler.close_connection = True
    return fault


def sends(data: bytes, headers: Mapping[str, str] | None = None, *, length: int | None = None) -> Fault:
    """Other bytes than the file's."""
    def fault(handler: Handler, _: bytes) -> None:
        handler.answer(200, data, headers, length=length)
        handler.close_connection = True
    return fault


def sends_chunks(data: bytes) -> Fault:
    """Bytes whose number is not announced."""
    def fault(handler: Handler, _: bytes) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with contextlib.suppress(OSError):
            for begin in range(0, len(data), 1 << 16):
                block = data[begin:begin + (1 << 16)]
                handler.wfile.write(b"%x\r\n" % len(block) + block + b"\r\n")
            handler.wfile.write(b"0\r\n\r\n")
    return fault


def redirects(target: str) -> Fault:
    return lambda handler, _: handler.answer(302, b"Found", {"Location": target})
