"""What a run found: a record that is written as it goes, and tables for a person."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from tests.official.cases import TABLE, TABLE_SHA256, Case
from tests.official.comparison import (
    F32_FACTOR,
    F32_FLOOR,
    NEAR_TIE,
    NEW_TOKENS,
    REFERENCE_TOLERANCE,
    Difference,
    Outcome,
)
from tests.official.implementation import VERSIONS

from gemma4web.files import dump_json, write_atomic

SCHEMA: Final = 1
WHO: Final = ("official_f32", "reference", "reference_drafts", "browser_plain", "browser_mtp")


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """A case that is done."""

    case: Case
    outcome: Outcome
    seconds: float

    def relative(self, form: str) -> dict[str, float]:
        return {who: found.relative for who, found in self.outcome.differences[form].items()}


def _rounded(value: float) -> float | None:
    return float(f"{value:.2g}") if math.isfinite(value) else None


def _entry(result: Result) -> dict[str, Any]:
    outcome = result.outcome
    return {"seed": result.case.seed, "model": result.case.summary, "refused": result.case.refused,
            "relative": {form: {who: _rounded(value) for who, value in result.relative(form).items()}
                         for form in outcome.differences},
            "counts": outcome.counts, "failures": outcome.failures, "seconds": round(result.seconds, 1)}


def _counts(results: list[Result]) -> dict[str, int]:
    return dict(sum((Counter(result.outcome.counts) for result in results), Counter()))


def _worst(results: list[Result]) -> dict[str, dict[str, Difference]]:
    """Worst differences by form and who, and all rows that were compared."""
    worst: dict[str, dict[str, Difference]] = {}
    for result in results:
        for form, by_who in result.outcome.differences.items():
            for who, found in by_who.items():
                own = worst.setdefault(form, {}).setdefault(who, Difference())
                own.absolute, own.relative = max(own.absolute, found.absolute), max(own.relative, found.relative)
                own.rows += found.rows
    return worst


def by_feature(results: list[Result]) -> dict[str, dict[str, dict[str, float]]]:
    """Of every value of the table: how many cases, how many of them in the browser, the worst relative difference of the reference model and of the
    browser, and the browser's as a multiple of what the official f32 has in the same case and form."""
    features: dict[str, dict[str, dict[str, float]]] = {}
    for name, result in ((name, result) for name in TABLE for result in results):
        own = features.setdefault(name, {}).setdefault(
            str(result.case.values[name]), {"cases": 0, "in_browser": 0, "reference": 0.0, "browser": 0.0, "times_f32": 0.0})
        own["cases"] += 1
        own["in_browser"] += "browser_tokens" in result.outcome.counts
        for form in result.outcome.differences:
            relative = result.relative(form)
            browser = max((value for who, value in relative.items() if who.startswith("browser")), default=0.0)
            own["reference"] = max(own["reference"], relative.get("reference", 0.0))
            own["browser"] = max(own["browser"], browser)
            own["times_f32"] = max(own["times_f32"], browser / max(relative["official_f32"], 1e-12))
    return features


def write(path: Path, results: list[Result], *, wanted: int) -> None:
    """The record of what is done so far of ``wanted`` cases, complete in itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    worst = {form: {who: {"absolute": _rounded(found.absolute), "relative": _rounded(found.relative), "rows": found.rows}
                    for who, found in by_who.items()} for form, by_who in _worst(results).items()}
    features = {name: {value: {key: _rounded(figure) for key, figure in found.items()} for value, found in values.items()}
                for name, values in by_feature(results).items()}
    write_atomic(path, dump_json({
        "schema": SCHEMA, "versions": VERSIONS, "table_sha256": TABLE_SHA256, "wanted": wanted, "done": len(results),
        "in_browser": sum("browser_tokens" in result.outcome.counts for result in results),
        "new_tokens": NEW_TOKENS,
        "tolerances": {"reference": REFERENCE_TOLERANCE, "f32_factor": F32_FACTOR, "f32_floor": F32_FLOOR, "near_tie": NEAR_TIE},
        "counts": _counts(results), "failed": [result.case.seed for result in results if result.outcome.failures],
        "worst": worst, "features": features, "cases": [_entry(result) for result in results]}))


def _figure(value: float) -> str:
    return f"{value:.1e}" if value else "-"


def show(console: Console, results: list[Result]) -> None:
    """Tables of what is worst, and one line of counts."""
    table = Table("form", *WHO, title="worst difference of logits from the official float64, relative to their range",
                  title_justify="left")
    for form, worst in _worst(results).items():
        table.add_row(form, *(_figure(worst[who].relative) if who in worst else "-" for who in WHO))
    console.print(table)
    features = Table("feature", "value", "cases", "in browser", "reference", "browser", "times f32", title="worst by feature",
                     title_justify="left")
    for name, values in by_feature(results).items():
        for number, (value, found) in enumerate(sorted(values.items())):
            features.add_row("" if number else name, value, str(found["cases"]), str(found["in_browser"]), _figure(found["reference"]),
                             _figure(found["browser"]), f"{found['times_f32']:.2f}" if found["browser"] else "-")
    console.print(features)
    counts = ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in sorted(_counts(results).items()))
    console.print(f"{len(results)} cases, {sum(bool(result.outcome.failures) for result in results)} failed; {counts}")
