"""One file over HTTP: resumed where it stopped, checked while it comes, and under its name only when it is whole.

``.<name>.partial`` holds what has come and ``.<name>.partial.json`` what it is the beginning of. Whatever ends the
process, the next one takes up from there, unless the file at the hub is another one by then.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import requests

from gemma4web.errors import DiskFullError, FetchError, RecordError
from gemma4web.export.acquisition import FileRecord
from gemma4web.export.hub import NO_HUB, HubFile, file_url, refuse, refuse_page
from gemma4web.export.hub_name import HubName
from gemma4web.export.transport import TransientError, Transport
from gemma4web.files import dump_json, load_json, write_atomic

_SCHEMA: Final = 1
_BLOCK_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 64
_PROGRESS_BYTES: Final = 1 << 20
"""An attempt that came this much further than any before it counts as the first one again."""
_POINTER: Final = b"version https://git-lfs.github.com/spec/"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ELSEWHERE: Final = "name another folder with --cache or the environment variable GEMMA4WEB_CACHE"


def partial_of(target: Path) -> Path:
    """Where the beginning of a file is kept until it is whole."""
    return target.with_name(f".{target.name}.partial")


def _sidecar_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial.json")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turns what a file system refuses into errors of the tree."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            free = shutil.disk_usage(next(place for place in (folder, *folder.parents) if place.is_dir())).free
            raise DiskFullError(f"fetching to {folder}: {(error.strerror or 'disk full').lower()}; {free / 1e6:.0f} MB are free there",
                                advice=f"free some space or {ELSEWHERE}, then run the command again; what was fetched is kept"
                                ) from None
        raise FetchError(f"{error.filename or folder} cannot be written: {error.strerror}",
                         advice=f"{ELSEWHERE}; you have to be allowed to write there") from None


class _Partial:
    """What has come of a file so far, and its running hashes."""

    def __init__(self, file: HubFile, target: Path, stream: io.FileIO) -> None:
        self._file, self._target, self._stream = file, target, stream
        self.etag: str | None = None
        self.bytes = 0
        self._begin_hashes()
        self._take_up()

    def _begin_hashes(self) -> None:
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\0" % self._file.bytes, usedforsecurity=False)

    def _identity(self) -> dict[str, Any]:
        return {"bytes": self._file.bytes, "sha256": self._file.sha256, "git_sha1": self._file.git_sha1}

    def _take_up(self) -> None:
        """Hashes what an earlier attempt left, or removes it when it is the beginning of another file."""
        try:
            told = load_json(_sidecar_of(self._target), schema=_SCHEMA)
        except RecordError:
            told = {}
        length = os.fstat(self._stream.fileno()).st_size
        if told.get("file") != self._identity() or length > self._file.bytes:
            self._stream.truncate(0)
            return
        etag = told.get("etag")
        self.etag = etag if isinstance(etag, str) else None
        while block := self._stream.read(_BLOCK_BYTES):
            self._add(block)

    def _add(self, block: bytes) -> None:
        self._sha256.update(block)
        self._git.update(block)
        self.bytes += len(block)

    def start_over(self) -> None:
        self._stream.seek(0)
        self._stream.truncate(0)
        self.etag, self.bytes = None, 0
        self._begin_hashes()

    def begin(self, etag: str | None) -> None:
        """Notes what the file at the hub is, before the first of its bytes is kept."""
        self.etag = etag
        write_atomic(_sidecar_of(self._target), dump_json({"schema": _SCHEMA, "file": self._identity(), "etag": etag}))

    def write(self, block: bytes) -> None:
        view = memoryview(block)
        while view:  # the stream is unbuffered: a disk that fills up takes a part
            view = view[self._stream.write(view) or 0:]
        self._add(block)

    def fault(self) -> str | None:
        """Why the whole file is not the one that the hub lists, or None when it is, or the hub states no hash."""
        for name, found, wanted in (("sha256", self._sha256.hexdigest(), self._file.sha256),
                                    ("git object id", self._git.hexdigest(), self._file.git_sha1)):
            if wanted is not None and found != wanted:
                return f"{self._file.path} came with {name} {found}, wanted {wanted}"
        return None

    def remove(self) -> None:
        for path in (partial_of(self._target), _sidecar_of(self._target)):
            path.unlink(missing_ok=True)

    def publish(self) -> FileRecord:
        os.fsync(self._stream.fileno())
        os.replace(partial_of(self._target), self._target)
        _sidecar_of(self._target).unlink(missing_ok=True)
        return FileRecord(bytes=self.bytes, sha256=self._sha256.hexdigest())


def _strong(etag: str | None) -> bool:
    return etag is not None and etag.startswith('"')


def _continues(answer: requests.Response, partial: _Partial, size: int) -> bool:
    """Whether a 206 is the rest of what is kept. Another entity tag is another file, whatever its length."""
    span = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", answer.headers.get("Content-Range", ""))
    etag = answer.headers.get("ETag")
    return (span is not None and (int(span[1]), int(span[2]) + 1) == (partial.bytes, size) and span[3] in ("*", str(size))
            and (partial.etag is None or etag is None or etag == partial.etag))


def _check_beginning(answer: requests.Response, head: bytes, file: HubFile) -> None:
    """Refuses what is recognisably no such file, before its length makes a less telling error."""
    refuse_page(answer, head, file.path)
    if head.startswith(_POINTER):
        raise FetchError(f"the hub holds a Git LFS pointer instead of {file.path}: the file itself was never uploaded there",
                         advice="name the original repository or another mirror; in a clone of yours, run `git lfs pull` and "
                                "name that folder")
    announced = answer.headers.get("Content-Length")
    if answer.status_code == 200 and announced is not None and announced != str(file.bytes):
        raise FetchError(f"{file.path} comes with {announced if announced.isdecimal() else repr(announced)} bytes, the hub lists {file.bytes}", advice=NO_HUB)


def _blocks(transport: Transport, answer: requests.Response, file: HubFile, *, whole: bool) -> Iterator[bytes]:
    """The body; the first block of a whole file is at least its recognisable beginning, and that has been checked."""
    head, checked = b"", not whole
    try:
        for block in transport.blocks(answer, _BLOCK_BYTES):
            if not checked:
                head += block
                if len(head) < _HEAD_BYTES:
                    continue
                _check_beginning(answer, head, file)
                block, checked = head, True
            yield block
    except TransientError:
        if not checked:
            _check_beginning(answer, head, file)  # a page that broke off is still a page
        raise
    if not checked:
        _check_beginning(answer, head, file)
        yield head


def _transfer(transport: Transport, name: HubName, file: HubFile, partial: _Partial, came: Callable[[int], None]) -> None:
    """One attempt at what is missing. Raises TransientError, FetchError."""
    headers = {}

    def start_over() -> None:
        came(-partial.bytes)
        partial.start_over()

    if file.sha256 is None and file.git_sha1 is None and not _strong(partial.etag):
        start_over()  # nothing would tell a wrong rest from the right one
    if partial.bytes:
        headers["Range"] = f"bytes={partial.bytes}-"
        if _strong(partial.etag):
            headers["If-Range"] = str(partial.etag)
    with transport.open(file_url(transport, name, file.path), headers) as answer:
        resumed = answer.status_code == 206 and bool(headers)
        if answer.status_code == 416 or (resumed and not _continues(answer, partial, file.bytes)):
            start_over()
            raise TransientError("the rest of it is not to be had, only all of it")
        if not resumed and answer.status_code != 200:
            raise refuse(transport, answer, name, f"{file.path} in {name.repo}")
        if (encoding := answer.headers.get("Content-Encoding", "identity")).lower() != "identity":
            raise FetchError(f"{file.path} comes in the encoding {encoding!r}, wanted the bytes as they are",
                             advice="a proxy compresses what passes: tell it not to, or name another hub with HF_ENDPOINT")
        if not resumed:
            start_over()
            partial.begin(answer.headers.get("ETag"))
        for block in _blocks(transport, answer, file, whole=not resumed):
            if partial.bytes + len(block) > file.bytes:
                partial.remove()
                raise FetchError(f"{file.path} does not end after the {file.bytes} bytes that the hub lists", advice=NO_HUB)
            partial.write(block)
            came(len(block))
    if partial.bytes < file.bytes:
        raise TransientError(f"the connection ended after {partial.bytes} of {file.bytes} bytes")


def download(transport: Transport, name: HubName, file: HubFile, target: Path, came: Callable[[int], None]) -> FileRecord:
    """Fetches ``file`` of the pinned ``name`` to ``target``; ``came`` is told of every block, and what is taken back.

    Raises FetchError for what the hub or the network does, DiskFullError.
    """
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(partial_of(target), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        with io.FileIO(descriptor, "r+") as stream:
            partial, failures = _Partial(file, target, stream), 0
            best, resumed, again = partial.bytes, partial.bytes > 0, False
            if resumed:
                transport.progress.line(f"{file.path}: {partial.bytes / 1e6:.1f} of {file.bytes / 1e6:.1f} MB are here already")
            while True:
                try:
                    if partial.bytes < file.bytes or not partial.bytes:
                        _transfer(transport, name, file, partial, came)
                except TransientError as error:
                    failures = 1 if partial.bytes - best >= _PROGRESS_BYTES else failures + 1
                    best, resumed = max(best, partial.bytes), resumed or partial.bytes > 0
                    transport.pause(error, failures, file.path)
                    continue
                fault = partial.fault()
                if fault is None:
                    return partial.publish()
                came(-partial.bytes)
                if again or not resumed:
                    partial.remove()
                    raise FetchError(f"{fault}; it was removed",
                                     advice="run the command again; if that does not help, a proxy or mirror changes files: use "
                                            "another network, or name another hub with HF_ENDPOINT")
                partial.start_over()  # perhaps only a seam is wrong: one more transfer decides
                best, again = 0, True
