"""The decode loops over engines that follow a script: budgets, stop tokens, counters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gemma4web.oracle.decode import Counters, Generation, accepted_count, plain, speculative

TEXT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


class Scripted:
    """Continues TEXT; drafts are right as often as ``held`` says, round by round."""

    def __init__(self, held: Sequence[int] = ()) -> None:
        self._held, self.positions = list(held), list[int]()

    def _next(self, position: int) -> int:
        return TEXT[position + 1 - 3]

    def prefill(self, ids: Sequence[int]) -> int:
        return self._next(len(ids) - 1)

    def step(self, token: int, position: int) -> int:
        assert token == self._next(position - 1)
        self.positions.append(position)
        return self._next(position)

    def round(self, token: int, position: int, drafts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        assert token == self._next(position - 1)
        self.positions.append(position)
        greedy = tuple(self._next(position + row) for row in range(drafts + 1))
        held = self._held.pop(0)
        return tuple(greedy[row] if row < held else 99 for row in range(drafts)), greedy


def test_plain_stops_at_the_budget() -> None:
    assert plain(Scripted(), [1, 2, 3], 4).tokens == (10, 11, 12, 13)


@pytest.mark.parametrize("max_new", [1, 2])
def test_tiny_budgets(max_new: int) -> None:
    assert plain(Scripted(), [1, 2, 3], max_new).tokens == tuple(TEXT[:max_new])
    assert speculative(Scripted([2]), [1, 2, 3], max_new).tokens == tuple(TEXT[:max_new])


def test_stop_token_is_not_returned() -> None:
    engine = Scripted()
    assert plain(engine, [1, 2, 3], 9, stop_ids={12}).tokens == (10, 11) and engine.positions == [3, 4]
    assert plain(Scripted(), [1, 2, 3], 9, stop_ids={10}).tokens == ()


def test_every_accept_count() -> None:
    """R3: drafted = 2 rounds, emitted = 1 + sum(accepted + 1) - cut."""
    engine = Scripted([0, 1, 2])
    got = speculative(engine, [1, 2, 3], 7)
    assert got.tokens == tuple(TEXT[:7]) and engine.positions == [3, 4, 6]
    assert [r.accepted for r in got.rounds] == [0, 1, 2]
    assert [r.emitted for r in got.rounds] == [(11,), (12, 13), (14, 15, 16)]
    assert got.counters == Counters(rounds=3, drafted=6, accepted=3, emitted=7, cut=0)


def test_budget_cuts_without_another_round() -> None:
    """R6: accepted is counted before the cut."""
    got = speculative(Scripted([2, 2]), [1, 2, 3], 5)
    assert got.tokens == tuple(TEXT[:5])
    assert got.counters == Counters(rounds=2, drafted=4, accepted=4, emitted=5, cut=2)


def test_stop_token_inside_an_accepted_block() -> None:
    """R6: the text ends before it; later tokens of the block do not appear."""
    got = speculative(Scripted([2, 2]), [1, 2, 3], 9, stop_ids={12})
    assert got.tokens == (10, 11)
    assert got.counters == Counters(rounds=1, drafted=2, accepted=2, emitted=2, cut=2)


def test_shrinking_drafts() -> None:
    """The official implementation drafts fewer at the end of the budget."""
    got = speculative(Scripted([2, 1, 0]), [1, 2, 3], 7, shrink=True)
    assert [len(r.drafts) for r in got.rounds] == [2, 2, 0] and got.tokens == tuple(TEXT[:7])


@pytest.mark.parametrize(("drafts", "count"), [((), 0), ((5,), 1), ((5, 6), 2), ((5, 7), 1), ((4, 6), 0)])
def test_accepted_count(drafts: tuple[int, ...], count: int) -> None:
    assert accepted_count(drafts, (5, 6, 7)) == count


def test_counters_of_plain_text() -> None:
    assert Generation(tokens=(1, 2)).counters.drafted == 0
