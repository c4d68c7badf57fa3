"""Drives the page over the rows: open, roofline, then for each row the checked runs, the verdict on them, the timing."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from gemma4web.chromium import launch_flags
from gemma4web.errors import BrowserError, Gemma4WebError
from gemma4web.kernel_bench.cases import Case, make_case
from gemma4web.kernel_bench.contenders import Result
from gemma4web.kernel_bench.dispatches import DeviceFacts
from gemma4web.kernel_bench.jobs import Entrant, copies_of, entrants_of, prepare_job, read_results
from gemma4web.kernel_bench.peers import NAME, Peer, peers_of
from gemma4web.kernel_bench.record import (
    Entry,
    KernelBench,
    Roofline,
    RowResult,
    bound_us,
    faulty,
    spread_of,
    with_ratios,
)
from gemma4web.kernel_bench.rows import QUICK_TOKENS, Row, choose_rows
from gemma4web.kernel_bench.session import BenchPage, RowError, bench_page
from gemma4web.kernels import Kernel
from gemma4web.launching import RunOptions
from gemma4web.record import Adapter, Browser

Told = Callable[[str], None]
QUICK_REPEATS: Final = 3
FULL_REPEATS: Final = 9
F16: Final = "shader-f16"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What to measure. ``quick`` and ``repeats`` None: by the adapter, quick on a software one. ``ort`` None: no peer."""

    rows: str = ""
    quick: bool | None = None
    repeats: int | None = None
    seed: int = 1
    ort: Path | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Progress:
    """What has been found so far; `record` makes the document of it at any time."""

    options: RunOptions
    plan: Plan
    opened: dict[str, Any] = field(default_factory=dict)
    roofline: Roofline | None = None
    rows: list[RowResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    failure: str = ""
    complete: bool = False

    @property
    def quick(self) -> bool:
        return bool(self.opened.get("software")) if self.plan.quick is None else self.plan.quick

    @property
    def repeats(self) -> int:
        return self.plan.repeats or (QUICK_REPEATS if self.quick else FULL_REPEATS)

    def record(self) -> KernelBench | None:
        """None before the page said what it runs on. Incomplete where the run broke off or anything failed."""
        if not self.opened:
            return None
        page = self.opened
        versions = dict(self.plan.versions) | ({NAME: page["ort"]} if page["ort"] else {})
        return KernelBench(
            complete=self.complete and not self.failure and not faulty(self.rows), failure=self.failure,
            adapter=Adapter(vendor=page["vendor"], architecture=page["architecture"], software=page["software"],
                            features=page["features"], limits=page["limits"]),
            browser=Browser(name="chromium", version=page["browserVersion"]),
            flags=launch_flags(gpu=self.options.gpu, extra=self.options.browser_flags), versions=versions,
            clock="gpu timestamps" if page["hasTimestamps"] else "wall", timestamp_quantum_ns=page["quantumNs"],
            seed=self.plan.seed, repeats=self.repeats, quick=self.quick, notes=self.notes, roofline=self.roofline,
            rows=self.rows)


def measure(plan: Plan, options: RunOptions, kernels: Mapping[str, Kernel], progress: Progress, tell: Told) -> None:
    """Fills ``progress`` as it goes, so that whatever ends the run loses nothing. Raises BrowserError."""
    # A pattern that matches nothing is refused before a browser is started.
    choose_rows(plan.rows, quick=plan.quick is True)
    start = time.monotonic()
    with bench_page(options, plan.ort) as page:
        try:
            progress.opened = opened = page.ask({"kind": "open", "peer": plan.ort is not None})
        except RowError as error:
            raise BrowserError(f"the page cannot start: {error.args[0]}", advice="see what the browser offers with "
                               "`python -m gemma4web preflight`" + (f", or leave {NAME} out with --no-peer" if plan.ort else "")
                               ) from None
        if options.gpu and opened["software"]:
            raise BrowserError(f"a GPU was asked for, but the adapter is {opened['vendor']} {opened['architecture']} (software)",
                               advice="check the GPU's driver and VK_DRIVER_FILES, or run without --gpu")
        facts = DeviceFacts(features=frozenset(opened["features"]), limits=opened["limits"],
                            subgroup_min=opened["subgroupMin"], subgroup_max=opened["subgroupMax"])
        progress.notes += _notes(progress)
        tell("roofline")
        try:
            progress.roofline = _roofline(page.ask({"kind": "roofline"}))
        except RowError as error:
            progress.failure = f"no roofline: {error}"
            tell(progress.failure)
        rows = choose_rows(plan.rows, quick=progress.quick)
        for number, row in enumerate(rows, start=1):
            tell(f"[{time.monotonic() - start:5.0f} s] {number}/{len(rows)} {row.name}")
            progress.rows.append(_row(row, page, progress, kernels, facts))
            for line in faulty(progress.rows[-1:]):
                tell(f"  {line}")
        progress.complete = True


def _notes(progress: Progress) -> list[str]:
    page = progress.opened
    notes = ["the peer's weights are GPU inputs, not initialisers: both sides read the same bytes"] if progress.plan.ort else [
        "measured without the peer"]
    notes.append("rows and ratios compare calls in passes of their own, on both sides; batched times are many dependent calls "
                 "in one pass, which the peer cannot be asked for")
    if progress.plan.ort:
        notes.append("beside a fused kernel the peer runs its operators one by one in one session; for cache pairs it has none "
                     "that writes in place")
    if not page["hasTimestamps"]:
        notes.append("no timestamp-query: all times are wall times of batches")
    if progress.quick:
        notes.append(f"quick: rows of more than {QUICK_TOKENS} tokens are left out")
    if F16 not in page["features"]:
        notes.append("the device has no shader-f16: the peer's f16 form is left out")
    return notes


def _roofline(found: Mapping[str, Any]) -> Roofline:
    return Roofline(dispatch_us=found["dispatchUs"], read_bytes_per_s=found["readBytesPerS"], read_groups=found["readGroups"],
                    copy_bytes_per_s=found["copyBytesPerS"], f32_flops=found["f32Flops"], f16_flops=found["f16Flops"])


@dataclass(frozen=True, kw_only=True, slots=True)
class _Prepared:
    """A contender of either side with what the page said of its checked run."""

    name: str
    side: Any
    stands_for: str
    f16: bool
    tolerance: float
    results: Mapping[str, Result]
    answer: Mapping[str, Any]


def _row(row: Row, page: BenchPage, progress: Progress, kernels: Mapping[str, Kernel], facts: DeviceFacts) -> RowResult:
    """A row that the page cannot do is a result with its failure; a page that is lost raises BrowserError."""
    entrants, left_out = entrants_of(row, kernels, facts)
    case = make_case(row, progress.plan.seed)
    copies = copies_of(case, software=progress.opened["software"])
    peers = [] if progress.plan.ort is None else peers_of(row, f16=F16 in facts.features)
    failure, entries, reference_us = "", list[Entry](), 0.0
    try:
        job, payloads = prepare_job(case, entrants, peers, kernels, copies=copies)
        answers = {one["name"]: one for one in page.ask(job, payloads)["contenders"]}
        prepared = _prepared(entrants, peers, answers)
        verdicts = {one.name: _verdict(one, page, case) for one in prepared}
        right = [name for name, (status, _, _) in verdicts.items() if status == "unmeasured"]
        measured = page.ask({"kind": "measure", "names": right, "repeats": progress.repeats,
                             # A GPU that idled needs a while to reach its clock.
                             "warmups": 0 if progress.opened["software"] else 1})
        times, reference_us = {one["name"]: one for one in measured["contenders"]}, measured["referenceUs"]
        entries = [_entry(one, verdicts[one.name], times.get(one.name), row, progress.roofline) for one in prepared]
    except RowError as error:
        failure = str(error)
    return RowResult(name=row.name, traffic_bytes=row.traffic_bytes(f16=False), flops=row.flops(), copies=copies,
                     checked=case.checked, failure=failure, reference_us=reference_us, left_out=left_out, entries=with_ratios(entries))


def _prepared(entrants: Sequence[Entrant], peers: Sequence[Peer], answers: Mapping[str, Any]) -> list[_Prepared]:
    ours = [_Prepared(name=one.contender.name, side="ours", stands_for=one.contender.stands_for, f16=one.contender.f16, tolerance=one.tolerance,
                      results=one.results, answer=answers[one.contender.name]) for one in entrants]
    return ours + [_Prepared(name=one.name, side="peer", stands_for="", f16=one.f16, tolerance=one.tolerance, results=one.results,
                             answer=answers[one.name]) for one in peers]


Verdict = tuple[str, str, float | None]


def _verdict(one: _Prepared, page: BenchPage, case: Case) -> Verdict:
    """(status, message, error) of the checked run; status "unmeasured" is right and still to be timed."""
    if "error" in one.answer:
        return "failed", str(one.answer["error"]), None
    found = page.outputs(one.name)
    if missing := set(one.results) - set(found):
        return "failed", f"the page sent no {', '.join(sorted(missing))}", None
    error = case.error(read_results(one.results, found, case))
    if math.isinf(error):
        return "wrong", "an output was left unwritten, is no number, or differs where it must be exact", None
    if error > one.tolerance:
        return "wrong", f"error {error:.2g}, tolerance {one.tolerance:.2g}", error
    return "unmeasured", "", error


def _entry(one: _Prepared, verdict: Verdict, times: Mapping[str, Any] | None, row: Row, roofline: Roofline | None) -> Entry:
    status: Any
    status, message, error = verdict
    if times is not None:
        status, message = ("failed", times["error"]) if "error" in times else ("ok", "")
    shown: Mapping[str, Any] = times if status == "ok" and times is not None else {"passUs": [], "batchUs": [], "wallUs": [], "calls": 0}
    traffic, bound = row.traffic_bytes(f16=one.f16), bound_us(row.traffic_bytes(f16=one.f16), row.flops(), roofline, f16=one.f16)
    entry = Entry(
        name=one.name, side=one.side, f16=one.f16, status=status, message=message, error=error, tolerance=one.tolerance,
        dispatches=one.answer.get("dispatches", 0), buffer_copies=one.answer.get("copies", 0), calls=shown["calls"],
        pass_us=spread_of(shown["passUs"]), batch_us=spread_of(shown["batchUs"]), wall_us=spread_of(shown["wallUs"]),
        bytes_per_s=0.0, flops_per_s=0.0, bound_us=bound, share_of_bound=0.0, ratios={}, stands_for=one.stands_for)
    if not (best := entry.best_us):
        return entry
    return msgspec.structs.replace(entry, bytes_per_s=1e6 * traffic / best, flops_per_s=1e6 * row.flops() / best,
                                   share_of_bound=bound / best)


def failure_of(error: BaseException) -> str:
    """What ended a run, in words for the record."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return "interrupted" if isinstance(error, KeyboardInterrupt) else "terminated"
    return str(error) if isinstance(error, Gemma4WebError) else f"{type(error).__name__}: {error}"
