"""Where the files of a checkpoint were acquired: what a receipt pins (X19), and the check that they still are those."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gemma4web.errors import CheckpointError


@dataclass(frozen=True, kw_only=True, slots=True)
class FileRecord:
    """What an acquired file is: its length and the SHA-256 of its bytes."""

    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Acquisition:
    """A checkpoint that came from a hub: commit ``revision`` of ``repo``, with ``files`` by path in the repository.

    ``root`` is the folder of this machine that the paths are relative to; ``path`` is what a reader opens.
    """

    hub: str
    repo: str
    revision: str
    files: Mapping[str, FileRecord]
    root: Path
    path: Path

    def check(self, path: Path, found: FileRecord) -> str:
        """The path in the repository of a file that was just read. Raises CheckpointError when it is another file."""
        name = path.relative_to(self.root).as_posix()
        if self.files.get(name) != found:
            raise CheckpointError(f"{path} is not the file that was fetched from {self.repo}: it changed afterwards",
                                  advice=f"rm '{path}', then run the command again")
        return name
