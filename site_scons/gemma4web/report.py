"""The report of a browser run: one HTML file that needs no network and no other file."""

from __future__ import annotations

from collections import Counter
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
    """Kernel times of one or several runs of a variant; ``title`` says of which."""

    title: str
    total_ms: float
    quantum_ns: float
    calls: int
    bars: tuple[Bar, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantCharts:
    """All prompts of a profile variant together, and each on its own where there are several."""

    variant: str
    whole: Chart
    single: tuple[Chart, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Plain and MTP of one prompt, wall builds only. ``ratio``: MTP's decode rate by plain's, None where one is 0."""

    prompt_id: str
    prompt_tokens: int
    plain: Run
    mtp: Run
    equal: bool
    ratio: float | None


def chart_of(title: str, profiles: Sequence[Profile]) -> Chart:
    """Kernels summed over ``profiles``, in order of their total time, longest first."""
    calls: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for kernel in (kernel for profile in profiles for kernel in profile.kernels):
        calls[kernel.name] += kernel.calls
        times[kernel.name] += kernel.total_ns
    total, longest = times.total(), max(times.values(), default=0)
    bars = tuple(
        Bar(name=name, calls=calls[name], total_ms=spent / 1e6, mean_us=spent / calls[name] / 1e3,
            share=100 * spent / total if total else 0.0, width=100 * spent / longest if longest else 0.0)
        for name, spent in sorted(times.items(), key=lambda item: (-item[1], item[0])))
    return Chart(title=title, total_ms=total / 1e6, quantum_ns=max((p.timestamp_quantum_ns for p in profiles), default=0.0),
                 calls=calls.total(), bars=bars)


def variant_charts(record: Record) -> list[VariantCharts]:
    """One entry for each profile variant that has a profile."""
    found: list[VariantCharts] = []
    for variant in (variant.name for variant in VARIANTS if variant.timing is Timing.PROFILE):
        runs = [(run.prompt_id, run.profile) for run in record.runs if run.variant == variant and run.profile is not None]
        if not runs:
            continue
        single = tuple(chart_of(prompt_id, [profile]) for prompt_id, profile in runs)
        title = f"{variant}, {runs[0][0]}" if len(runs) == 1 else f"{variant}, all {len(runs)} prompts"
        found.append(VariantCharts(variant=variant, whole=chart_of(title, [profile for _, profile in runs]),
                                   single=single if len(runs) > 1 else ()))
    return found


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
    return template(TEMPLATE).render(
        record=record, model=manifest["model"], provider=manifest["provider"], settings=settings, record_name=record_name,
        software_label=SOFTWARE_LABEL, comparisons=comparisons(record), answers=_answers(record.runs),
        charts=variant_charts(record),
        unprofiled=[run for run in record.runs if run.variant.endswith("-profile") and run.profile is None],
        mismatches=mtp_mismatches(record.runs), acceptance=acceptance, shown_text=shown_text,
    )


def template(name: str) -> jinja2.Template:
    """A template of web/templates; every value is escaped, and one that is missing is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True)
    return environment.get_template(name)


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
