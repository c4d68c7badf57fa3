"""Why an input cannot be read, and what its user can do about it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError

_REMEDIES: Final = {
    errno.EACCES: "let your user read it, and search the folders above it (chmod), or name a copy of your own",
    errno.ENAMETOOLONG: "name a path that is shorter",
    errno.ELOOP: "it is a link to itself: name the file that is meant",
}
_OTHER: Final = "the disk or the connection to it fails: name a copy elsewhere"


def unreadable(path: Path, error: OSError, *, missing: str = "name a checkpoint's folder, or a GGUF file") -> CheckpointError:
    """What to raise for ``error``, met when reading ``path``; ``missing``: the remedy where nothing is there."""
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        remedy = missing
    else:
        remedy = _REMEDIES.get(error.errno or 0, _OTHER)
    return CheckpointError(f"{path} cannot be read: {error.strerror}", advice=remedy)
