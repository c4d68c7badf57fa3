"""What the cache holds of a hub's checkpoints, without a network.

``<cache>/hub/<host>/<owner>/<commit>/<name>/`` holds the files, ``<name>.json`` beside it says which are complete and
what they are. A commit never changes, so what is complete is never asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma4web.errors import FetchError, RecordError
from gemma4web.export.acquisition import Acquisition, FileRecord
from gemma4web.export.hub_name import HubName
from gemma4web.files import dump_json, load_json, sha256_file, write_atomic

SHOWN: Final = 8
_SCHEMA: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """What the cache has, or will have, of one commit of one repository."""

    name: HubName
    hub: str
    root: Path

    @classmethod
    def of(cls, name: HubName, cache: Path, hub: str) -> Snapshot:
        owner, own = name.repo.split("/")
        host = hub.removeprefix("https://").replace("://", "_").replace("/", "_").replace(":", "_")
        return cls(name=name, hub=hub, root=cache / "hub" / host / owner / name.revision / own)

    @property
    def _record(self) -> Path:
        return self.root.with_name(f"{self.root.name}.json")

    def _read(self) -> tuple[dict[str, FileRecord], list[str] | None]:
        try:
            document = load_json(self._record, schema=_SCHEMA)
            if (document["hub"], document["repo"], document["revision"]) != (self.hub, self.name.repo, self.name.revision):
                return {}, None
            files = {path: FileRecord(bytes=entry["bytes"], sha256=entry["sha256"]) for path, entry in document["files"].items()}
            return files, document["checkpoint"]
        except (OSError, RecordError, KeyError, TypeError, AttributeError):
            return {}, None

    def _write(self, files: Mapping[str, FileRecord], checkpoint: list[str] | None) -> None:
        write_atomic(self._record, dump_json({
            "schema": _SCHEMA, "hub": self.hub, "repo": self.name.repo, "revision": self.name.revision, "checkpoint": checkpoint,
            "files": {path: {"bytes": file.bytes, "sha256": file.sha256} for path, file in sorted(files.items())}}))

    def has(self, path: str) -> FileRecord | None:
        """What a complete file is. One that was touched since is hashed; any is compared again when an export reads it."""
        record, place = self._read()[0].get(path), self.root / path
        if record is None or not place.is_file() or place.stat().st_size != record.bytes:
            return None
        touched = place.stat().st_mtime_ns > self._record.stat().st_mtime_ns
        return None if touched and sha256_file(place) != record.sha256 else record

    def add(self, path: str, record: FileRecord) -> None:
        files, checkpoint = self._read()
        self._write({**files, path: record}, checkpoint)

    def add_checkpoint(self, paths: Iterable[str]) -> None:
        """Notes which files the checkpoint at the repository's root consists of."""
        self._write(self._read()[0], sorted(paths))

    def acquired(self) -> Acquisition | None:
        """Everything that the name stands for, or None when the cache lacks some of it."""
        paths = [self.name.file] if self.name.file else self._read()[1]
        if not paths:
            return None
        found = {path: record for path in paths if (record := self.has(path)) is not None}
        if len(found) != len(paths):
            return None
        return Acquisition(hub=self.hub, repo=self.name.repo, revision=self.name.revision, files=found, root=self.root,
                           path=self.root / self.name.file if self.name.file else self.root)


def cached(name: HubName, hub: str, cache: Path) -> Acquisition | None:
    """What the cache has of a pinned name, or None when something is missing."""
    return Snapshot.of(name, cache, hub).acquired()


def acquire_offline(name: HubName, hub: str, cache: Path) -> Acquisition:
    """The same from the cache alone. Raises FetchError when it lacks something."""
    snapshot = Snapshot.of(name, cache, hub)
    if name.is_pinned:
        if (found := snapshot.acquired()) is not None:
            return found
        raise FetchError(f"{name} is not, or not wholly, in {cache}",
                         advice="run the command once without --offline, where there is a network")
    others = sorted(path.parent.name for path in snapshot.root.parent.parent.glob(f"*/{snapshot.root.name}.json"))
    raise FetchError(f"{name.revision} of {name.repo} may be any commit, and without a network nobody can look it up",
                     advice=f"name a commit; the cache has {', '.join(others[:SHOWN]) or 'none'}")
