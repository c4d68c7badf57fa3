"""The report of a browser run: one HTML file that needs no network and no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2

from gemma4web.errors import UsageError
from gemma4web.files import write_atomic
from gemma4web.record import Profile, Record, Run
from gemma4web.summary import SOFTWARE_LABEL, acceptance, mtp_mismatches, shown_text
from gemma4web.variants import VARIANTS, Decoding, Timing

TEMPLATE: Final = "report.html.j2"
TEMPLATES: Final = Path(__file__).resolve().parents[2] / "web" / "templates"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One row of the kernel chart: ``share`` of the whole in percent, ``width`` in percent of the longest bar."""

    name: str
    calls: int
    total_ms: float
    mean_us: float
    share: float
    width: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    variant: str
    prompt_id: str
    total_ms: float
    quantum_ns: float
    calls: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plain and MTP of one prompt, wall builds only. ``ratio``: MTP's decode rate by plain's, None where one is 0."""

    prompt_id: str
    prompt_tokens: int
    plain: Run
    mtp: Run
    equal: bool
    ratio: float | None


def chart_of(run: Run, profile: Profile) -> Chart:
    """Kernels in order of their total time, longest first."""
    total = sum(kernel.total_ns for kernel in profile.kernels)
    longest = max((kernel.total_ns for kernel in profile.kernels), default=0)
    bars = tuple(
        Bar(name=kernel.name, calls=kernel.calls, total_ms=kernel.total_ns / 1e6,
            mean_us=kernel.total_ns / kernel.calls / 1e3, share=100 * kernel.total_ns / total if total else 0.0,
            width=100 * kernel.total_ns / longest if longest else 0.0)
        for kernel in sorted(profile.kernels, key=lambda kernel: (-kernel.total_ns, kernel.name)))
    return Chart(variant=run.variant, prompt_id=run.prompt_id, total_ms=total / 1e6,
                 quantum_ns=profile.timestamp_quantum_ns, calls=sum(bar.calls for bar in bars), bars=bars)


def comparisons(record: Record) -> list[Comparison]:
    """Prompts that ran on both wall variants; profile builds are no basis for a comparison of speed."""
    wall = {variant.decoding: variant.name for variant in VARIANTS if variant.timing is Timing.WALL}
    found: list[Comparison] = []
    for plain in (run for run in record.runs if run.variant == wall[Decoding.PLAIN]):
        mtp = next((run for run in record.runs
                    if run.variant == wall[Decoding.MTP] and run.prompt_id == plain.prompt_id), None)
        if mtp is None:
            continue
        both = plain.decode_tokens_per_s > 0 and mtp.decode_tokens_per_s > 0
        found.append(Comparison(
            prompt_id=plain.prompt_id, prompt_tokens=plain.prompt_tokens, plain=plain, mtp=mtp,
            equal=plain.tokens == mtp.tokens, ratio=mtp.decode_tokens_per_s / plain.decode_tokens_per_s if both else None))
    return found


def render_report(record: Record, *, manifest: Mapping[str, Any], settings: Mapping[str, str],
                  record_name: str = "run.json") -> str:
    """The report's HTML. ``manifest``: the bundle's; ``settings``: how it was run, shown as they are."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True)
    return environment.get_template(TEMPLATE).render(
        record=record, model=manifest["model"], provider=manifest["provider"], settings=settings, record_name=record_name,
        software_label=SOFTWARE_LABEL, comparisons=comparisons(record), answers=_answers(record.runs),
        charts=[chart_of(run, run.profile) for run in record.runs if run.profile is not None],
        unprofiled=[run for run in record.runs if run.variant.endswith("-profile") and run.profile is None],
        mismatches=mtp_mismatches(record.runs), acceptance=acceptance, shown_text=shown_text,
    )


def _answers(runs: Sequence[Run]) -> list[Run]:
    """One run a prompt, in the order of the prompts: their answers are equal, or `mismatches` says where not."""
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(run.prompt_id, run)
    return list(first.values())


def write_report(path: Path, record: Record, *, manifest: Mapping[str, Any], settings: Mapping[str, str],
                 record_name: str) -> None:
    """Raises UsageError when ``path`` cannot be written."""
    try:
        write_atomic(path, render_report(record, manifest=manifest, settings=settings, record_name=record_name))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", advice="name another file with --report") from None
