"""The record of a browser run and the prompt list that it answers: their types, strict readers, and contradictions.

A record is evidence: it names the bundle by the hash of its manifest and the prompts by the hash of their file, and it is
refused on reading when it has an unknown schema, an unknown field, or says two things that cannot both be true (R3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from gemma4web.errors import RecordError, UsageError
from gemma4web.files import dump_json, sha256_bytes, write_atomic
from gemma4web.manifest import Sha256, strict_json
from gemma4web.variants import VARIANTS, Decoding, Timing

SCHEMA: Final = 1
DRAFTS_PER_ROUND: Final = 2
MOST_PROMPT_BYTES: Final = 64 << 20
"""Of a prompt list: a device without an end is not read to it."""
_PROMPTS_ADVICE: Final = 'a prompt file is a list of {"id": ..., "tokens": [...] or "text": ..., "max_new_tokens": ...}'

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Name = Annotated[str, msgspec.Meta(min_length=1)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=(1 << 31) - 1)]
"""The runtime's ids are i32: a larger one would become another token on the way."""
NewTokens = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]


class Browser(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    version: Name


class Adapter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``software``: an adapter without a GPU; its times say nothing about one (B6)."""

    vendor: str
    architecture: str
    software: bool
    features: list[str]
    limits: dict[str, int | float]


class Mtp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counters of one generation (R3): emitted = 1 + accepted + rounds - cut = tokens returned."""

    rounds: Count
    drafted: Count
    accepted: Count
    emitted: Count
    cut: Count


class KernelTime(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Name
    calls: Positive
    total_ns: Count


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timestamp_quantum_ns: Annotated[float, msgspec.Meta(ge=0)]
    kernels: list[KernelTime]


class Passes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``single``: every pass of the model was one compute pass (R11); else ``reason`` says why dispatches had their own."""

    single: bool
    reason: str


class Run(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt on one variant. ``decode_tokens_per_s``: tokens after the first by the time from first to last."""

    variant: Name
    prompt_id: Name
    prompt_tokens: Positive
    tokens: list[Count]
    text: str | None
    prefill_ms: Annotated[float, msgspec.Meta(ge=0)]
    decode_tokens_per_s: Annotated[float, msgspec.Meta(ge=0)]
    heap_bytes: Positive
    passes: Passes
    mtp: Mtp | None
    profile: Profile | None


class RefusedRoute(msgspec.Struct, frozen=True, kw_only=True):
    route: str
    reason: str


class RouteRange(msgspec.Struct, frozen=True, kw_only=True):
    """Row counts of a pass, both ends included, and the kernels that they take: a guarded route or "generic"."""

    first: int
    last: int
    route: str


class RouteSites(msgspec.Struct, frozen=True, kw_only=True):
    """Ops of one kind that choose alike. ``round``: what a speculative round takes; None without rounds."""

    op: str
    count: int
    rows: list[RouteRange]
    round: str | None = None


class FusedSites(msgspec.Struct, frozen=True, kw_only=True):
    """Chains of one fusion that choose alike; ``unfused`` where their ops run one by one."""

    fusion: str
    count: int
    rows: list[RouteRange]
    round: str | None = None


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """``mask``: bits of the routes that were allowed. ``refused``: those that were not taken anywhere, and why."""

    mask: int
    refused: list[RefusedRoute]
    sites: list[RouteSites]
    fusions: list[FusedSites] = msgspec.field(default_factory=list)


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1] = SCHEMA
    bundle_sha256: Sha256
    browser: Browser
    adapter: Adapter
    prompts_sha256: Sha256
    routes: dict[Name, Routes]
    runs: list[Run]


class Prompt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Exactly one of ``tokens`` and ``text`` is given."""

    id: Name
    max_new_tokens: NewTokens
    tokens: list[TokenId] | None = None
    text: str | None = None


class PromptList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``sha256`` is that of the file's bytes."""

    prompts: list[Prompt]
    sha256: Sha256


def contradictions(record: Record) -> list[str]:
    """Everything in ``record`` that cannot be true together; empty for an honest one."""
    faults: list[str] = []
    if record.adapter.architecture == "swiftshader" and not record.adapter.software:
        faults.append("the adapter is swiftshader and yet not labelled software")
    if not record.runs:
        faults.append("there is no run")
    seen: set[tuple[str, str]] = set()
    lengths: dict[str, int] = {}
    for run in record.runs:
        where = f"run {run.variant} of {run.prompt_id!r}"
        if (run.variant, run.prompt_id) in seen:
            faults.append(f"{where} is there twice")
        seen.add((run.variant, run.prompt_id))
        if lengths.setdefault(run.prompt_id, run.prompt_tokens) != run.prompt_tokens:
            faults.append(f"{where} has {run.prompt_tokens} prompt tokens, another variant {lengths[run.prompt_id]}")
        faults += [f"{where} {fault}" for fault in _run_contradictions(run)]
    return faults


def _run_contradictions(run: Run) -> list[str]:
    variant = next((variant for variant in VARIANTS if variant.name == run.variant), None)
    if variant is None:
        return ["names no variant"]
    faults: list[str] = []
    if not math.isfinite(run.prefill_ms) or not math.isfinite(run.decode_tokens_per_s):
        faults.append("has a time that is not finite")
    if len(run.tokens) < 2 and run.decode_tokens_per_s != 0:
        faults.append(f"has {len(run.tokens)} tokens and yet a decode rate")
    if run.passes.single == bool(run.passes.reason):
        faults.append("has single compute passes and a reason against them" if run.passes.single
                      else "lacks the reason for a compute pass a dispatch")
    if run.profile is not None and run.passes.single:
        faults.append("has times of each dispatch in one compute pass")
    if (run.mtp is not None) != (variant.decoding is Decoding.MTP):
        faults.append("has MTP counters on a plain variant" if run.mtp else "lacks its MTP counters")
    if run.profile is not None and variant.timing is not Timing.PROFILE:
        faults.append("has a profile from a wall build")
    if run.profile is not None:
        names = [kernel.name for kernel in run.profile.kernels]
        faults += [f"lists the kernel {name} twice" for name in sorted({n for n in names if names.count(n) > 1})]
    return faults + (_mtp_contradictions(run.mtp, len(run.tokens)) if run.mtp else [])


def _mtp_contradictions(mtp: Mtp, tokens: int) -> list[str]:
    faults: list[str] = []
    if mtp.drafted != DRAFTS_PER_ROUND * mtp.rounds:
        faults.append(f"has {mtp.drafted} drafted in {mtp.rounds} rounds, wanted {DRAFTS_PER_ROUND} a round")
    if mtp.accepted > mtp.drafted:
        faults.append(f"has {mtp.accepted} accepted of {mtp.drafted} drafted")
    if mtp.emitted != tokens:
        faults.append(f"has {mtp.emitted} emitted and {tokens} tokens")
    if mtp.emitted != 1 + mtp.accepted + mtp.rounds - mtp.cut:
        faults.append(f"breaks emitted = 1 + accepted + rounds - cut: {mtp.emitted} is not "
                      f"1 + {mtp.accepted} + {mtp.rounds} - {mtp.cut}")
    return faults


def parse_record(data: bytes, name: str) -> Record:
    """Reads a record. Raises RecordError for its form, an unknown schema, or a contradiction."""
    document = strict_json(data, name)
    if not isinstance(document, dict) or type(document.get("schema")) is not int or document["schema"] != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise RecordError(f"{name} has schema {found!r}, wanted {SCHEMA}", advice="make a new record: `scons run`")
    try:
        record = msgspec.convert(document, Record, strict=True)
    except msgspec.ValidationError as error:
        raise RecordError(f"{name} is no record: {error}", advice="make a new record: `scons run`") from None
    _refuse_contradictions(record, name)
    return record


def read_record(path: Path) -> Record:
    try:
        return parse_record(path.read_bytes(), str(path))
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}", advice="make a record: `scons run`") from None


def write_record(path: Path, record: Record) -> None:
    """Writes a record after the same checks as on reading."""
    _refuse_contradictions(record, str(path))
    document: dict[str, Any] = msgspec.to_builtins(record)
    write_atomic(path, dump_json(document))


def _refuse_contradictions(record: Record, name: str) -> None:
    if faults := contradictions(record):
        raise RecordError(f"{name} contradicts itself:\n  " + "\n  ".join(faults))


def read_prompts(path: Path) -> PromptList:
    """Reads a PROMPTS file. Raises UsageError with the entry at fault and what is wanted."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_PROMPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", advice=_PROMPTS_ADVICE) from None
    if len(data) > MOST_PROMPT_BYTES:
        raise UsageError(f"{path} has more than {MOST_PROMPT_BYTES} bytes", advice=_PROMPTS_ADVICE)
    return parse_prompts(data, str(path))


def parse_prompts(data: bytes, name: str) -> PromptList:
    """Checks a prompt list: ids unique, tokens or text but not both, 1 to 1,000,000 new tokens."""
    try:
        document = strict_json(data, name)
    except RecordError as error:
        raise UsageError(str(error.args[0]), advice=_PROMPTS_ADVICE) from None
    if not isinstance(document, list) or not document:
        found = "an empty list" if isinstance(document, list) else type(document).__name__
        raise UsageError(f"{name} holds {found}, wanted a list of prompts", advice=_PROMPTS_ADVICE)
    prompts = [_prompt(entry, f"{name}, entry {index}") for index, entry in enumerate(document, start=1)]
    for repeated in _repeated(prompt.id for prompt in prompts):
        raise UsageError(f"{name} uses the id {repeated!r} twice", advice="give every prompt its own id")
    return PromptList(prompts=prompts, sha256=sha256_bytes(data))


def _prompt(entry: object, where: str) -> Prompt:
    try:
        prompt = msgspec.convert(entry, Prompt, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {error}", advice=_PROMPTS_ADVICE) from None
    if (prompt.tokens is None) == (prompt.text is None):
        found = "neither" if prompt.tokens is None else "both"
        raise UsageError(f"{where} ({prompt.id!r}) has {found} of `tokens` and `text`, wanted one", advice=_PROMPTS_ADVICE)
    if prompt.tokens == [] or (prompt.text is not None and not prompt.text.strip()):
        raise UsageError(f"{where} ({prompt.id!r}) is empty", advice="give at least one token, or a text with words")
    return prompt


def _repeated(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
