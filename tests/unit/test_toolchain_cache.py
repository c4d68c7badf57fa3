"""The shared cache: complete or made again, one maker at a time, in any folder (P08)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_tools import Lines

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.toolchain.cache import STAMP, default_cache, ensure_folder, locked, other_cache, read_stamp

INPUTS: dict[str, Any] = {"version": 1}

# Holds the lock of <cache>/thing while making it, and says when it does.
MAKER = """\
import sys, time
from pathlib import Path
from gemma4web.toolchain.cache import ensure_folder
from gemma4web.toolchain.progress import PlainProgress
cache, seconds = Path(sys.argv[1]), float(sys.argv[2])
def build(folder):
    (folder / "part").write_text("a")
    print("building", flush=True)
    time.sleep(seconds)
    (folder / "whole").write_text("b")
ensure_folder(cache / "thing", {"version": 1}, build, lambda final: {"by": "other"}, PlainProgress())
print("made", flush=True)
"""


def start_maker(cache: Path, seconds: float) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", MAKER, str(cache), str(seconds)], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None and process.stdout.readline() == "building\n"
    return process


def builder(calls: list[Path], *, fail: Exception | None = None) -> Callable[[Path], None]:
    def build(folder: Path) -> None:
        calls.append(folder)
        (folder / "whole").write_text("mine", encoding="utf-8")
        if fail is not None:
            raise fail
    return build


def facts(final: Path) -> dict[str, Any]:
    assert (final / "whole").is_file()
    return {"by": "me"}


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    calls: list[Path] = []
    folder = tmp_path / "käsche mit Leerzeichen" / "thing"
    for _ in range(2):
        assert ensure_folder(folder, INPUTS, builder(calls), facts, Lines()) == {"by": "me"}
    assert len(calls) == 1 and calls[0] != folder and not calls[0].exists()


def test_other_inputs_make_it_again(tmp_path: Path) -> None:
    calls: list[Path] = []
    ensure_folder(tmp_path / "thing", INPUTS, builder(calls), facts, Lines())
    ensure_folder(tmp_path / "thing", {"version": 2}, builder(calls), facts, Lines())
    assert len(calls) == 2
    assert read_stamp(tmp_path / "thing", INPUTS) is None


def test_a_failed_build_leaves_neither_folder_nor_rest(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="gone"):
        ensure_folder(tmp_path / "thing", INPUTS, builder([], fail=FetchError("gone")), facts, Lines())
    assert [path.name for path in tmp_path.iterdir()] == [".thing.lock"]
    assert ensure_folder(tmp_path / "thing", INPUTS, builder([]), facts, Lines()) == {"by": "me"}


def test_a_folder_that_failed_its_trial_is_made_again(tmp_path: Path) -> None:
    def reject(final: Path) -> dict[str, Any]:
        raise ToolchainError("does not run")

    with pytest.raises(ToolchainError, match="does not run"):
        ensure_folder(tmp_path / "thing", INPUTS, builder([]), reject, Lines())
    calls: list[Path] = []
    assert ensure_folder(tmp_path / "thing", INPUTS, builder(calls), facts, Lines()) == {"by": "me"}
    assert len(calls) == 1


def test_a_folder_without_a_readable_stamp_is_made_again(tmp_path: Path) -> None:
    ensure_folder(tmp_path / "thing", INPUTS, builder([]), facts, Lines())
    (tmp_path / "thing" / STAMP).write_text("{", encoding="utf-8")
    calls: list[Path] = []
    ensure_folder(tmp_path / "thing", INPUTS, builder(calls), facts, Lines())
    assert len(calls) == 1


def test_two_processes_wait_for_each_other(tmp_path: Path) -> None:
    """P08: the second one starts nothing, says that it waits, and uses what the first one made."""
    progress, calls = Lines(), list[Path]()
    with start_maker(tmp_path, 1.0) as other:
        assert ensure_folder(tmp_path / "thing", INPUTS, builder(calls), facts, progress) == {"by": "other"}
        assert other.wait(timeout=60) == 0
    assert calls == []
    assert [line for line in progress.lines if "waiting for it" in line] == [
        f"another set-up is making {tmp_path / 'thing'}; waiting for it"]


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_set_up_is_redone(tmp_path: Path, how: signal.Signals) -> None:
    """The kernel drops the lock of a killed process, and what it left half-made is removed."""
    with start_maker(tmp_path, 600.0) as other:
        os.kill(other.pid, how)
        assert other.wait(timeout=60) != 0
    assert not (tmp_path / "thing").exists()
    assert ensure_folder(tmp_path / "thing", INPUTS, builder([]), facts, Lines()) == {"by": "me"}
    assert sorted(path.name for path in tmp_path.iterdir()) == [".thing.lock", "thing"]
    assert sorted(path.name for path in (tmp_path / "thing").iterdir()) == [STAMP, "whole"]


def test_a_lock_that_never_gets_free_is_an_error(tmp_path: Path) -> None:
    with locked(tmp_path, "thing", Lines()):
        started = time.monotonic()
        with pytest.raises(ToolchainError, match="has held .*thing.lock for more than"), \
                locked(tmp_path, "thing", Lines(), timeout_s=0.3):
            raise AssertionError("the lock was given twice")
        assert time.monotonic() - started < 10


def test_a_lock_says_what_its_holder_does(tmp_path: Path) -> None:
    progress = Lines()
    with locked(tmp_path, "thing", progress, doing="export is fetching"), \
            pytest.raises(ToolchainError, match="another export has held") as caught, \
            locked(tmp_path, "thing", progress, timeout_s=0.3, doing="export is fetching", elsewhere="go elsewhere"):
        raise AssertionError("the lock was given twice")
    assert progress.lines == [f"another export is fetching {tmp_path / 'thing'}; waiting for it"]
    assert caught.value.advice == "wait for the other process, or go elsewhere"


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ToolchainError, match="cannot be written") as caught, locked(tmp_path / "file", "x", Lines()):
        raise AssertionError("a file served as a folder")
    assert "CACHE=" in caught.value.advice and "GEMMA4WEB_CACHE" not in caught.value.advice


def test_the_remedy_names_what_is_in_force(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where CACHE= names the folder, an environment variable changes nothing."""
    monkeypatch.setenv("GEMMA4WEB_CACHE", str(tmp_path / "default"))
    assert other_cache(tmp_path / "default") == "name another folder with CACHE= or the environment variable GEMMA4WEB_CACHE"
    assert other_cache(tmp_path / "named") == f"name another folder than {tmp_path / 'named'} with CACHE="


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMMA4WEB_CACHE", str(tmp_path / "named"))
    assert default_cache() == tmp_path / "named"
    monkeypatch.delenv("GEMMA4WEB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "gemma4web"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_cache() == tmp_path / ".cache" / "gemma4web"
