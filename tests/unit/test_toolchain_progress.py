"""What a set-up shows: plain lines without control characters, a moving bar on a terminal, and always an end."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from gemma4web.toolchain import progress as module
from gemma4web.toolchain.progress import (
    PlainProgress,
    Rate,
    TerminalProgress,
    counted,
    default_progress,
    folder_bytes,
    remaining,
    step,
)


def test_plain_lines_say_begin_share_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.01)
    stream = io.StringIO()
    seen: list[float] = []

    def measure() -> float:
        seen.append(2.5e6)
        return 2.5e6

    with step(PlainProgress(stream), "downloading", measure=measure, total=10e6):
        deadline = time.monotonic() + 30
        while not seen and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "downloading ..."
    assert "downloading ...  25% 2 of 10 MB" in lines
    assert lines[-1].startswith("downloading: done after ")
    assert "\x1b" not in stream.getvalue() and "\r" not in stream.getvalue()


def test_an_exact_total_comes_with_rate_and_remaining_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there at the beginning is done, but says nothing of the rate."""
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    stream = io.StringIO()
    began = time.monotonic()

    def measure() -> float:
        return 50e6 + 10e6 * (time.monotonic() - began)

    with step(PlainProgress(stream), "fetching", measure=measure, total=100e6, exact=True):
        time.sleep(0.5)
    assert re.search(r"fetching \.\.\.  5\d% 5\d of 100 MB, (9\.\d|10\.\d|11\.\d) MB/s, 0:0[45] left", stream.getvalue())


def test_counted_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of before count for the share, and not for the rate."""
    monkeypatch.setattr(module, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(module, "_POLL_S", 0.02)
    stream = io.StringIO()
    with counted(PlainProgress(stream), "fetching", 100_000_000, done_bytes=50_000_000) as through:
        for _ in range(25):
            through(200_000)
            time.sleep(0.02)
    shown = re.findall(r"(\d+)% (\d+) of 100 MB, (\d+\.\d) MB/s", stream.getvalue())
    assert shown and shown[-1][:2] in {(str(share), str(share)) for share in range(52, 56)}
    assert all(float(rate) <= 100 for _, _, rate in shown)


def test_the_rate_is_of_the_last_seconds() -> None:
    rate = Rate()
    assert rate.after(0, 1000) == 0
    assert rate.after(1, 1010) == 10
    for second in range(2, 40):
        found = rate.after(second, 1010 + 100 * second)
    assert found == 100
    assert rate.after(40, 0) == 0 and rate.after(41, 7) == 7


def test_remaining_time() -> None:
    assert [remaining(left, 2) for left in (1, 120, 7199, 7322)] == ["0:00 left", "1:00 left", "1:00:00 left", "1:01:01 left"]
    assert remaining(5, 0) == "" == remaining(5, -1)


def test_a_failed_step_says_so_and_raises_on() -> None:
    stream = io.StringIO()
    with pytest.raises(ValueError, match="broken"), step(PlainProgress(stream), "trying"):
        raise ValueError("broken")
    assert stream.getvalue().splitlines()[-1].startswith("trying: failed after ")


def test_a_terminal_gets_a_bar_and_paths_are_not_markup() -> None:
    stream = io.StringIO()
    progress = TerminalProgress(Console(file=stream, force_terminal=True, width=100))
    with step(progress, "patching"):
        progress.advance("patching", 0.5, "1 of 2 files")
    progress.line("/a/[red]/b")
    assert "/a/[red]/b" in stream.getvalue() and "patching: done after" in stream.getvalue()


def test_without_a_terminal_lines_are_plain() -> None:
    assert isinstance(default_progress(), PlainProgress)


def test_bytes_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one").write_bytes(bytes(100))
    (tmp_path / "two").write_bytes(bytes(11))
    (tmp_path / "link").symlink_to(tmp_path / "two")
    assert folder_bytes(tmp_path) == 111
    assert folder_bytes(tmp_path / "absent") == 0
