"""What the automation page answers for one variant (web/runner.js), as types; what is not read here is ignored."""

from __future__ import annotations

import msgspec

from gemma4web.record import Passes, Routes


class PageAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """What the runtime's `g4_open` answers; fields that a record does not hold are left out."""

    vendor: str
    architecture: str
    software: bool
    features: list[str]
    limits: dict[str, int | float]


class PageCounters(msgspec.Struct, frozen=True, kw_only=True):
    rounds: int
    drafted: int
    accepted: int
    emitted: int
    cut: int


class PageKernel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    calls: int
    total_ns: float


class PageProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The profile document of the C ABI. ``valid``: every timestamp pair was in order; ``fresh``: of this generation."""

    schema: int
    supported: bool
    fresh: bool = False
    valid: bool = False
    timestamp_quantum_ns: float = 0
    kernels: list[PageKernel] = []


class PagePrompt(msgspec.Struct, frozen=True, kw_only=True):
    prompt_id: str
    prompt_tokens: int
    tokens: list[int]
    text: str | None
    prefill_ms: float
    decode_tokens_per_s: float
    heap_bytes: int
    counters: PageCounters
    passes: Passes
    profile: PageProfile


class PageConditions(msgspec.Struct, frozen=True, kw_only=True):
    cross_origin_isolated: bool
    visibility: str
    timer_step_ms: float


class PageResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the automation page answers for one variant."""

    variant: str
    manifest_sha256: str
    adapter: PageAdapter
    routes: Routes
    load_ms: float
    prompts: list[PagePrompt]
    objects_after_unload: int
    conditions: PageConditions
