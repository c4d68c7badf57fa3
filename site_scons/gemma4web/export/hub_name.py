"""How a checkpoint is named: a folder or file of this machine, or ``owner/name@revision[:file]`` on a hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from gemma4web.errors import UsageError

SPELLING: Final = "owner/name@revision for a checkpoint, owner/name@revision:file.gguf for a GGUF file"

DEFAULT_HUB: Final = "https://huggingface.co"
PORTS: Final = {"http": 80, "https": 443}

_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_REVISION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPO: Final = re.compile(r"[^/@:]+/[^/@:]+")
_MAX_PATH_BYTES: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class HubName:
    """A repository at a revision; ``file`` None: the safetensors checkpoint at its root."""

    repo: str
    revision: str
    file: str | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never comes to mean other bytes."""
        return _COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"{self.repo}@{self.revision}" + (f":{self.file}" if self.file else "")


def normal_endpoint(text: str) -> str:
    """A hub's base address without a final slash. Raises UsageError when it is none, or holds a password."""
    advice = "name it as https://host with --hub or HF_ENDPOINT; a token goes into HF_TOKEN"
    try:
        parts = urlsplit(text)
        faulty = parts.scheme not in PORTS or not parts.hostname or parts.query or parts.fragment or parts.port == 0
    except ValueError:
        faulty = True
    if not faulty and (parts.username or parts.password):
        raise UsageError("the hub's address holds a user name or a password, wanted only a host", advice=advice)
    if faulty:
        raise UsageError(f"{text!r} is no address of a hub", advice=advice)
    return text.rstrip("/")


def path_fault(path: str) -> str | None:
    """Why a repository's path may not name a file below a folder of ours, or None when it may."""
    if not path or path.startswith("/") or re.match(r"[A-Za-z]:", path):
        return "is empty or absolute"
    if found := re.search(r"[\x00-\x1f\x7f-\x9f\\]", path):
        return f"holds the character {found[0]!r}"
    if any(segment in ("", ".", "..") for segment in path.split("/")):
        return "holds an empty segment, `.` or `..`"
    try:
        length = max(len(segment.encode()) for segment in path.split("/"))
    except UnicodeEncodeError:
        return "holds a lone surrogate"
    return f"holds a name of {length} bytes, the limit is {_MAX_PATH_BYTES}" if length > _MAX_PATH_BYTES else None


def case_collision(paths: Iterable[str]) -> tuple[str, str] | None:
    """Two of the paths that many file systems take for one, or None."""
    spelled: dict[str, str] = {}
    for path in paths:
        other = spelled.setdefault(path.casefold(), path)
        if other != path:
            return other, path
    return None


def locate(text: str) -> Path | HubName:
    """What an argument names: what exists here always wins. Raises UsageError for a hub name with a fault in it."""
    repo, at, rest = text.partition("@")
    if "://" in text:
        raise UsageError(f"{text} is an address, wanted a folder, a GGUF file or a hub's name",
                         advice=f"spell it {SPELLING}; name a hub other than {DEFAULT_HUB} with --hub")
    if os.path.lexists(text) or not _REPO.fullmatch(repo) or repo.split("/")[0] in (".", "..", "~"):
        return Path(text)
    if not at:
        if repo.endswith(".gguf") or not all(_PART.fullmatch(part) for part in repo.split("/")):
            return Path(text)
        raise UsageError(f"{text} is no folder here, and names no revision for a hub",
                         advice=f"correct the folder's name, or add the commit to fetch: {text}@COMMIT")
    revision, colon, file = rest.partition(":")
    name = HubName(repo=repo, revision=revision, file=file if colon else None)
    for what, value, faulty in (
            ("repository", repo, not all(_PART.fullmatch(part) for part in repo.split("/")) or ".." in repo),
            ("revision", revision, not _REVISION.fullmatch(revision) or ".." in revision),
            ("file", file, bool(colon) and (path_fault(file) is not None or not file.endswith(".gguf")))):
        if faulty:
            raise UsageError(f"{text!r} names the {what} {value!r}, which no hub has" if what != "file" else
                             f"{text!r} names the file {value!r}, which is no GGUF file of a repository",
                             advice=f"spell it {SPELLING}")
    return name
