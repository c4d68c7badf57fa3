"""`scons run`, and what every command that runs a bundle shares: options, the bundle, the variants that it can run."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console

from gemma4web import manifest
from gemma4web.browser import Answer, no_bundle, run_bundle
from gemma4web.errors import BrowserError, Gemma4WebError, UsageError
from gemma4web.launching import DEADLINE_S, add_launch_options, console_of, run_options, settings_of
from gemma4web.record import PromptList, Record, read_prompts, write_record
from gemma4web.report import write_report
from gemma4web.summary import compares_mtp, dead_assistant, mtp_mismatches, print_summary
from gemma4web.variants import VARIANTS, Variant

DEFAULT_BUNDLE: Final = Path("build/bundle")
RECORDS: Final = Path("build/records")
REPORTS: Final = Path("build/report")
ENDINGS: Final = (Gemma4WebError, KeyboardInterrupt, SystemExit)
"""What may end a run in the middle: a fault, Ctrl-C, SIGTERM."""
ALL_VARIANTS: Final = ",".join(variant.name for variant in VARIANTS)


def choose_variants(names: str) -> tuple[Variant, ...]:
    """The variants of a comma list. Raises UsageError for an unknown or repeated one."""
    known = {variant.name: variant for variant in VARIANTS}
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in chosen if name not in known]
    if wrong or not chosen or len(set(chosen)) != len(chosen):
        raise UsageError(f"variants {names!r} are not a list without repetition of {', '.join(known)}",
                         advice="for example --variants plain-wall,mtp-wall")
    return tuple(known[name] for name in chosen)


def bundle_variants(named: str | None, default: str, methods: Collection[str]) -> tuple[tuple[Variant, ...], str]:
    """The variants to run of a model with these methods, and one line on what is left out, which may be empty.

    Variants that nobody named are left out when the model lacks their program; one that was named is refused.
    Raises UsageError.
    """
    wanted = choose_variants(default if named is None else named)
    found = tuple(variant for variant in wanted if variant.method in methods)
    if found == wanted:
        return wanted, ""
    lacking = [variant for variant in wanted if variant not in found]
    fault = (f"{', '.join(variant.name for variant in lacking)} cannot run: the bundle's model has no program "
             f"{lacking[0].method}, only {', '.join(sorted(methods))}")
    if named is not None or not found:
        raise UsageError(fault, advice="leave these variants out of --variants, or export the model with --assistant and "
                                       "stage it again")
    return found, f"{fault} (export with --assistant for it)"


def add_browser_options(parser: argparse.ArgumentParser) -> None:
    """The options that every command with a browser run has."""
    parser.add_argument("--bundle", type=Path, default=DEFAULT_BUNDLE, metavar="DIR", help=f"default: {DEFAULT_BUNDLE}")
    parser.add_argument("--prompts", type=Path, required=True,
                        help='JSON list of {"id", "tokens" or "text", "max_new_tokens"}')
    parser.add_argument("--routes", type=lambda text: int(text, 0), default=0, metavar="MASK",
                        help="bits of the kernel routes that may be taken (runtime_cpp/src/ops/route.h); default: those that "
                             "suit the adapter")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS", help="limit for each variant")
    add_launch_options(parser)


def add_output_options(parser: argparse.ArgumentParser, record: str, report: str) -> None:
    """Where a command writes; see `output_paths`."""
    parser.add_argument("--record", type=Path, metavar="FILE", help=f"default: {RECORDS}/{record}.json; another bundle "
                        f"than {DEFAULT_BUNDLE} has its name in it")
    parser.add_argument("--report", type=Path, metavar="FILE", help=f"default: {REPORTS}/{report}.html, likewise")


def output_paths(options: argparse.Namespace, record: str, report: str) -> tuple[Path, Path]:
    """The record and the report of this command: as named, else named after the bundle, so that none overwrites another's.

    build/bundle gives run.json, build/bundle-mine run-mine.json, any other folder run-<its name>.json.
    """
    bundle = options.bundle.absolute()
    suffix = "" if bundle == DEFAULT_BUNDLE.absolute() else "-" + (bundle.name.removeprefix("bundle-") or "bundle")
    return options.record or RECORDS / f"{record}{suffix}.json", options.report or REPORTS / f"{report}{suffix}.html"


def told_variants(options: argparse.Namespace, default: str, about: dict[str, Any],
                  console: Console) -> tuple[Variant, ...]:
    """The variants of this run; says what is left out. Raises UsageError."""
    variants, left_out = bundle_variants(options.variants, default, about["model"].get("methods", {}))
    if left_out:
        console.print(left_out, style="yellow", markup=False, soft_wrap=True)
    return variants


def bundle_manifest(bundle: Path) -> dict[str, Any]:
    """What a staged bundle says of itself. Raises UsageError where there is none, RecordError and PublishError."""
    if not (bundle / manifest.NAME).is_file():
        raise no_bundle(bundle)
    document: dict[str, Any] = msgspec.to_builtins(manifest.parse((bundle / manifest.NAME).read_bytes()))
    return document


def bundle_prompts(path: Path, model: dict[str, Any]) -> PromptList:
    """A prompt list whose ids and lengths the bundle's model takes, so that nothing is started for one that it does not.

    Texts are read by the page, before it generates anything. Raises UsageError naming the prompt.
    """
    prompts = read_prompts(path)
    vocab, context = model["vocab"], model["context"]
    most = model.get("architecture", {}).get("target", {}).get("max_positions")
    for prompt in prompts.prompts:
        ids = prompt.tokens or []
        wrong = next((token for token in ids if token >= vocab), None)
        if wrong is not None:
            raise UsageError(f"{path}, prompt {prompt.id!r}: it holds the token id {wrong}, this model knows 0 to {vocab - 1}",
                             advice="correct the id")
        if len(ids) > context:
            longer = f", or export the model with a larger --context{f', of at most {most}' if most else ''}"
            raise UsageError(f"{path}, prompt {prompt.id!r}: it has {len(ids)} tokens, this model takes at most {context}",
                             advice="shorten it" + (": more positions are beyond the model itself"
                                                    if most is not None and context >= most else longer))
    return prompts


def _print_answers(answers: Sequence[Answer], console: Console) -> None:
    """What was finished before a run failed: nothing else keeps it."""
    for answer in answers:
        found = answer.prompt
        text = found.text if found.text is not None else "ids " + " ".join(map(str, found.tokens))
        console.print(f"finished before that: {answer.variant.name}, {found.prompt_id}: {text}", markup=False, soft_wrap=True)


def check_mtp(record: Record, console: Console) -> None:
    """Raises BrowserError when variants gave different tokens for one prompt (R12); warns of a dead assistant."""
    if mismatches := mtp_mismatches(record.runs):
        raise BrowserError("MTP equals plain: NO\n  " + "\n  ".join(mismatches),
                           advice="greedy tokens must not depend on the variant: this is a fault of the runtime")
    if compares_mtp(record.runs):
        console.print("MTP equals plain: yes, token for token", style="green")
    if useless := dead_assistant(record.runs):
        console.print(f"warning: {useless}", style="yellow")


def main(argv: Sequence[str] | None = None) -> int:
    """`scons run`: generates with a staged bundle in headless Chromium, prints a table, writes a record and a report."""
    parser = argparse.ArgumentParser(prog="gemma4web run", description=main.__doc__)
    add_browser_options(parser)
    parser.add_argument("--variants", help="comma list (default: all four that the model has a program for)")
    add_output_options(parser, "run", "index")
    options = parser.parse_args(argv)
    console = console_of()
    about = bundle_manifest(options.bundle)
    variants = told_variants(options, ALL_VARIANTS, about, console)
    record_path, report_path = output_paths(options, "run", "index")
    prompts, answers = bundle_prompts(options.prompts, about["model"]), list[Answer]()
    try:
        record = run_bundle(options.bundle, prompts, variants, run_options(options),
                            progress=lambda line: console.print(line, style="dim", markup=False),
                            answered=answers.append)
    except ENDINGS:
        _print_answers(answers, console)
        raise
    print_summary(record, console)
    check_mtp(record, console)
    write_record(record_path, record)
    write_report(report_path, record, manifest=about, settings=settings_of(options), record_name=record_path.name)
    console.print(f"record {record_path}\nreport {report_path}", markup=False, soft_wrap=True)
    return 0
