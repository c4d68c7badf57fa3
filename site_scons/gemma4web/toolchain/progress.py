"""Says what a set-up is doing: a moving bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

_POLL_S: Final = 0.3
_POLL_SHARE: Final = 20.0  # a measurement may take a twentieth of the time, however large the folder
_LINE_EVERY_S: Final = 10.0
_RATE_OVER_S: Final = 15.0

Measure = Callable[[], float]


class Rate:
    """How fast a number grows, over the last seconds only: what a resumed transfer had before counts nothing."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def after(self, now_s: float, done: float) -> float:
        """Growth a second, 0 when nothing is known yet."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # started over
        self._seen.append((now_s, done))
        while now_s - self._seen[0][0] > _RATE_OVER_S and len(self._seen) > 2:
            self._seen.popleft()
        passed = now_s - self._seen[0][0]
        return (done - self._seen[0][1]) / passed if passed > 0 else 0.0


def remaining(left: float, rate: float) -> str:
    """The time that ``left`` takes at ``rate`` a second, as h:mm:ss or m:ss; empty when nobody knows."""
    if rate <= 0:
        return ""
    minutes, seconds = divmod(round(left / rate), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02} left" if hours else f"{minutes}:{seconds:02} left"


class SetUpProgress(Protocol):
    """Where a set-up reports to; implementations must not raise."""

    def line(self, text: str) -> None:
        """Prints one finished fact."""

    def advance(self, title: str, share: float, detail: str) -> None:
        """Says that ``share`` (0 to 1) of the running step ``title`` is done."""

    def begin(self, title: str) -> None:
        """Starts a step; steps do not nest."""

    def end(self, title: str, seconds: float, failed: bool) -> None:
        """Ends the running step."""


class NoProgress:
    """Says nothing, for a caller that has no reader."""

    def line(self, text: str) -> None:
        pass

    def begin(self, title: str) -> None:
        pass

    def advance(self, title: str, share: float, detail: str) -> None:
        pass

    def end(self, title: str, seconds: float, failed: bool) -> None:
        pass


class PlainProgress:
    """Lines without control characters: one when a step starts, one every few seconds, one when it ends."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._printed = 0.0

    def line(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def begin(self, title: str) -> None:
        self._printed = time.monotonic()
        self.line(f"{title} ...")

    def advance(self, title: str, share: float, detail: str) -> None:
        if time.monotonic() - self._printed >= _LINE_EVERY_S:
            self._printed = time.monotonic()
            self.line(f"{title} ... {share:4.0%} {detail}")

    def end(self, title: str, seconds: float, failed: bool) -> None:
        self.line(f"{title}: {'failed' if failed else 'done'} after {seconds:.1f} s")


class TerminalProgress:
    """The same on a terminal, with a bar that moves in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None

    def line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, title: str) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[detail]}"), TimeElapsedColumn(),
            console=self._console, transient=True,
        )
        self._bar.add_task(title, total=1.0, detail="")
        self._bar.start()

    def advance(self, title: str, share: float, detail: str) -> None:
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, detail=detail)

    def end(self, title: str, seconds: float, failed: bool) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self.line(f"{title}: {'failed' if failed else 'done'} after {seconds:.1f} s")


def default_progress() -> SetUpProgress:
    console = Console(stderr=True)
    return TerminalProgress(console) if console.is_terminal else PlainProgress()


@contextmanager
def step(progress: SetUpProgress, title: str, *, measure: Measure | None = None, total: float = 0.0,
         unit: str = "MB", scale: float = 1e6, exact: bool = False) -> Iterator[None]:
    """Reports one step. ``measure`` is called now and then from another thread and returns what is done of ``total``.

    ``scale`` converts both to ``unit`` for the reader. ``exact``: the total is no estimate, so a rate and the remaining
    time are worth telling.
    """
    started = time.monotonic()
    stopped = threading.Event()
    progress.begin(title)
    rate = Rate()
    if exact and measure is not None:
        rate.after(started, measure())

    def poll() -> None:
        pause = _POLL_S
        while measure is not None and not stopped.wait(pause):
            before = time.monotonic()
            done = measure()
            pause = max(_POLL_S, _POLL_SHARE * (time.monotonic() - before))
            share = min(1.0, done / total) if total > 0 else 0.0
            detail = f"{done / scale:.0f} of {total / scale:.0f} {unit}"
            if exact:
                speed = rate.after(time.monotonic(), done)
                detail = ", ".join(filter(None, (detail, f"{speed / scale:.1f} {unit}/s", remaining(total - done, speed))))
            progress.advance(title, share, detail)

    watcher = threading.Thread(target=poll, name="set-up progress", daemon=True)
    watcher.start()
    failed = True
    try:
        yield
        failed = False
    finally:
        stopped.set()
        watcher.join()
        progress.end(title, time.monotonic() - started, failed)


@contextmanager
def counted(progress: SetUpProgress, title: str, total_bytes: int, *, done_bytes: int = 0) -> Iterator[Callable[[int], None]]:
    """Reports one step of ``total_bytes``, with rate and remaining time; the block calls what it gets with every number of
    bytes that is through. ``done_bytes``: through before it began."""
    done = done_bytes

    def through(count: int) -> None:
        nonlocal done
        done += count

    with step(progress, title, measure=lambda: float(done), total=float(total_bytes), exact=True):
        yield through


def folder_bytes(folder: Path) -> float:
    """Bytes of the files under ``folder``; a file that vanishes meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            if path.is_file() and not path.is_symlink():
                total += path.stat().st_size
        except OSError:
            continue
    return float(total)
