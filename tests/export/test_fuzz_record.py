"""The committed run over damaged and crafted checkpoints is whole and of today's changes; what it found is mended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fuzz_checkpoints as fuzz

from gemma4web.files import load_json

RECORD: dict[str, Any] = load_json(Path(__file__).resolve().parents[2] / "fixtures/records/fuzz-checkpoints.json", schema=fuzz.SCHEMA)


def _total(table: dict[str, dict[str, int]]) -> int:
    return sum(sum(counts.values()) for counts in table.values())


def test_nothing_is_missing() -> None:
    assert RECORD["first"] == 0
    assert RECORD["inputs"] == _total(RECORD["kinds"]) == _total(RECORD["roles"]) == _total(RECORD["readers"]) >= 20_000
    assert _total(RECORD["changes"]) >= RECORD["inputs"]
    for table in ("kinds", "roles", "readers", "changes"):
        for name, counts in RECORD[table].items():
            assert counts["refused"] > 0, name
            assert sum(count for outcome, count in counts.items() if outcome not in ("exported", "refused")) <= len(RECORD["findings"])


def test_what_was_found_is_mended() -> None:
    """The same inputs again, on the code of today."""
    report = fuzz.run(RECORD["seed"], [finding["number"] for finding in RECORD["findings"]])
    assert report.findings == []
    assert _total(report.outcomes) == len(RECORD["findings"]) == sum(counts["refused"] for counts in report.outcomes.values())


def test_limits_were_kept() -> None:
    """Those of today, or tighter ones."""
    assert RECORD["slowest"]["seconds"] <= RECORD["limits"]["seconds"] <= fuzz.MAX_SECONDS
    assert RECORD["largest"]["bytes"] <= RECORD["limits"]["bytes"] <= fuzz.MAX_BYTES
    assert RECORD["different_messages"] > 1000


def test_the_kinds_are_those_of_the_fuzzer() -> None:
    """Whoever adds a kind or a change runs it again: `python tests/export/fuzz_checkpoints.py`."""
    assert set(RECORD["kinds"]) == {kind for kind, _ in fuzz.KINDS}
    assert set(fuzz.run(RECORD["seed"], range(160)).changes) <= set(RECORD["changes"])
