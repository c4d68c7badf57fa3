"""What a run found: a record that is written as it goes, and tables for a person."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from tests.official.cases import TABLE, Case
from tests.official.comparison import F32_FACTOR, F32_FLOOR, NEAR_TIE, NEW_TOKENS, REFERENCE_TOLERANCE, Outcome
from tests.official.implementation import VERSIONS

from gemma4web.files import dump_json, write_atomic

SCHEMA: Final = 1
WHO: Final = ("official_f32", "reference", "reference_drafts", "browser_plain", "browser_mtp")
Entry = dict[str, Any]


def entry(case: Case, outcome: Outcome, *, seconds: float) -> Entry:
    """A case as the record has it."""
    differences = {form: {who: {"absolute": float(f"{found.absolute:.3g}"), "relative": float(f"{found.relative:.3g}"),
                                "rows": found.rows} for who, found in by_who.items()}
                   for form, by_who in outcome.differences.items()}
    return {"seed": case.seed, "values": case.values, "refused": case.refused, "differences": differences,
            "counts": outcome.counts, "failures": outcome.failures, "seconds": round(seconds, 1)}


def _counts(entries: list[Entry]) -> dict[str, int]:
    return dict(sum((Counter(one["counts"]) for one in entries), Counter()))


def _worst(entries: list[Entry]) -> dict[str, dict[str, float]]:
    """Worst relative difference by form and who."""
    worst: dict[str, dict[str, float]] = {}
    for found in entries:
        for form, by_who in found["differences"].items():
            for who, difference in by_who.items():
                own = worst.setdefault(form, {})
                own[who] = max(own.get(who, 0.0), difference["relative"])
    return worst


def by_feature(entries: list[Entry]) -> dict[str, dict[str, Any]]:
    """Of every value of the table: how many cases, the worst relative difference of the reference model and of the
    browser, and the browser's as a multiple of what the official f32 has in the same case and form."""
    features: dict[str, dict[str, Any]] = {}
    for name in TABLE:
        for one in entries:
            own = features.setdefault(name, {}).setdefault(
                str(one["values"][name]), {"cases": 0, "reference": 0.0, "browser": 0.0, "times_f32": 0.0})
            own["cases"] += 1
            for found in one["differences"].values():
                relative = {who: difference["relative"] for who, difference in found.items()}
                browser = max((value for who, value in relative.items() if who.startswith("browser")), default=0.0)
                own["reference"] = max(own["reference"], relative.get("reference", 0.0))
                own["browser"] = max(own["browser"], browser)
                own["times_f32"] = max(own["times_f32"], round(browser / max(relative["official_f32"], 1e-12), 2))
    return features


def write(path: Path, seeds: list[int], entries: list[Entry]) -> None:
    """The record of what is done so far, complete in itself."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, dump_json({
        "schema": SCHEMA, "versions": VERSIONS, "first_seed": seeds[0], "cases": len(seeds), "done": len(entries),
        "new_tokens": NEW_TOKENS,
        "tolerances": {"reference": REFERENCE_TOLERANCE, "f32_factor": F32_FACTOR, "f32_floor": F32_FLOOR, "near_tie": NEAR_TIE},
        "counts": _counts(entries), "failed": [one["seed"] for one in entries if one["failures"]], "worst": _worst(entries),
        "features": by_feature(entries), "entries": entries}))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1e}"


def show(console: Console, entries: list[Entry]) -> None:
    table = Table("form", *WHO, title="worst difference of logits from the official float64, relative to their range",
                  title_justify="left")
    for form, worst in _worst(entries).items():
        table.add_row(form, *(_figure(worst.get(who)) for who in WHO))
    console.print(table)
    features = Table("feature", "value", "cases", "reference", "browser", "times f32", title="worst by feature",
                     title_justify="left")
    for name, values in by_feature(entries).items():
        for number, (value, found) in enumerate(sorted(values.items())):
            browser = (_figure(found["browser"]), str(found["times_f32"])) if found["browser"] else ("-", "-")
            features.add_row("" if number else name, value, str(found["cases"]), _figure(found["reference"]), *browser)
    console.print(features)
    console.print(f"{len(entries)} cases, {sum(bool(one['failures']) for one in entries)} failed; "
                  + ", ".join(f"{name.replace('_', ' ')} {number}" for name, number in sorted(_counts(entries).items())))
