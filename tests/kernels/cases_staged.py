"""Cases of the kernels that guarded routes and certified ops use beside the generic ones of cases_index."""

from __future__ import annotations

from typing import Any

import numpy as np
from cases_index import NAN_WITH_SIGN, TINY
from cases_linear import f32
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import ARGMAX_PART, argmax_final, argmax_parts, order_key

from gemma4web.oracle import ops

STAGED = 2048


def staged_case(x: Any, k: int = 32) -> Case:
    row = np.asarray(x, np.float32).reshape(1, STAGED)
    values, indices = ops.top_k(row, k)
    return Case(kernel="topk_staged", inputs={"x": row},
                outputs={"values": Expected(values=values), "indices": Expected(values=indices)}, params={"k": k})


@case("topk_staged: random scores")
def staged_random(rng: Rng) -> Case:
    return staged_case(f32(rng, STAGED))


@case("topk_staged: one of a random row")
def staged_one(rng: Rng) -> Case:
    return staged_case(f32(rng, STAGED), 1)


@case("topk_staged: descending")
def staged_descending(rng: Rng) -> Case:
    return staged_case(np.arange(STAGED)[::-1])


@case("topk_staged: ascending")
def staged_ascending(rng: Rng) -> Case:
    return staged_case(np.arange(STAGED))


@case("topk_staged: all equal, of both zeros")
def staged_equal(rng: Rng) -> Case:
    return staged_case(np.where(rng.integers(0, 2, STAGED) == 0, np.float32(0.0), np.float32(-0.0)))


@case("topk_staged: the largest lie in half of the lanes, so that most of these are candidates")
def staged_crowded(rng: Rng) -> Case:
    x = f32(rng, STAGED)
    lane = np.arange(STAGED) // 4 % 64
    return staged_case(np.where(lane % 2 == 0, np.abs(x) + 10.0, x))


@case("topk_staged: half of the lanes hold all, the last of them only one")
def staged_most_candidates(rng: Rng) -> Case:
    x = np.abs(f32(rng, STAGED)) + 10.0
    lane = np.arange(STAGED) // 4 % 64
    x[lane >= 32] = -1.0
    x[lane == 31] = 5.0
    return staged_case(x)


@case("topk_staged: few values, so that ties cross lanes and the 32nd place")
def staged_ties(rng: Rng) -> Case:
    return staged_case(rng.integers(0, 60, STAGED))


@case("topk_staged: all in one lane")
def staged_one_lane(rng: Rng) -> Case:
    x = -np.abs(f32(rng, STAGED))
    lane = np.arange(STAGED) // 4 % 64
    x[lane == 63] += 50.0
    return staged_case(x)


@case("topk_staged: the 32 largest in as many lanes")
def staged_one_each(rng: Rng) -> Case:
    x = f32(rng, STAGED)
    x[4 * rng.permutation(64)[:32] + 256 * rng.integers(0, 8, 32)] += 100.0
    return staged_case(x)


@case("topk_staged: NaN of either sign first, infinities, subnormals, both zeros")
def staged_special(rng: Rng) -> Case:
    x = np.full(STAGED, -np.inf, np.float32)
    places = rng.permutation(STAGED)[:31]
    x[places] = np.array([np.nan, NAN_WITH_SIGN, np.inf, np.inf, 3e38, TINY, -TINY, 0.0, -0.0, -3e38] * 4)[:31]
    return staged_case(x)


@case("topk_staged: more NaN than are wanted")
def staged_nan(rng: Rng) -> Case:
    x = f32(rng, STAGED)
    x[rng.permutation(STAGED)[:77]] = np.nan
    return staged_case(x)


def parts_case(x: Array) -> Case:
    return Case(kernel="argmax_parts", inputs={"x": x}, outputs={"out": Expected(values=argmax_parts(x))},
                params={"rows": x.shape[0], "width": x.shape[1]}, per_row=("x", "out"))


@case("argmax_parts: three rows of the vocabulary")
def parts_vocabulary(rng: Rng) -> Case:
    x = f32(rng, 3, 262144)
    x[0, 0] = x[1, -1] = x[2, 131071] = 100.0
    return parts_case(x)


@case("argmax_parts: a prime width, whose last part is short")
def parts_tail(rng: Rng) -> Case:
    x = f32(rng, 5, 6151)
    x[:, -1] = 100.0
    return parts_case(x)


@case("argmax_parts: one column behind a whole part")
def parts_one_column(rng: Rng) -> Case:
    return parts_case(f32(rng, 2, ARGMAX_PART + 1))


@case("argmax_parts: ties, both zeros, NaN of either sign, infinities, subnormals")
def parts_special(rng: Rng) -> Case:
    x = np.full((8, 4099), -5.0, np.float32)
    x[0, [13, 270, 600, 3000]] = 1.0
    x[1, [269, 13, 2061]] = 1.0  # lane 13 in both parts
    x[2, 300:] = 1.0
    x[3, 40], x[3, 41] = -0.0, 0.0
    x[4, 700], x[4, 41] = 0.0, -0.0
    x[5, 4098], x[5, 5] = np.nan, NAN_WITH_SIGN
    x[6, :], x[6, 31] = -np.inf, -3e38
    x[7, :] = -1.0
    x[7, 300], x[7, 20] = TINY, 0.0
    return parts_case(x)


def final_case(x: Array) -> Case:
    best = argmax_parts(x)
    return Case(kernel="argmax_final", inputs={"best": best.astype(np.uint32)},
                outputs={"out": Expected(values=argmax_final(best))},
                params={"rows": x.shape[0], "parts": best.shape[1] // 2}, per_row=("best", "out"))


@case("argmax_final: three rows of the vocabulary")
def final_vocabulary(rng: Rng) -> Case:
    return final_case(f32(rng, 3, 262144))


@case("argmax_final: fewer parts than lanes, ties between parts, NaN in the last")
def final_few(rng: Rng) -> Case:
    x = np.full((5, 3 * ARGMAX_PART + 7), -2.0, np.float32)
    x[0, [ARGMAX_PART, 5000]] = 1.0
    x[1, [5000, 3]] = 1.0
    x[2, -1] = np.nan
    x[3, -1] = 1.0
    return final_case(x)


@case("argmax_final: a prime number of parts, ties in a lane and across lanes")
def final_ties(rng: Rng) -> Case:
    keys = order_key(rng.integers(0, 3, (7, 131)).astype(np.float32))
    # Indices that do not ascend with the parts: the lowest index wins wherever it stands.
    indices = np.stack([rng.permutation(2**20)[:131] for _ in range(7)]).astype(np.uint32)
    best = np.stack([keys, indices], axis=-1).reshape(7, -1)
    return Case(kernel="argmax_final", inputs={"best": best}, outputs={"out": Expected(values=argmax_final(best))},
                params={"rows": 7, "parts": 131}, per_row=("best", "out"))


def unique_case(template: Array, index: Any, source: Array) -> Case:
    where = np.asarray(index, np.int32)
    wanted = ops.scatter(template.reshape(1, -1), where, source)
    # Behind the pairs that count stand others, which must not be taken.
    taken = set(where.tolist())
    more = np.array([place for place in range(min(template.size, 2 * where.size)) if place not in taken][:7], np.int32)
    return Case(kernel="scatter_unique",
                inputs={"index": np.concatenate([where, more]),
                        "source": np.concatenate([source, np.full(more.size, 9.0, np.float32)])},
                outputs={"out": Expected(values=wanted, before=template)},
                params={"count": where.size, "size": template.size})


@case("scatter_unique: 4096 ids into the vocabulary")
def unique_vocabulary(rng: Rng) -> Case:
    return unique_case(np.full(262144, -7.0, np.float32), rng.permutation(262144)[:4096], f32(rng, 4096))


@case("scatter_unique: a prime count, both ends")
def unique_prime(rng: Rng) -> Case:
    index = np.concatenate([[0, 1008], 1 + rng.permutation(1007)[:129]])
    return unique_case(f32(rng, 1009), index, f32(rng, index.size))


@case("scatter_unique: out of range is dropped")
def unique_range(rng: Rng) -> Case:
    index = [0, 96, 97, -1, -2**31, 2**31 - 1, 5, 98]
    return unique_case(f32(rng, 97), index, f32(rng, len(index)))
