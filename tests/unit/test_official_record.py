"""The committed comparison with the official implementation is whole, of today's table, and within its own tolerances."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.official.cases import TABLE, TABLE_SHA256, draw_case

from gemma4web.files import load_json

RECORD: dict[str, Any] = load_json(Path(__file__).resolve().parents[2] / "fixtures/records/official.json", schema=1)


def test_nothing_is_missing_and_nothing_failed() -> None:
    assert RECORD["done"] == RECORD["wanted"] == len(RECORD["cases"]) >= 60
    assert RECORD["in_browser"] >= 16
    assert sum("browser_mtp" in case["relative"].get("q4", {}) for case in RECORD["cases"]) >= 12
    assert RECORD["counts"]["as_gguf"] == sum(case["counts"].get("as_gguf", 0) for case in RECORD["cases"]) >= 16
    assert RECORD["failed"] == [case["seed"] for case in RECORD["cases"] if case["failures"]] == []
    assert set(RECORD["features"]) == set(TABLE)


def test_the_cases_are_those_of_the_table() -> None:
    """Whoever adds to the table compares again: `python -m tests.official`."""
    assert RECORD["table_sha256"] == TABLE_SHA256
    for case in RECORD["cases"]:
        assert draw_case(case["seed"]).summary == case["model"]


def test_differences_are_within_the_tolerances() -> None:
    allowed = RECORD["tolerances"]
    for case in RECORD["cases"]:
        for found in case["relative"].values():
            f32 = max(allowed["f32_floor"], 1.05 * allowed["f32_factor"] * found["official_f32"])  # figures are rounded
            for who, value in found.items():
                assert value <= (allowed["reference"] if who.startswith("reference") else f32), (case["seed"], who)
