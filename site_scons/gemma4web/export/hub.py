"""The API of a Hugging Face hub, as far as a fetch needs it: a revision's commit, and the files of a folder there.

Routes and headers as in the hub's public documentation; a mirror that serves the same ones serves as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urljoin

import requests

from gemma4web.errors import CheckpointError, FetchError
from gemma4web.export.hub_name import HubName, path_fault
from gemma4web.export.transport import NETWORK, Transport, shown_status

_MAX_ANSWER_BYTES: Final = 32 << 20
_MAX_PAGES: Final = 200
_MAX_FILE_BYTES: Final = 1 << 50
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SHA1: Final = re.compile(r"[0-9a-f]{40}")
NO_HUB: Final = "check that HF_ENDPOINT or --hub names a Hugging Face hub or a mirror of one"


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """A file of a repository. ``sha256`` of its bytes where the hub states it (LFS); ``git_sha1`` is git's blob id."""

    path: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


def refuse(transport: Transport, answer: requests.Response, name: HubName, what: str) -> FetchError:
    """The error for an answer that is none, with the remedy that fits its status."""
    code, status = answer.headers.get("X-Error-Code", ""), answer.status_code
    page = f"{transport.endpoint}/{name.repo}"
    if code == "GatedRepo" or status in (401, 403):
        if transport.has_token:
            return FetchError(f"{transport.host} lets the holder of HF_TOKEN not read {name.repo} ({status})",
                              advice=f"accept the terms at {page} with the account of that token, and let the token read "
                                     "gated repositories")
        return FetchError(f"{transport.host} wants to know who reads {name.repo} ({status}): it is gated, private, or not there",
                          advice=f"check the name; accept the terms at {page}, then set HF_TOKEN to a token of that account")
    if status == 404:
        missing = {"RepoNotFound": f"no repository {name.repo}",
                   "RevisionNotFound": f"no revision {name.revision} of {name.repo}"}.get(code, f"no {what}")
        return FetchError(f"{transport.host} has {missing}",
                          advice=f"look it up at {page}; a private repository needs a token in HF_TOKEN")
    return FetchError(f"{transport.host} answered {shown_status(answer)} for {what}", advice=NO_HUB)


def refuse_page(answer: requests.Response, head: bytes, what: str) -> None:
    """Raises FetchError when a web page came instead of data: a sign-in page, or a proxy's apology."""
    kind = answer.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if kind in ("text/html", "application/xhtml+xml") or re.match(rb"\s*<(!doctype html|html)", head, re.IGNORECASE):
        raise FetchError(f"a web page came instead of {what}",
                         advice="a proxy or a sign-in page stands in between: open the hub in a browser on this machine, "
                                "then run the command again")


def _document(transport: Transport, url: str, name: HubName, what: str) -> tuple[Any, str | None]:
    """(a JSON answer, the address of its next page). Raises FetchError."""
    def ask() -> tuple[Any, str | None]:
        with transport.open(url) as answer:
            if answer.status_code != 200:
                raise refuse(transport, answer, name, what)
            data = bytearray()
            for block in transport.blocks(answer, 1 << 16):
                data += block
                if len(data) > _MAX_ANSWER_BYTES:
                    raise FetchError(f"{transport.host} sends more than {_MAX_ANSWER_BYTES >> 20} MiB for {what}", advice=NO_HUB)
            refuse_page(answer, bytes(data[:512]), what)
            try:
                return json.loads(data), answer.links.get("next", {}).get("url")
            except (ValueError, RecursionError):
                raise FetchError(f"{transport.host} answered something that is not JSON for {what}", advice=NO_HUB) from None
    return transport.retried(what, ask)


def resolve_commit(transport: Transport, name: HubName) -> str:
    """The commit that a branch or tag is at now. Raises FetchError."""
    url = f"{transport.endpoint}/api/models/{name.repo}/revision/{quote(name.revision, safe='')}"
    document, _ = _document(transport, url, name, f"the revision {name.revision} of {name.repo}")
    commit = document.get("sha") if isinstance(document, dict) else None
    if not isinstance(commit, str) or not _SHA1.fullmatch(commit):
        raise FetchError(f"{transport.host} names no commit for {name}", advice=NO_HUB)
    return commit


def _file(entry: Any, host: str) -> HubFile | None:
    """One entry of a listing; None for a folder. Raises FetchError when it cannot be what the hub says."""
    if not isinstance(entry, dict) or not isinstance(path := entry.get("path"), str):
        raise FetchError(f"{host} lists something that is no file: {entry!r:.100}", advice=NO_HUB)
    if fault := path_fault(path):
        raise FetchError(f"{host} lists the path {path!r}, which {fault}",
                         advice="do not use this repository: its names would leave the folder that they are put in")
    if entry.get("type") != "file":
        return None
    lfs, size, oid = entry.get("lfs"), entry.get("size"), entry.get("oid")
    sha256 = lfs.get("oid") if isinstance(lfs, dict) else None
    if type(size) is not int or not 0 <= size <= _MAX_FILE_BYTES or (
            lfs is not None and (not isinstance(sha256, str) or not _SHA256.fullmatch(sha256) or lfs.get("size", size) != size)):
        raise FetchError(f"{host} lists {path} with a size or a sha256 that is none", advice=NO_HUB)
    git_sha1 = oid if lfs is None and isinstance(oid, str) and _SHA1.fullmatch(oid) else None
    return HubFile(path=path, bytes=size, sha256=sha256, git_sha1=git_sha1)


def _entries(transport: Transport, name: HubName, folder: str) -> Iterator[HubFile]:
    what = f"the list of files of {name.repo}"
    url: str | None = f"{transport.endpoint}/api/models/{name.repo}/tree/{name.revision}" + (f"/{quote(folder)}" if folder else "")
    for _ in range(_MAX_PAGES):
        if url is None:
            return
        if not transport.is_own(url):
            raise FetchError(f"{transport.host} continues {what} on another host", advice=NO_HUB)
        document, following = _document(transport, url, name, what)
        if not isinstance(document, list):
            raise FetchError(f"{transport.host} answered something that is no list for {what}", advice=NO_HUB)
        yield from (file for entry in document if (file := _file(entry, transport.host)) is not None)
        url = urljoin(url, following) if following else None
    raise FetchError(f"{transport.host} has more than {_MAX_PAGES} pages for {what}", advice=NETWORK)


def list_files(transport: Transport, name: HubName) -> dict[str, HubFile]:
    """The files beside the one that ``name`` names, or at the repository's root, by path. Raises FetchError."""
    folder = (name.file or "").rpartition("/")[0]
    found: dict[str, HubFile] = {}
    for file in _entries(transport, name, folder):
        if file.path in found:
            raise FetchError(f"{transport.host} lists {file.path} twice", advice=NO_HUB)
        if file.path.rpartition("/")[0] == folder:
            found[file.path] = file
    if not found:
        raise CheckpointError(f"{name.repo} has no files{f' in {folder}' if folder else ''} at {name.revision}",
                              advice=f"look at {transport.endpoint}/{name.repo}/tree/{name.revision}")
    return found


def file_url(transport: Transport, name: HubName, path: str) -> str:
    return f"{transport.endpoint}/{name.repo}/resolve/{name.revision}/{quote(path)}"
