"""Figures of the changelog are those of the record that it names (R13)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gemma4web.kernel_bench.record import KernelBench

ROOT = Path(__file__).resolve().parents[2]
RECORD = "fixtures/records/bench-kernels-h200.json"


def test_every_figure_stands_in_the_record() -> None:
    record = msgspec.json.decode((ROOT / RECORD).read_bytes(), type=KernelBench)
    assert record.complete and not record.adapter.software and record.adapter.vendor == "nvidia"
    text = (ROOT / "CHANGELOG.md").read_text()
    assert f"`{RECORD}`" in text
    found = {cells[0]: cells[1:] for line in text.splitlines() if len(cells := [cell.strip() for cell in line.split("|")[1:-1]]) == 5}
    assert set(found) >= {row.name for row in record.rows}
    for row in record.rows:
        ours = [entry for entry in row.entries if entry.side == "ours" and entry.pass_us is not None]
        best = min(ours, key=lambda entry: entry.pass_us.median_us if entry.pass_us else 0.0)
        peer = {entry.f16: entry.pass_us.median_us for entry in row.entries if entry.side == "peer" and entry.pass_us}
        assert best.pass_us is not None and best.batch_us is not None
        assert found[row.name] == [f"{value:.1f}" for value in (best.pass_us.median_us, best.batch_us.median_us, peer[False],
                                                                peer[True])]


def test_the_record_was_taken_at_one_clock() -> None:
    """A GPU that fell to a lower clock would show in the reference beside each row."""
    record = msgspec.json.decode((ROOT / RECORD).read_bytes(), type=KernelBench)
    times = [row.reference_us for row in record.rows]
    assert max(times) < 1.1 * min(times)
