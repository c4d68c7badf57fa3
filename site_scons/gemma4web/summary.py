"""What a browser run says on the terminal: the table, the check that MTP changed nothing, and the generated text."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gemma4web.record import Record, Run

FEWEST_DRAFTS = 64
LEAST_ACCEPTED = 0.02
SOFTWARE_LABEL = "software adapter: times are no GPU results"


def adapter_line(record: Record) -> str:
    """Adapter and browser in words; a software adapter is labelled (B6)."""
    adapter = record.adapter
    name = " ".join(part for part in (adapter.vendor, adapter.architecture) if part) or "unnamed"
    label = f" ({SOFTWARE_LABEL})" if adapter.software else ""
    return f"{name}{label}, {record.browser.name} {record.browser.version}"


def acceptance(run: Run) -> str:
    """Accepted of drafted; empty for plain decoding, "none drafted" where no round ran."""
    if run.mtp is None:
        return ""
    if run.mtp.drafted == 0:
        return "none drafted"
    return f"{run.mtp.accepted}/{run.mtp.drafted} ({100 * run.mtp.accepted / run.mtp.drafted:.0f} %)"


def dead_assistant(runs: Sequence[Run]) -> str | None:
    """What is wrong when the assistant is of no use, though verification keeps the text right (P60).

    None when at least two of a hundred drafts were accepted, or when fewer than 64 were made, which says nothing.
    """
    counters = [run.mtp for run in runs if run.mtp is not None]
    drafted, accepted = sum(one.drafted for one in counters), sum(one.accepted for one in counters)
    if drafted < FEWEST_DRAFTS or accepted >= LEAST_ACCEPTED * drafted:
        return None
    return f"{accepted} of {drafted} drafts were accepted: this assistant is of no use to this model"


def mtp_mismatches(runs: Sequence[Run]) -> list[str]:
    """Where two variants gave different tokens for one prompt, with the first difference (R12). Empty is right."""
    first: dict[str, Run] = {}
    found: list[str] = []
    for run in runs:
        other = first.setdefault(run.prompt_id, run)
        if run.tokens == other.tokens:
            continue
        index = next((i for i, (a, b) in enumerate(zip(run.tokens, other.tokens, strict=False)) if a != b),
                     min(len(run.tokens), len(other.tokens)))
        found.append(f"{run.prompt_id!r}: {run.variant} and {other.variant} differ from token {index} on: "
                     f"{_token(run.tokens, index)} and {_token(other.tokens, index)}")
    return found


def _token(tokens: Sequence[int], index: int) -> str:
    return str(tokens[index]) if index < len(tokens) else "the end"


def shown_text(run: Run) -> str:
    """The generated text, or the ids where the model has no tokenizer."""
    return run.text if run.text is not None else "ids " + " ".join(map(str, run.tokens))


def compares_mtp(runs: Sequence[Run]) -> bool:
    """Whether some prompt ran both plainly and with MTP, so that there was something to compare."""
    plain = {run.prompt_id for run in runs if run.mtp is None}
    return any(run.prompt_id in plain for run in runs if run.mtp is not None)


def print_summary(record: Record, console: Console) -> None:
    """The table of variants and prompts, then each prompt's answer once."""
    table = Table(title=adapter_line(record), title_justify="left", title_style="bold")
    table.add_column("variant", no_wrap=True)
    table.add_column("prompt")
    for heading in ("tokens", "tokens/s", "prefill ms", "accepted", "heap MiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for run in record.runs:
        table.add_row(run.variant, escape(run.prompt_id), str(len(run.tokens)), f"{run.decode_tokens_per_s:.1f}",
                      f"{run.prefill_ms:.1f}", acceptance(run), f"{run.heap_bytes / 2**20:.1f}")
    console.print(table)
    answers: dict[str, Run] = {}
    for run in record.runs:
        answers.setdefault(run.prompt_id, run)
    for run in answers.values():
        console.print(f"[bold]{escape(run.prompt_id)}[/bold]: {escape(shown_text(run))}", soft_wrap=True)
