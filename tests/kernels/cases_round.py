"""Cases of the kernels that carry a speculative round: pass rows, accept, seed state, the two commits."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases_linear import f32
from kernel_case import Case, Expected, Rng, case
from kernel_reference import commit_round, commit_step

from gemma4web.oracle import ops


def ints(*values: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.array(values, np.int32)


def add_pass_rows(flag: int, rows: int, capacity: int) -> None:
    @case(f"pass_rows: flag {flag}, {rows} rows of {capacity}")
    def build(rng: Rng) -> Case:
        ids, positions = rng.integers(0, 1000, capacity).astype(np.int32), np.arange(17, 17 + capacity, dtype=np.int32)
        wanted = ops.pass_rows(ids, positions, flag, 555, 777, rows=rows)
        return Case(kernel="pass_rows",
                    inputs={"ids": ids, "positions": positions, "flag": ints(flag), "draft_0": ints(555),
                            "draft_1": ints(777)},
                    outputs={"pass_ids": Expected(values=wanted[0]), "pass_positions": Expected(values=wanted[1])},
                    params={"rows": rows})


for form in ((0, 1, 7), (0, 67, 131), (0, 512, 512), (1, 3, 7), (1, 3, 1)):
    add_pass_rows(*form)


@case("pass_rows: rows beyond a round's three are void")
def pass_rows_void(rng: Rng) -> Case:
    return Case(kernel="pass_rows",
                inputs={"ids": ints(5), "positions": ints(9), "flag": ints(1), "draft_0": ints(6), "draft_1": ints(7)},
                outputs={"pass_ids": Expected(values=ints(5, 6, 7, -1, -1)),
                         "pass_positions": Expected(values=ints(9, 10, 11, -1, -1))}, params={"rows": 5})


def add_accept(name: str, flag: int, drafts: tuple[int, int], greedy: tuple[int, ...], match: int, bonus: int) -> None:
    """``match`` and ``bonus`` are written down here, so that the reference's own rule is tested too."""
    @case(f"accept: {name}")
    def build(rng: Rng) -> Case:
        candidates, target_greedy, counted, last = ops.accept(flag, *drafts, ints(*greedy))
        assert (counted.item(), last.item()) == (match, bonus)
        return Case(kernel="accept",
                    inputs={"flag": ints(flag), "draft_0": ints(drafts[0]), "draft_1": ints(drafts[1]),
                            "greedy": ints(*greedy)},
                    outputs={"candidates": Expected(values=candidates), "target_greedy": Expected(values=target_greedy),
                             "match_count": Expected(values=counted), "bonus": Expected(values=last)},
                    params={"rows": len(greedy)})


add_accept("no match", 1, (5, 6), (7, 8, 9), 0, 7)
add_accept("only the second draft matches", 1, (5, 8), (7, 8, 9), 0, 7)
add_accept("first matches", 1, (7, 6), (7, 8, 9), 1, 8)
add_accept("both match", 1, (7, 8), (7, 8, 9), 2, 9)
add_accept("shifted match is none", 1, (8, 9), (7, 8, 9), 0, 7)
add_accept("equal tokens everywhere", 1, (4, 4), (4, 4, 4), 2, 4)
add_accept("NaN in the third row", 1, (7, 8), (7, 8, -1), 2, -1)
add_accept("prefill", 0, (7, 8), (7,), 0, 7)
add_accept("prefill of several rows takes the last", 0, (3, 4), (3, 4, 5, 6), 0, 6)


def add_seed(flag: int, match: int, rows: int) -> None:
    @case(f"seed_write: flag {flag}, match {match} of {rows} rows")
    def build(rng: Rng) -> Case:
        h = f32(rng, rows, 131)
        seed, probe = ops.seed_write(flag, h, match)
        return Case(kernel="seed_write", inputs={"flag": ints(flag), "h": h, "match_count": ints(match)},
                    outputs={"seed": Expected(values=seed), "probe": Expected(values=probe)},
                    params={"rows": rows, "width": 131})


for form in ((1, 0, 3), (1, 1, 3), (1, 2, 3), (0, 0, 1), (0, 0, 7)):
    add_seed(*form)


def add_commit_round(flag: int, match: int, rows: int) -> None:
    @case(f"commit_round: flag {flag}, match {match}, {rows} rows")
    def build(rng: Rng) -> Case:
        ids, positions = ints(*range(100, 107)), ints(*range(41, 48))
        token, place = commit_round(flag=flag, match=match, bonus=55, positions=positions, donor_length=41, rows=rows)
        new_ids, new_positions = ids.copy(), positions.copy()
        new_ids[0], new_positions[0] = token, place
        return Case(kernel="commit_round", inputs={"match_count": ints(match), "bonus": ints(55)},
                    outputs={"ids": Expected(values=new_ids, before=ids),
                             "positions": Expected(values=new_positions, before=positions),
                             "flag": Expected(values=ints(1), before=ints(flag)),
                             "donor_length": Expected(values=ints(place), before=ints(41))},
                    params={"rows": rows})


for form in ((0, 0, 1), (0, 0, 7), (1, 0, 3), (1, 1, 3), (1, 2, 3)):
    add_commit_round(*form)


def add_commit_step(rows: int) -> None:
    @case(f"commit_step: {rows} rows")
    def build(rng: Rng) -> Case:
        ids, positions = ints(*range(100, 107)), ints(*range(41, 48))
        token, place = commit_step(next_token=77, positions=positions, rows=rows)
        new_ids, new_positions = ids.copy(), positions.copy()
        new_ids[0], new_positions[0] = token, place
        return Case(kernel="commit_step", inputs={"next_token": ints(77)},
                    outputs={"ids": Expected(values=new_ids, before=ids),
                             "positions": Expected(values=new_positions, before=positions)},
                    params={"rows": rows})


for count in (1, 7):
    add_commit_step(count)
