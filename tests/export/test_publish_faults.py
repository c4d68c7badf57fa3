"""X14 to X17: a fault at every step of a publication ends in all or nothing, and what a kill leaves is recognised.

Steps are the lines of publish.py that a whole publication runs through, and its calls of the operating system.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from gemma4web.errors import PublishError
from gemma4web.export import destination, publish
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.export.publish import Publication

FILES = {"source.json": b"{}", "weights": b"w" * 100_000, "model.json": b"[]"}


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def _publish(base: Path) -> None:
    with Publication(base / "deep" / "model") as publication:
        for name, data in FILES.items():
            publication.write(name, data)
        publication.commit()


PUBLISHED = {"deep": None, "deep/model": None, **{f"deep/model/{name}": data for name, data in FILES.items()}}


@contextlib.contextmanager
def _at_line(number: int, act: Callable[[], None]) -> Iterator[list[int]]:
    """Runs ``act`` before the n-th line of publish.py that is executed; the list counts the lines."""
    seen: list[int] = []

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            seen.append(frame.f_lineno)
            if len(seen) - 1 == number:
                act()
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename == publish.__file__ else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


def _lines(tmp_path: Path) -> int:
    (tmp_path / "count").mkdir()
    with _at_line(-1, lambda: None) as seen:
        _publish(tmp_path / "count")
    shutil.rmtree(tmp_path / "count")
    return len(seen)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_at_every_line(tmp_path: Path) -> None:
    """X17: an interrupt before the rename rolls back, one after it comes too late; both propagate.

    Between a with block and its exit, where Python may be interrupted too, closing is left to the garbage collector, which
    warns.
    """
    lines, outcomes = _lines(tmp_path), set()
    for number in range(lines):
        base = tmp_path / str(number)
        base.mkdir()
        with contextlib.suppress(KeyboardInterrupt), _at_line(number, lambda: os.kill(os.getpid(), signal.SIGINT)):
            _publish(base)
            pytest.fail(f"the interrupt at line event {number} did not propagate")
        assert _tree(base) in ({}, PUBLISHED), number
        outcomes.add(len(_tree(base)))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert lines > 60 and outcomes == {0, len(PUBLISHED)}


def test_interrupt_during_the_clean_up(tmp_path: Path) -> None:
    """X17: the failure that is being cleaned up after may be followed by any interrupt."""
    def fail(base: Path) -> None:
        with Publication(base / "deep" / "model") as publication:
            for name, data in FILES.items():
                publication.write(name, data)
            raise RuntimeError("failed")

    with _at_line(-1, lambda: None) as seen, pytest.raises(RuntimeError):
        fail(tmp_path / "count")
    last_line, first = _line_of("if self._committed:"), len(seen)
    first = next(number for number in range(len(seen) - 1, 0, -1) if seen[number] == last_line) + 1
    for number in range(first + 1, len(seen)):
        base = tmp_path / str(number)
        base.mkdir()
        with contextlib.suppress(KeyboardInterrupt, RuntimeError), _at_line(
                number, lambda: os.kill(os.getpid(), signal.SIGINT)):
            fail(base)
        assert _tree(base) == {}, number


def _line_of(text: str) -> int:
    return next(number for number, line in enumerate(Path(publish.__file__).read_text().splitlines(), 1) if text in line)


def test_kill_at_every_line(tmp_path: Path) -> None:
    """X15, X17: after SIGKILL there is the whole folder, or none with a receipt in it. A retry then succeeds, or refuses
    and says what to remove; that done, it succeeds."""
    lines, refused = _lines(tmp_path), 0
    for number in range(lines):
        base = tmp_path / str(number)
        base.mkdir()
        child = os.fork()
        if not child:
            with _at_line(number, lambda: os.kill(os.getpid(), signal.SIGKILL)):
                _publish(base)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        if _tree(base) == PUBLISHED:
            continue
        assert not (base / "deep" / "model" / "model.json").exists(), number
        try:
            _publish(base)
        except PublishError as error:
            refused += 1
            command = re.search(r"then: rm -r (.*)", error.advice)
            assert command and "was left by an interrupted export" in str(error), (number, str(error))
            for path in command[1].split():
                assert Path(path).parent == base / "deep"
                shutil.rmtree(path)
            _publish(base)
        assert _tree(base) == PUBLISHED, number
    assert refused > 20


_CALLS = {"mkdir": (Path, "mkdir"), "open": (Path, "open"), "fsync": (os, "fsync"), "rename": (os, "rename")}
_ERRORS = {"full disk": errno.ENOSPC, "quota": errno.EDQUOT, "broken disk": errno.EIO, "read-only": errno.EROFS,
           "cross-device": errno.EXDEV, "gone": errno.ENOENT}


@pytest.mark.parametrize("fault", [*_ERRORS, "exception", "out of memory"])
@pytest.mark.parametrize("call", _CALLS)
def test_failing_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, fault: str) -> None:
    """X14: the n-th call fails, for every n; the destination's surroundings stay as they were, the message has a remedy."""
    owner, name = _CALLS[call]
    real, count = getattr(owner, name), 0
    wanted = -1

    def failing(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count - 1 == wanted:
            if fault in _ERRORS:
                raise OSError(_ERRORS[fault], os.strerror(_ERRORS[fault]), "somewhere")
            raise MemoryError if fault == "out of memory" else RuntimeError("x")
        return real(*arguments, **options)

    (tmp_path / "mine").write_text("x")
    (tmp_path / "count").mkdir()
    monkeypatch.setattr(owner, name, failing)
    _publish(tmp_path / "count")
    calls = count
    shutil.rmtree(tmp_path / "count")
    for wanted in range(calls):
        count = 0
        with pytest.raises(PublishError if fault in _ERRORS else (RuntimeError, MemoryError)) as caught:
            _publish(tmp_path)
        assert _tree(tmp_path) == {"mine": b"x"}, wanted
        if fault in _ERRORS:
            assert "\n  remedy: nothing was published" in str(caught.value)
            reason = "no space left on the disk" if fault in ("full disk", "quota") else os.strerror(_ERRORS[fault])
            assert reason in str(caught.value)
    assert calls == {"mkdir": 3, "open": 3, "fsync": 4, "rename": 1}[call]


_LIMITED = """
import resource, signal, sys
from pathlib import Path
from gemma4web.errors import PublishError
from gemma4web.export.publish import Publication
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    with Publication(Path(sys.argv[1])) as publication:
        publication.write("small", b"x" * 40_000)
        publication.write("large", b"x" * 60_000)
        publication.commit()
except PublishError as error:
    print(error)
"""


def test_write_that_the_kernel_refuses(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _LIMITED, str(tmp_path / "model")], capture_output=True, text=True,
                          timeout=120, check=True)
    assert "File too large\n  remedy: nothing was published" in done.stdout and _tree(tmp_path) == {}


def _race(base: str, number: int, gate: Any, results: Any) -> None:
    gate.wait()
    try:
        with Publication(Path(base) / "deep" / "model") as publication:
            for name, data in FILES.items():
                publication.write(name, data + b"%d" % number)
            publication.commit()
        results.put((number, ""))
    except PublishError as error:
        results.put((number, str(error)))


def test_two_publishers_at_once(tmp_path: Path) -> None:
    """X14, X16: six processes want one name, ten times: at most one gets it at a time, whole; the others are told why."""
    context = multiprocessing.get_context("fork")
    for attempt in range(10):
        base = tmp_path / str(attempt)
        base.mkdir()
        gate, results = context.Barrier(6), context.Queue()
        racers = [context.Process(target=_race, args=(str(base), number, gate, results)) for number in range(6)]
        for racer in racers:
            racer.start()
        found = dict(results.get(timeout=120) for _ in racers)
        for racer in racers:
            racer.join(timeout=120)
        winners = [number for number, message in found.items() if not message]
        assert len(winners) == 1, found
        assert _tree(base / "deep" / "model") == {name: data + b"%d" % winners[0] for name, data in FILES.items()}
        assert sorted(path.name for path in (base / "deep").iterdir()) == ["model"]
        for message in filter(None, found.values()):
            assert re.search(r"model exists\n  remedy: name another|left by an interrupted export\n  remedy: make sure", message)


def test_neighbours_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Two models into one new folder: the one that fails leaves the folder, because the other lies in it."""
    with Publication(tmp_path / "new" / "a") as first:
        first.write("x", b"1")
        with pytest.raises(RuntimeError), Publication(tmp_path / "new" / "b"):
            raise RuntimeError
        first.commit()
    assert _tree(tmp_path) == {"new": None, "new/a": None, "new/a/x": b"1"}


def test_publication_in_another_thread(tmp_path: Path) -> None:
    """Only the main thread may set signal handlers, and only it is interrupted."""
    worker = threading.Thread(target=_publish, args=(tmp_path,))
    worker.start()
    worker.join(timeout=60)
    assert _tree(tmp_path) == PUBLISHED


def test_destination_taken_by_an_empty_folder_at_the_last_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """X16: a rename would replace it without a word."""
    real = Publication._refuse_existing

    def late(self: Publication) -> None:
        real(self)
        if self.partial.exists():
            self.destination.mkdir()
            monkeypatch.setattr(Publication, "_refuse_existing", real)

    monkeypatch.setattr(Publication, "_refuse_existing", late)
    with pytest.raises(PublishError, match="model exists"):
        _publish(tmp_path)
    assert _tree(tmp_path) == {"deep": None, "deep/model": None}


def test_file_put_into_the_claimed_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.rename

    def rename(old: Path, new: Path) -> None:
        (new / "theirs").write_text("x")
        real(old, new)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(PublishError, match="Directory not empty"):
        _publish(tmp_path)
    assert _tree(tmp_path) == {"deep": None, "deep/model": None, "deep/model/theirs": b"x"}


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_foreign_things_under_our_names_stay(tmp_path: Path, kind: str) -> None:
    """X17: somebody replaced a file of ours; that is no longer ours to remove."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious")
    with pytest.raises(RuntimeError), Publication(tmp_path / "model") as publication:
        publication.write("a", b"1")
        publication.write("b", b"2")
        ours = publication.partial / "a"
        (tmp_path / "kept").hardlink_to(ours)  # else its inode may be given to the next file
        ours.unlink()
        if kind == "file":
            ours.write_text("theirs")
        elif kind == "folder":
            ours.mkdir()
        else:
            ours.symlink_to(elsewhere)
        raise RuntimeError
    assert os.path.lexists(tmp_path / ".model.partial" / "a") and not (tmp_path / ".model.partial" / "b").exists()
    assert elsewhere.read_text() == "precious"


def test_remedy_of_awkward_names(tmp_path: Path) -> None:
    """The command that is to be typed removes that folder, and only it."""
    out = tmp_path / "my model's; rm x"
    (tmp_path / f".{out.name}.partial").mkdir()
    (tmp_path / "x").mkdir()
    with pytest.raises(PublishError) as caught, Publication(out):
        pytest.fail("entered")
    subprocess.run(["sh", "-c", caught.value.advice.split("then: ")[1]], check=True, cwd=tmp_path, timeout=60)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_whole_export(micro_pair: tuple[Path, Path], tmp_path: Path, number: signal.Signals) -> None:
    """X14, X15, X17 with all that an export does, at points spread over it."""
    def run(out: Path) -> None:
        export(ExportOptions(target=micro_pair[0], assistant=micro_pair[1], out=out, weights="q4", context=16, max_shard_bytes=8000))

    with _at_line(-1, lambda: None) as seen:
        run(tmp_path / "count")
    ends = set()
    for step in range(0, len(seen) + 1, max(1, len(seen) // 10)):
        out = tmp_path / str(step) / "model"
        child = os.fork()
        if not child:
            with contextlib.suppress(KeyboardInterrupt), _at_line(step, lambda: os.kill(os.getpid(), number)):
                run(out)
            os._exit(0)
        os.waitpid(child, 0)
        ends.add(out.exists())
        if (out / destination.MODEL_FILE).exists():
            open_folder(out)
        elif number == signal.SIGINT:
            assert not out.parent.exists()
        elif out.parent.exists():
            assert not out.exists() or not any(out.iterdir())
    assert False in ends


def test_export_onto_a_full_disk(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The limit stands for the disk: the kernel refuses the write in the middle of the weights."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        try:
            export(ExportOptions(target=micro_pair[0], out=tmp_path / "deep" / "model", weights="f32", context=16))
        except PublishError as error:
            os._exit(42 if "File too large\n  remedy: nothing was published" in str(error) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert _tree(tmp_path) == {}
