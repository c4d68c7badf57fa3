"""Publication of a folder: all or nothing.

Everything is written into ``.<name>.partial`` beside the destination, which one rename makes visible. Until then any
failure or interrupt removes what was written, in reverse order, and nothing else: a file put there by somebody else
stays, and so does the folder around it.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from gemma4web.errors import PublishError


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds back SIGINT, so that a second Ctrl-C does not stop the clean-up."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Publication:
    """Context manager: ``open`` files by name, then ``commit``. Leaving without a commit rolls back."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination.absolute()
        self.partial = self.destination.parent / f".{self.destination.name}.partial"
        self._undo: list[Path] = []
        self._committed = False

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.destination):
            raise PublishError(f"{self.destination} exists", advice="name another folder, or remove it yourself")

    def __enter__(self) -> Self:
        self._refuse_existing()
        try:
            for folder in reversed([self.partial, *self.partial.parents]):
                if not os.path.lexists(folder):
                    self._undo.append(folder)
                    folder.mkdir()
                elif folder == self.partial:
                    raise PublishError(f"{self.partial} was left by an interrupted export",
                                       advice=f"make sure that no export is running, then: rm -r '{self.partial}'")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, OSError):
                raise self._explain(error) from None
            raise
        return self

    def _explain(self, error: OSError) -> PublishError:
        reason = "no space left on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
        return PublishError(f"{error.filename or self.partial}: {reason}",
                            advice="nothing was published; retry elsewhere")

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A new file of the folder, flushed to disk when the block ends. Raises PublishError on a full disk."""
        path = self.partial / name
        self._undo.append(path)
        try:
            with path.open("xb") as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
        except FileExistsError as error:
            self._undo.remove(path)  # somebody else's file
            raise self._explain(error) from None
        except OSError as error:
            raise self._explain(error) from None

    def write(self, name: str, data: bytes) -> None:
        with self.open(name) as stream:
            stream.write(data)

    def commit(self) -> None:
        """Makes the folder visible under its name. Raises PublishError when somebody took the name meanwhile."""
        self._refuse_existing()
        with _uninterrupted():
            try:
                os.rename(self.partial, self.destination)
            except OSError as error:
                raise self._explain(error) from None
            self._committed = True

    def _roll_back(self) -> None:
        with _uninterrupted():
            for path in reversed(self._undo):
                with suppress(OSError):
                    if path.is_dir() and not path.is_symlink():
                        path.rmdir()
                    else:
                        path.unlink()
            self._undo.clear()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if not self._committed:
            self._roll_back()
