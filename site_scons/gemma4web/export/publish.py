"""Publication of a folder: all or nothing.

Everything is written into ``.<name>.partial`` beside the destination, which one rename makes visible. Until then any
failure or interrupt removes what was written, in reverse order, and nothing else: a file put there by somebody else
stays, and so does the folder around it.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn, Self

from gemma4web.errors import PublishError


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Holds back SIGINT to the end of the block, so that it does not part what was made from the note of it.

    A signal mask would not do: the signal may reach another thread, and Python interrupts the main one all the same.
    """
    if threading.current_thread() is not threading.main_thread():  # Python interrupts the main thread only
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


def partial_of(destination: Path) -> Path:
    """Where a folder is written before it has its name."""
    return destination.parent / f".{destination.name}.partial"


def explain(error: OSError, place: Path) -> PublishError:
    """What to raise for an error that was met when writing to ``place``."""
    name = place if error.filename is None else os.fsdecode(error.filename)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PublishError(f"{name}: no space left on the disk",
                            advice="nothing was published; free some space, or name a folder on another disk with --out")
    return PublishError(f"{name}: {error.strerror}",
                        advice="nothing was published; name a folder with --out that you may create, on a disk that takes such files")


def _identity(path: Path) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove(path: Path, identity: tuple[int, int]) -> None:
    """Removes a file or an empty folder, unless something else has taken its place."""
    with suppress(OSError):
        if _identity(path) == identity:
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()


class Publication:
    """Context manager: ``open`` files by name, then ``commit``. Leaving without a commit rolls back."""

    def __init__(self, destination: Path) -> None:
        self.destination = destination.absolute()
        self.partial = partial_of(self.destination)
        self._undo: list[tuple[Path, tuple[int, int]]] = []
        self._committed = False

    def _refuse_existing(self) -> None:
        if os.path.lexists(self.destination):
            raise PublishError(f"{self.destination} exists", advice="name another folder, or remove it yourself")

    def _refuse_debris(self, *folders: Path) -> NoReturn:
        left = " ".join(shlex.quote(str(folder)) for folder in folders)
        raise PublishError(f"{self.partial} was left by an interrupted export",
                           advice=f"make sure that no export is running, then: rm -r {left}")

    def __enter__(self) -> Self:
        try:
            claimed = self.destination.is_dir() and not self.destination.is_symlink() and not any(self.destination.iterdir())
            if claimed and self.partial.is_dir():
                self._refuse_debris(self.destination, self.partial)
            self._refuse_existing()
            for folder in reversed([self.partial, *self.partial.parents]):
                if folder == self.partial or not os.path.lexists(folder):
                    self._make(folder)
            return self  # in here, so that an interrupt finds the clean-up up to the end
        except BaseException as error:
            self._roll_back()
            if isinstance(error, OSError):
                raise explain(error, self.partial) from None
            raise

    def _make(self, folder: Path) -> None:
        with _uninterrupted():
            try:
                folder.mkdir()
            except FileExistsError:
                if folder == self.partial:
                    self._refuse_debris(folder)
                return  # another publisher made it meanwhile
            self._undo.append((folder, _identity(folder)))

    @contextmanager
    def open(self, name: str) -> Iterator[BinaryIO]:
        """A new file of the folder, flushed to disk when the block ends. Raises PublishError on a full disk."""
        path = self.partial / name
        try:
            with ExitStack() as opened:
                with _uninterrupted():
                    stream = opened.enter_context(path.open("xb"))
                    self._undo.append((path, _identity(path)))
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise explain(error, self.partial) from None

    def write(self, name: str, data: bytes) -> None:
        with self.open(name) as stream:
            stream.write(data)

    def commit(self) -> None:
        """Makes the folder visible under its name. Raises PublishError when somebody took the name meanwhile.

        An empty folder claims the name first: a rename alone would replace an empty folder of somebody else.
        """
        try:
            self._sync()
            with _uninterrupted():
                self._refuse_existing()
                self.destination.mkdir()
                claim = self.destination, _identity(self.destination)
                try:
                    os.rename(self.partial, self.destination)
                except BaseException:
                    _remove(*claim)
                    raise
                self._committed = True
        except FileExistsError:
            self._refuse_existing()
            raise
        except OSError as error:
            raise explain(error, self.partial) from None

    def _sync(self) -> None:
        """The names of the files reach the disk before the name of the folder does."""
        descriptor = os.open(self.partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _roll_back(self) -> None:
        with _uninterrupted():
            for path, identity in reversed(self._undo):
                _remove(path, identity)
            self._undo.clear()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None:
        if self._committed:
            return
        try:
            self._roll_back()
        except KeyboardInterrupt:  # came before it was held back
            self._roll_back()
            raise
