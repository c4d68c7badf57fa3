"""Publication is all or nothing (X14 to X17, first form)."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemma4web.errors import PublishError
from gemma4web.export.publish import Publication


def _tree(folder: Path) -> dict[str, bytes | None]:
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_commit(tmp_path: Path) -> None:
    with Publication(tmp_path / "deep" / "model") as publication:
        publication.write("a", b"1")
        with publication.open("b") as stream:
            stream.write(b"2")
        assert not (tmp_path / "deep" / "model").exists()
        publication.commit()
    assert _tree(tmp_path) == {"deep": None, "deep/model": None, "deep/model/a": b"1", "deep/model/b": b"2"}


@pytest.mark.parametrize("kind", ["folder", "file", "link", "dangling"])
def test_existing_destination_is_refused_and_kept(tmp_path: Path, kind: str) -> None:
    """X16: whatever stands there, even a link to nothing."""
    out = tmp_path / "model"
    if kind == "folder":
        out.mkdir()
        (out / "mine").write_text("x")
    elif kind == "file":
        out.write_text("x")
    else:
        out.symlink_to(tmp_path if kind == "link" else tmp_path / "nowhere")
    before = os.lstat(out)
    with pytest.raises(PublishError, match=r"model exists\n  remedy: name another folder"), Publication(out):
        pytest.fail("entered")
    assert os.lstat(out).st_ino == before.st_ino and not (tmp_path / ".model.partial").exists()


def test_destination_that_appears_meanwhile(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="model exists"), Publication(tmp_path / "model") as publication:
        publication.write("a", b"1")
        (tmp_path / "model").mkdir()
        publication.commit()
    assert _tree(tmp_path) == {"model": None}


@pytest.mark.parametrize("failure", [RuntimeError("x"), KeyboardInterrupt(), PublishError("x")])
def test_failure_rolls_everything_back(tmp_path: Path, failure: BaseException) -> None:
    """X14: created parents too."""
    with pytest.raises(type(failure)), Publication(tmp_path / "deep" / "er" / "model") as publication:
        publication.write("a", b"1")
        with publication.open("b") as stream:
            stream.write(b"half")
            raise failure
    assert _tree(tmp_path) == {}


def test_leaving_without_commit_publishes_nothing(tmp_path: Path) -> None:
    with Publication(tmp_path / "model") as publication:
        publication.write("a", b"1")
    assert _tree(tmp_path) == {}


def test_foreign_file_is_preserved(tmp_path: Path) -> None:
    """X17: what somebody else put there stays; what was written goes."""
    with pytest.raises(RuntimeError), Publication(tmp_path / "model") as publication:
        publication.write("a", b"1")
        (publication.partial / "foreign").write_text("theirs")
        raise RuntimeError
    assert _tree(tmp_path) == {".model.partial": None, ".model.partial/foreign": b"theirs"}


def test_name_taken_by_a_foreign_file_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="File exists"), Publication(tmp_path / "model") as publication:
        (publication.partial / "a").write_text("theirs")
        publication.write("a", b"1")
    assert (tmp_path / ".model.partial" / "a").read_text() == "theirs"


def test_debris_is_recognised(tmp_path: Path) -> None:
    """X17: after a kill nothing could be cleaned up; the retry says what to do, and touches nothing."""
    debris = tmp_path / ".model.partial"
    debris.mkdir()
    (debris / "a").write_text("1")
    with pytest.raises(PublishError, match=r"left by an interrupted export(.|\n)*rm -r /.*/\.model\.partial"), \
            Publication(tmp_path / "model"):
        pytest.fail("entered")
    assert _tree(tmp_path) == {".model.partial": None, ".model.partial/a": b"1"}


def test_full_disk(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="no space left on the disk"), Publication(tmp_path / "model") as publication:
        publication.write("a", b"1")
        with publication.open("b"):
            raise OSError(errno.ENOSPC, "No space left on device", "b")
    assert _tree(tmp_path) == {}


def test_parent_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match="Not a directory"), Publication(tmp_path / "file" / "model"):
        pytest.fail("entered")
    assert _tree(tmp_path) == {"file": b""}


_INTERRUPTED = """
import sys, time
from pathlib import Path
from gemma4web.export.publish import Publication
with Publication(Path(sys.argv[1])) as publication:
    for number in range(1000):
        publication.write(f"f{number}", b"x" * 1000)
        print(number, flush=True)
        time.sleep(0.01)
"""


def test_sigint_rolls_back_and_propagates(tmp_path: Path) -> None:
    """X17: two interrupts in a row; the second does not stop the clean-up."""
    process = subprocess.Popen([sys.executable, "-c", _INTERRUPTED, str(tmp_path / "model")], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    assert _tree(tmp_path) == {}
