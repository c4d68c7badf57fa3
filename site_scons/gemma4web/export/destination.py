"""Whether a model may be published where a user says, before anything is fetched, read or written there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gemma4web.errors import PublishError
from gemma4web.export.publish import explain, partial_of

MODEL_FILE: Final = "model.json"
SOURCE_FILE: Final = "source.json"


@contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise explain(error, out) from None


def refuse_taken(out: Path) -> None:
    """What an export says of a destination that is there already (X16), before there is a publication.

    Raises PublishError.
    """
    with _explained(out):
        if os.path.lexists(out):
            raise PublishError(f"{out.absolute()} exists", advice="name another folder, or remove it yourself")


def refuse_unwritable(out: Path) -> None:
    """Raises PublishError when nothing can be made there: it would be found out only after a download."""
    with _explained(out):
        above = next(folder for folder in out.absolute().parents if os.path.lexists(folder))
        if not above.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
        if not os.access(above, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(above))
        if max(len(os.fsencode(part)) for part in partial_of(out).parts) > os.pathconf(above, "PC_NAME_MAX"):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(out))


def refuse_inside_others(out: Path, inputs: Iterable[Path] = ()) -> None:
    """A published model holds exactly what its receipt lists, and a checkpoint what was fetched: a folder inside would break
    either. Raises PublishError."""
    with _explained(out):
        for folder in out.absolute().parents:
            if (folder / MODEL_FILE).is_file() and (folder / SOURCE_FILE).is_file():
                raise PublishError(f"{out} would lie inside the published model {folder}, which may hold nothing else",
                                   advice="name a folder elsewhere with --out")
        above = Path(os.path.realpath(out)).parents
        for path in inputs:
            if Path(os.path.realpath(path)) in above and path.is_dir():
                raise PublishError(f"{out} would lie inside the checkpoint {path}", advice="name a folder elsewhere with --out")


def free_bytes(out: Path) -> int:
    """Space that is left on the disk that ``out`` is or would be on."""
    return shutil.disk_usage(next(folder for folder in out.absolute().parents if folder.is_dir())).free


def refuse_too_small(out: Path, needed_bytes: int) -> None:
    """Raises PublishError when the disk has not that much space left."""
    free = free_bytes(out)
    if needed_bytes > free:
        raise PublishError(f"the model needs {needed_bytes / 1e6:,.0f} MB in {out.absolute().parent}, {free / 1e6:,.0f} MB are free",
                           advice="nothing was published; free some space, or name a folder on another disk with --out")
