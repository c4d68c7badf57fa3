"""Figures of the changelog are those of the record that it names (R13)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gemma4web.kernel_bench.record import Entry, KernelBench, RowResult

ROOT = Path(__file__).resolve().parents[2]
RECORD = "fixtures/records/bench-kernels-h200.json"


def test_every_figure_stands_in_the_record() -> None:
    record = msgspec.json.decode((ROOT / RECORD).read_bytes(), type=KernelBench)
    assert record.complete and not record.adapter.software and record.adapter.vendor == "nvidia"
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"`{RECORD}`" in text
    found = {cells[0]: cells[1:] for line in text.splitlines() if len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 6}
    assert set(found) >= {row.name for row in record.rows}
    for row in record.rows:
        ours, theirs = ({f16: fastest(row, side, f16=f16) for f16 in (False, True)} for side in ("ours", "peer"))
        times = [ours[False] and ours[False].pass_us, ours[False] and ours[False].batch_us, *(
            entry and entry.pass_us for entry in (ours[True], theirs[False], theirs[True]))]
        assert found[row.name] == ["-" if time is None else f"{time.median_us:.1f}" for time in times]


def fastest(row: RowResult, side: str, *, f16: bool) -> Entry | None:
    timed = [(entry.pass_us.median_us, entry) for entry in row.entries
             if entry.side == side and entry.f16 == f16 and entry.pass_us is not None]
    return min(timed, key=lambda pair: pair[0])[1] if timed else None


def test_the_record_was_taken_at_one_clock() -> None:
    """A GPU that fell to a lower clock would show in the reference beside each row."""
    record = msgspec.json.decode((ROOT / RECORD).read_bytes(), type=KernelBench)
    times = [row.reference_us for row in record.rows]
    assert max(times) < 1.1 * min(times)
