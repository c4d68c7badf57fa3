"""`scons bench`: a bundle measured over a prompt set, cold and warm apart, with median and spread (B5, P58).

A session is a fresh browser in which every variant generates for the whole list twice in one page: the first time is
cold, the second warm. Sessions take the variants in turned order, so that a machine that grows warm or busy favours none
of them. No ratio is claimed: both rates of one run stand side by side.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gemma4web.browser import Answer, run_bundle
from gemma4web.errors import BrowserError, Gemma4WebError, UsageError
from gemma4web.files import dump_json, sha256_file, write_atomic
from gemma4web.launching import RunOptions, console_of, run_options, settings_of
from gemma4web.manifest import NAME as MANIFEST
from gemma4web.manifest import Sha256
from gemma4web.record import Adapter, Browser, Name, PromptList, Record, Run
from gemma4web.report import template
from gemma4web.run_command import (
    ENDINGS,
    add_browser_options,
    add_output_options,
    bundle_manifest,
    bundle_prompts,
    check_mtp,
    output_paths,
    told_variants,
)
from gemma4web.summary import SOFTWARE_LABEL, adapter_line, dead_assistant
from gemma4web.variants import Variant

SCHEMA: Final = 1
TEMPLATE: Final = "bench.html.j2"
DEFAULT_VARIANTS: Final = "plain-wall,mtp-wall"
_PHASES: Final = ("cold", "warm")

Times = Annotated[list[Annotated[float, msgspec.Meta(ge=0)]], msgspec.Meta(min_length=1)]


class Samples(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value a session."""

    prefill_ms: Times
    decode_tokens_per_s: Times


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt on one variant; ``drafted`` and ``accepted`` are 0 in plain decoding."""

    variant: Name
    prompt_id: Name
    tokens: int
    drafted: int
    accepted: int
    cold: Samples
    warm: Samples


class Finished(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One generation of a bench that did not come to its end; ``session`` counts from 1."""

    session: int
    phase: Name
    variant: Name
    prompt_id: Name
    tokens: list[int]
    text: str | None
    prefill_ms: float
    decode_tokens_per_s: float
    drafted: int
    accepted: int


class IncompleteBench(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was finished of ``sessions`` that were wanted. No statistics: too little may be there for any, and tokens of
    the session that failed have not been compared between variants."""

    schema: Literal[1] = SCHEMA
    complete: Literal[False] = False
    ended_by: str
    bundle_sha256: Sha256
    browser: Browser
    adapter: Adapter
    prompts_sha256: Sha256
    sessions: int
    finished: list[Finished]


class Bench(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1] = SCHEMA
    bundle_sha256: Sha256
    browser: Browser
    adapter: Adapter
    prompts_sha256: Sha256
    orders: list[list[Name]]
    results: list[Result]


def order_of(variants: Sequence[Variant], session: int) -> list[Variant]:
    """The variants turned by one place a session, so that each stands in each place equally often."""
    turn = session % len(variants)
    return [*variants[turn:], *variants[:turn]]


def twice(prompts: PromptList) -> PromptList:
    """The list in both phases, one after the other; ids carry the phase."""
    return msgspec.structs.replace(prompts, prompts=[
        msgspec.structs.replace(prompt, id=f"{phase} {prompt.id}") for phase in _PHASES for prompt in prompts.prompts])


def measure(bundle: Path, prompts: PromptList, variants: Sequence[Variant], repeats: int, options: RunOptions, *,
            check: Callable[[Record], None], progress: Callable[[str], None] = lambda _: None,
            answered: Callable[[int, Answer], None] = lambda _, __: None) -> Bench:
    """Runs ``repeats`` sessions. ``check`` sees each session's record first and raises on one that is wrong; ``answered``
    is told the number of the session, from 1, and every answer as it comes."""
    sessions: list[Record] = []
    orders = [order_of(variants, session) for session in range(repeats)]
    for number, order in enumerate(orders, start=1):
        progress(f"session {number} of {repeats}: {', '.join(variant.name for variant in order)}")
        record = run_bundle(bundle, twice(prompts), order, options, progress=progress, answered=partial(answered, number))
        check(record)
        sessions.append(record)
    first = sessions[0]
    return Bench(
        bundle_sha256=first.bundle_sha256, browser=first.browser, adapter=first.adapter, prompts_sha256=prompts.sha256,
        orders=[[variant.name for variant in order] for order in orders],
        results=[_result(sessions, variant.name, prompt.id) for variant in variants for prompt in prompts.prompts])


def _result(sessions: Sequence[Record], variant: str, prompt_id: str) -> Result:
    runs = {phase: [_find(session, variant, f"{phase} {prompt_id}") for session in sessions] for phase in _PHASES}
    samples = {phase: Samples(prefill_ms=[run.prefill_ms for run in found],
                              decode_tokens_per_s=[run.decode_tokens_per_s for run in found])
               for phase, found in runs.items()}
    last = runs["warm"][-1]
    return Result(variant=variant, prompt_id=prompt_id, tokens=len(last.tokens), drafted=last.mtp.drafted if last.mtp else 0,
                  accepted=last.mtp.accepted if last.mtp else 0, cold=samples["cold"], warm=samples["warm"])


def _find(session: Record, variant: str, prompt_id: str) -> Run:
    return next(run for run in session.runs if (run.variant, run.prompt_id) == (variant, prompt_id))


def render_bench(bench: Bench, *, manifest: dict[str, Any], settings: dict[str, str], record_name: str) -> str:
    return template(TEMPLATE).render(
        bench=msgspec.to_builtins(bench), model=manifest["model"], settings=settings, record_name=record_name,
        software_label=SOFTWARE_LABEL, median=statistics.median)


def print_bench(bench: Bench, title: str, console: Console) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("variant", no_wrap=True)
    table.add_column("prompt")
    for heading in ("tokens", "warm tokens/s", "spread", "cold tokens/s", "warm prefill ms", "accepted"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in bench.results:
        warm, cold = row.warm.decode_tokens_per_s, row.cold.decode_tokens_per_s
        table.add_row(row.variant, escape(row.prompt_id), str(row.tokens), f"{statistics.median(warm):.1f}",
                      f"{min(warm):.1f} to {max(warm):.1f}", f"{statistics.median(cold):.1f}",
                      f"{statistics.median(row.warm.prefill_ms):.1f}",
                      f"{100 * row.accepted / row.drafted:.0f} %" if row.drafted else "")
    console.print(table)


def incomplete_path(record: Path) -> Path:
    """Where a bench that fails keeps what it finished: beside the record, which stays what an earlier one made it."""
    return record.with_name(f"{record.stem}.incomplete{record.suffix}")


def _finished(session: int, answer: Answer) -> Finished:
    found = answer.prompt
    phase, _, prompt_id = found.prompt_id.partition(" ")
    return Finished(session=session, phase=phase, variant=answer.variant.name, prompt_id=prompt_id, tokens=found.tokens,
                    text=found.text, prefill_ms=found.prefill_ms, decode_tokens_per_s=found.decode_tokens_per_s,
                    drafted=found.counters.drafted, accepted=found.counters.accepted)


def _keep(path: Path, ending: BaseException, answers: Sequence[tuple[int, Answer]], sessions: int, bundle_sha256: Sha256,
          prompts: PromptList, console: Console) -> None:
    """Writes and tells what was finished; nothing at all when that is nothing. The ending itself is the caller's."""
    if not answers:
        return
    fault = ending.args[0] if isinstance(ending, Gemma4WebError) else "a signal"
    first = answers[0][1]
    kept = IncompleteBench(ended_by=str(fault), bundle_sha256=bundle_sha256, browser=first.browser, adapter=first.adapter,
                           prompts_sha256=prompts.sha256, sessions=sessions,
                           finished=[_finished(session, answer) for session, answer in answers])
    for one in kept.finished:
        console.print(f"finished before that: session {one.session}, {one.variant}, {one.phase} {one.prompt_id}: "
                      f"{len(one.tokens)} tokens, {one.decode_tokens_per_s:.1f} tokens/s, prefill {one.prefill_ms:.1f} ms",
                      markup=False, soft_wrap=True)
    if kept.adapter.software:
        console.print(SOFTWARE_LABEL)
    try:
        write_atomic(path, dump_json(msgspec.to_builtins(kept)))
    except OSError as error:  # must not hide what ended the bench
        console.print(f"{path} cannot be written: {error.strerror}", style="yellow", markup=False, soft_wrap=True)
    else:
        console.print(f"incomplete record {path}", markup=False, soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """`scons bench`: measures a staged bundle over a prompt set, cold and warm apart, and writes a record and a report.

    A bench that fails or is ended keeps what it finished in <record>.incomplete.json, which replaces an earlier file of
    that name, and leaves an earlier record and report as they are.
    """
    parser = argparse.ArgumentParser(prog="gemma4web bench", description=main.__doc__)
    add_browser_options(parser)
    parser.add_argument("--variants", help=f"comma list (default: {DEFAULT_VARIANTS}, as far as the model has programs for them)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="sessions, each a fresh browser (default: 3)")
    add_output_options(parser, "bench", "bench")
    options = parser.parse_args(argv)
    if options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats} measures nothing", advice="use at least 1; 3 or more give a spread")
    console = console_of()
    about = bundle_manifest(options.bundle)
    variants = told_variants(options, DEFAULT_VARIANTS, about, console)
    record_path, report_path = output_paths(options, "bench", "bench")
    sessions: list[Record] = []

    def check(record: Record) -> None:
        check_mtp(record, console)
        if useless := dead_assistant(record.runs):
            raise BrowserError(f"{useless}; a measurement would say nothing of speculative decoding",
                               advice="export with the assistant that was trained for this model, or measure plain "
                                      "decoding alone: --variants plain-wall")
        sessions.append(record)

    prompts, answers = bundle_prompts(options.prompts, about["model"]), list[tuple[int, Answer]]()
    bundle_sha256 = sha256_file(options.bundle / MANIFEST)
    try:
        bench = measure(options.bundle, prompts, variants, options.repeats, run_options(options), check=check,
                        progress=lambda line: console.print(line, style="dim", markup=False),
                        answered=lambda session, answer: answers.append((session, answer)))
    except ENDINGS as ending:
        _keep(incomplete_path(record_path), ending, answers, options.repeats, bundle_sha256, prompts, console)
        raise
    print_bench(bench, adapter_line(sessions[0]), console)
    write_atomic(record_path, dump_json(msgspec.to_builtins(bench)))
    write_atomic(report_path, render_bench(bench, manifest=about, settings=settings_of(options),
                                           record_name=record_path.name))
    console.print(f"record {record_path}\nreport {report_path}", markup=False, soft_wrap=True)
    return 0
