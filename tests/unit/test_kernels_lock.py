"""kernels.lock.json: drift, missing and orphaned entries are named (O7, V11)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_kernels_expand import write
from test_kernels_parse import BODY, HEADER

from gemma4web.errors import KernelError
from gemma4web.files import dump_json
from gemma4web.kernels import check_lock, generate

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def locked(tmp_path: Path) -> tuple[Path, Path]:
    """A folder of two kernels, one with an include, and its lock."""
    folder = tmp_path / "kernels"
    write(folder, "include/part.wgsl", "fn part() -> f32 { return 1.0; }\n")
    write(folder, "one.wgsl", HEADER + "//! include: include/part.wgsl\n" + BODY)
    write(folder, "two.wgsl", HEADER + BODY)
    lock = folder / "kernels.lock.json"
    lock.write_text(dump_json(generate(folder).lock))
    return folder, lock


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_fresh_lock_passes(locked: tuple[Path, Path]) -> None:
    check_lock(*locked)


def test_committed_lock_is_that_of_the_sources() -> None:
    check_lock(ROOT / "runtime_cpp/kernels", ROOT / "runtime_cpp/kernels/kernels.lock.json")


@pytest.mark.parametrize(("name", "old", "new", "problem"), [
    ("two.wgsl", "x[id.x] *", "x[id.x] +", "changed: two (sha256)"),
    ("two.wgsl", "@workgroup_size(64)", "@workgroup_size(32)", "changed: two (sha256, workgroup)"),
    ("two.wgsl", "count: u32", "count: i32", "changed: two (params, sha256)"),
    ("two.wgsl", "> out: array<f32>", "> out: array<u32>", "changed: two (bindings, sha256)"),
    ("include/part.wgsl", "1.0", "2.0", "changed: one (sha256)"),
])
def test_drift_is_named(locked: tuple[Path, Path], name: str, old: str, new: str, problem: str) -> None:
    folder, lock = locked
    edit(folder / name, old, new)
    with pytest.raises(KernelError) as caught:
        check_lock(folder, lock)
    assert problem in str(caught.value)
    assert "scons kernels-lock" in caught.value.advice
    assert str(caught.value).count("changed:") == 1


def test_comments_and_blank_lines_are_no_drift(locked: tuple[Path, Path]) -> None:
    folder, lock = locked
    edit(folder / "two.wgsl", "\nstruct", "\n// why\n\n/* more */\nstruct")
    check_lock(folder, lock)


def test_missing_and_orphaned_entries(locked: tuple[Path, Path]) -> None:
    folder, lock = locked
    (folder / "two.wgsl").rename(folder / "three.wgsl")
    with pytest.raises(KernelError) as caught:
        check_lock(folder, lock)
    assert "missing: three has no entry" in str(caught.value)
    assert "orphaned: two has no kernel file" in str(caught.value)


@pytest.mark.parametrize("content", [None, "", "[]", '{"schema": 2, "kernels": {}}', '{"schema": 1}',
                                     '{"schema": 1, "kernels": {"one": 3, "two": 4}}'])
def test_unreadable_lock(locked: tuple[Path, Path], content: str | None) -> None:
    folder, lock = locked
    lock.unlink()
    if content is not None:
        lock.write_text(content)
    with pytest.raises(KernelError, match="remedy: look at the shader changes"):
        check_lock(folder, lock)


def test_lock_holds_what_a_review_needs(locked: tuple[Path, Path]) -> None:
    entry = json.loads(locked[1].read_text())["kernels"]["one"]
    assert entry.keys() == {"sha256", "workgroup", "workgroup_bytes", "bindings", "features", "params"}
    assert entry["bindings"] == ["x: read array<f32>", "out: read_write array<f32>", "params: uniform Params"]
    assert entry["params"] == ["count: u32", "scale: f32"]
