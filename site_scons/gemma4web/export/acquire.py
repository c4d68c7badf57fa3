"""A checkpoint by its name on a hub -> its files in the cache, each checked against what the hub lists."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError, DiskFullError, FetchError
from gemma4web.export import config
from gemma4web.export.acquisition import Acquisition
from gemma4web.export.download import ELSEWHERE, download, partial_of, writing
from gemma4web.export.folder_source import CARRIED
from gemma4web.export.hub import HubFile, list_files, resolve_commit
from gemma4web.export.hub_name import HubName, case_collision, path_fault
from gemma4web.export.snapshot import SHOWN, Snapshot
from gemma4web.export.transport import Transport
from gemma4web.toolchain.cache import locked
from gemma4web.toolchain.progress import counted

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_MAX_TEXT_BYTES: Final = 128 << 20
_LOCK_TIMEOUT_S: Final = 24 * 3600.0


def pinned(name: HubName, transport: Transport) -> HubName:
    """The same at a commit; a branch or tag is looked up, and told. Raises FetchError."""
    if name.is_pinned:
        return name
    commit = resolve_commit(transport, name)
    transport.progress.line(f"{name.repo}: {name.revision} is commit {commit}; to pin it, name "
                            f"{replace(name, revision=commit)}")
    return replace(name, revision=commit)


def _listed_ggufs(listing: Mapping[str, HubFile]) -> str:
    found = sorted(path for path in listing if path.endswith(".gguf"))
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def texts_of(name: HubName, listing: Mapping[str, HubFile]) -> list[HubFile]:
    """The small files of a checkpoint, which say what else belongs to it. Raises CheckpointError when it is none."""
    texts = [listing[path] for path in CARRIED if path in listing]
    if "config.json" not in listing or (SINGLE not in listing and INDEX not in listing):
        ggufs = _listed_ggufs(listing)
        raise CheckpointError(
            f"{name} has no {'config.json' if 'config.json' not in listing else 'safetensors'} at its root",
            advice=f"name one of its GGUF files: {name}:FILE, FILE being one of {ggufs}" if ggufs else
                   "name a repository with config.json and safetensors, or a GGUF file")
    for file in texts:
        if file.bytes > _MAX_TEXT_BYTES:
            raise CheckpointError(f"{name}: {file.path} has {file.bytes} bytes, wanted at most {_MAX_TEXT_BYTES}",
                                  advice="check that the repository is the right one")
    return texts


def weights_of(name: HubName, listing: Mapping[str, HubFile], index: Path) -> list[HubFile]:
    """The weight files of a checkpoint whose small files are there. Raises CheckpointError for an index that misleads."""
    if INDEX not in listing:
        return [listing[SINGLE]]
    table = config.load(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(path, str) for path in table.values()):
        raise CheckpointError(f"{name}: {INDEX} has no weight_map", advice="name another revision, or a whole checkpoint")
    for path in sorted(set(table.values())):
        if "/" in path or path_fault(path) or not path.endswith(".safetensors"):
            raise CheckpointError(f"{name}: {INDEX} names {path!r}, which is no weight file beside it",
                                  advice="do not use this repository: its names would leave the folder that they are put in")
        if path not in listing:
            raise CheckpointError(f"{name}: {INDEX} names {path}, which the repository lacks",
                                  advice="name another revision, or a whole checkpoint")
    return [listing[path] for path in sorted(set(table.values()))]


def named_file(name: HubName, listing: Mapping[str, HubFile]) -> HubFile:
    """The one GGUF file. Raises CheckpointError when the repository has none of that name."""
    if name.file is None or name.file not in listing:
        ggufs = _listed_ggufs(listing)
        raise CheckpointError(f"{name.repo} has no file {name.file} at {name.revision}",
                              advice=f"name one of {ggufs}" if ggufs else "name a repository with GGUF files")
    return listing[name.file]


def refuse_collisions(files: Iterable[HubFile]) -> None:
    if found := case_collision(file.path for file in files):
        raise CheckpointError(f"the files {found[0]} and {found[1]} differ only in case",
                              advice="do not use this repository: many file systems keep only one of them")


def _fetch(snapshot: Snapshot, files: list[HubFile], transport: Transport, title: str) -> None:
    missing = [file for file in files if snapshot.has(file.path) is None]
    if not missing:
        return
    total = sum(file.bytes for file in missing)
    done = sum(part.stat().st_size for file in missing if (part := partial_of(snapshot.root / file.path)).is_file())
    snapshot.root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(snapshot.root).free
    if total - done > free:
        raise DiskFullError(f"{snapshot.name} needs {(total - done) / 1e6:.0f} MB more in {snapshot.root}, {free / 1e6:.0f} MB are free",
                            advice=f"free some space or {ELSEWHERE}, then run the command again; what was fetched is kept")

    with counted(transport.progress, title, total, done_bytes=done) as came:
        for file in missing:
            snapshot.add(file.path, download(transport, snapshot.name, file, snapshot.root / file.path, came))


def acquire(name: HubName, transport: Transport, cache: Path) -> Acquisition:
    """The files that ``name`` stands for, fetched unless the cache has them. One process fetches, others wait for it.

    Raises FetchError, CheckpointError for a repository that is no checkpoint, DiskFullError, ToolchainError for the lock.
    """
    name = pinned(name, transport)
    snapshot = Snapshot.of(name, cache, transport.endpoint)
    if (found := snapshot.acquired()) is not None:
        return found
    with writing(snapshot.root), locked(snapshot.root.parent, snapshot.root.name, transport.progress,
                                        timeout_s=_LOCK_TIMEOUT_S, doing="export is fetching", elsewhere=ELSEWHERE):
        if (found := snapshot.acquired()) is not None:
            return found
        listing = list_files(transport, name)
        if name.file:
            wanted = [named_file(name, listing)]
        else:
            texts = texts_of(name, listing)
            refuse_collisions(texts)
            _fetch(snapshot, texts, transport, f"fetching the {len(texts)} small files of {name.repo}")
            wanted = weights_of(name, listing, snapshot.root / INDEX)
            refuse_collisions([*texts, *wanted])
            snapshot.add_checkpoint(file.path for file in (*texts, *wanted))
        what = wanted[0].path if len(wanted) == 1 else f"{len(wanted)} weight files"
        _fetch(snapshot, wanted, transport, f"fetching {what} of {name.repo}")
        found = snapshot.acquired()
    if found is None:
        raise FetchError(f"{snapshot.root} was changed while {name} was fetched", advice="run the command again")
    return found
