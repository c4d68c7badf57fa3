"""Greedy decoding over anything that runs passes: plain, and speculative with its counters.

The loops know nothing of the mathematics; the whole-model reference and the program interpreter both drive them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from gemma4web.program.ir import DRAFTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One speculative round: pending token at ``pos``, its drafts, how many held, and the tokens it yields (uncut)."""

    pos: int
    drafts: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """drafted = 2 * rounds; accepted before the cut; emitted = tokens returned;
    emitted + cut = 1 + sum(accepted + 1)."""

    rounds: int
    drafted: int
    accepted: int
    emitted: int
    cut: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    tokens: tuple[int, ...]
    rounds: tuple[Round, ...] = ()

    @property
    def counters(self) -> Counters:
        accepted = sum(round_.accepted for round_ in self.rounds)
        emitted = len(self.tokens)
        return Counters(rounds=len(self.rounds), drafted=sum(len(round_.drafts) for round_ in self.rounds),
                        accepted=accepted, emitted=emitted, cut=1 + accepted + len(self.rounds) - emitted)


class PlainEngine(Protocol):
    """``prefill`` starts over with a prompt and returns its first token; ``step`` puts a token at the next position."""

    def prefill(self, ids: Sequence[int]) -> int: ...

    def step(self, token: int, position: int) -> int: ...


class RoundEngine(Protocol):
    """``round`` drafts, verifies, and returns the drafts and the target's greedy tokens, one more than drafts."""

    def prefill(self, ids: Sequence[int]) -> int: ...

    def round(self, token: int, position: int, drafts: int) -> tuple[tuple[int, ...], tuple[int, ...]]: ...


def accepted_count(drafts: Sequence[int], greedy: Sequence[int]) -> int:
    """Length of the common run of drafts and the target's own choices."""
    return next((index for index, draft in enumerate(drafts) if draft != greedy[index]), len(drafts))


def _cut(tokens: list[int], stop_ids: Collection[int], limit: int) -> tuple[list[int], bool]:
    """Tokens before the first stop token and within the budget, and whether decoding ends there."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[:index][:limit], True
    return tokens[:limit], len(tokens) >= limit


def plain(engine: PlainEngine, prompt: Sequence[int], max_new: int, stop_ids: Collection[int] = ()) -> Generation:
    """Plain greedy decoding; a stop token ends the text and is not returned."""
    tokens, ended = _cut([engine.prefill(prompt)], stop_ids, max_new)
    while not ended:
        position = len(prompt) + len(tokens) - 1
        tokens, ended = _cut([*tokens, engine.step(tokens[-1], position)], stop_ids, max_new)
    return Generation(tokens=tuple(tokens))


def speculative(
    engine: RoundEngine, prompt: Sequence[int], max_new: int, stop_ids: Collection[int] = (), *, shrink: bool = False
) -> Generation:
    """Greedy decoding in rounds of two drafts. The budget cuts what is returned; with ``shrink`` the last rounds draft
    fewer instead, as the Hugging Face implementation does."""
    tokens, ended = _cut([engine.prefill(prompt)], stop_ids, max_new)
    rounds: list[Round] = []
    while not ended:
        position = len(prompt) + len(tokens) - 1
        count = min(DRAFTS, max_new - len(tokens) - 1) if shrink else DRAFTS
        drafts, greedy = engine.round(tokens[-1], position, count)
        accepted = accepted_count(drafts, greedy)
        emitted = (*drafts[:accepted], greedy[accepted])
        rounds.append(Round(pos=position, drafts=tuple(drafts), accepted=accepted, emitted=emitted))
        tokens, ended = _cut([*tokens, *emitted], stop_ids, max_new)
    return Generation(tokens=tuple(tokens), rounds=tuple(rounds))
