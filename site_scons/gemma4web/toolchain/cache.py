"""The cache folder that all checkouts share: where it is, who may change it, and what in it is complete.

A cached folder is complete when its stamp exists: the stamp is written last and names the inputs that made it. Without
one the folder is what an interrupted set-up left, and it is made again.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gemma4web.errors import DiskFullError, RecordError, ToolchainError
from gemma4web.files import dump_json, load_json, write_atomic

if TYPE_CHECKING:
    from gemma4web.toolchain.progress import SetUpProgress

STAMP: Final = "complete.json"
STAMP_SCHEMA: Final = 1
_LOCK_POLL_S: Final = 0.2


def default_cache() -> Path:
    """``$GEMMA4WEB_CACHE``, else ``gemma4web`` under the user's cache folder."""
    named = os.environ.get("GEMMA4WEB_CACHE")
    if named:
        return Path(named).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(base).expanduser() / "gemma4web").absolute()


def other_cache(cache: Path) -> str:
    """The remedy that names another cache folder: an environment variable cannot overrule CACHE=."""
    if cache == default_cache():
        return "name another folder with CACHE= or the environment variable GEMMA4WEB_CACHE"
    return f"name another folder than {cache} with CACHE="


def disk_full(cache: Path, found: object) -> DiskFullError:
    """A full disk while tools are set up, with the space that is left where they go."""
    place = next((folder for folder in (cache, *cache.parents) if folder.is_dir()), Path("/"))
    return DiskFullError(f"setting up the tools in {cache}: {found}; {shutil.disk_usage(place).free / 1e6:.0f} MB are free there",
                         advice=f"free some space or {other_cache(cache)}, then run the command again; what is finished is kept")


@contextmanager
def locked(cache: Path, name: str, progress: SetUpProgress, *, timeout_s: float = 3600.0, doing: str = "set-up is making",
           elsewhere: str | None = None) -> Iterator[None]:
    """Holds the lock ``name`` of the cache; another process that holds it is waited for, with one line saying so.

    ``doing``: what such a process is and does; ``elsewhere``: the remedy that names another cache folder. The kernel drops the lock when its holder ends, however it ends, so nothing stale can block.
    Raises ToolchainError when the cache cannot be written or the lock is not free in time.
    """
    path = cache / f".{name}.lock"
    elsewhere = elsewhere or other_cache(cache)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ToolchainError(
            f"the cache folder {cache} cannot be written: {error.strerror}",
            advice=f"{elsewhere}; you have to be allowed to write there",
        ) from None
    try:
        deadline = time.monotonic() + timeout_s
        said = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in {errno.EAGAIN, errno.EACCES}:
                    raise ToolchainError(f"cannot lock {path}: {error.strerror}") from None
            if time.monotonic() >= deadline:
                raise ToolchainError(
                    f"another {doing.split()[0]} has held {path} for more than {timeout_s:.0f} s",
                    advice=f"wait for the other process, or {elsewhere}",
                )
            if not said:
                progress.line(f"another {doing} {cache / name}; waiting for it")
                said = True
            time.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


def read_stamp(folder: Path, inputs: dict[str, Any]) -> dict[str, Any] | None:
    """What the set-up of ``folder`` recorded, or None when it is absent, interrupted or made from other inputs."""
    try:
        document = load_json(folder / STAMP, schema=STAMP_SCHEMA)
    except RecordError:
        return None
    facts = document.get("facts")
    return facts if document.get("inputs") == inputs and isinstance(facts, dict) else None


def write_stamp(folder: Path, inputs: dict[str, Any], facts: dict[str, Any]) -> None:
    write_atomic(folder / STAMP, dump_json({"schema": STAMP_SCHEMA, "inputs": inputs, "facts": facts}))


def ensure_folder(
    folder: Path,
    inputs: dict[str, Any],
    build: Callable[[Path], None],
    finish: Callable[[Path], dict[str, Any]],
    progress: SetUpProgress,
) -> dict[str, Any]:
    """Makes ``folder`` once, under its own lock, and returns the facts of its stamp.

    ``build`` fills a temporary sibling, which is renamed to ``folder``; ``finish`` then tries the result in its final
    place and returns the facts; the stamp comes last. A leftover of an interrupted set-up is removed first. A folder
    that is complete costs no lock. Raises what the two raise, and ToolchainError when the lock cannot be had.
    """
    facts = read_stamp(folder, inputs)
    if facts is not None:
        return facts
    with locked(folder.parent, folder.name, progress):
        facts = read_stamp(folder, inputs)
        if facts is not None:
            return facts
        for leftover in folder.parent.glob(f".{glob.escape(folder.name)}.partial-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # a killed set-up's child may still be writing there
        if folder.exists():
            shutil.rmtree(folder)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.partial-", dir=folder.parent))
        temporary.chmod(0o755)
        try:
            build(temporary)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        facts = finish(folder)
        write_stamp(folder, inputs, facts)
    return facts
