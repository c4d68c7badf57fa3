"""Cases of argmax, top-k, gathers, scatter, fill, concat and the other kernels that move or pick values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from cases_linear import f32
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import copy_words, offset_integers

from gemma4web.oracle import ops

NAN_WITH_SIGN = np.array([0xFFC00001], np.uint32).view(np.float32)[0]
TINY = np.float32(1e-45)  # the least subnormal


def argmax_case(x: Array) -> Case:
    return Case(kernel="argmax", inputs={"x": x}, outputs={"out": Expected(values=ops.argmax(x))},
                params={"rows": x.shape[0], "width": x.shape[1]}, per_row=("x", "out"))


@case("argmax: random rows at a prime width")
def argmax_random(rng: Rng) -> Case:
    return argmax_case(f32(rng, 7, 1009))


@case("argmax: the whole vocabulary, largest first, last, and in the middle")
def argmax_vocabulary(rng: Rng) -> Case:
    x = f32(rng, 3, 262144)
    x[0, 0] = x[1, -1] = x[2, 131071] = 100.0
    return argmax_case(x)


@case("argmax: ties go to the lowest index, also between lanes and between both zeros")
def argmax_ties(rng: Rng) -> Case:
    x = np.full((6, 777), -5.0, np.float32)
    x[0, [13, 270, 600]] = 1.0
    x[1, [269, 13]] = 1.0  # lane 13 twice
    x[2, 300:] = 1.0  # a later lane holds the lower index
    x[3, 40], x[3, 41] = -0.0, 0.0
    x[4, 700], x[4, 41] = 0.0, -0.0
    return argmax_case(x)


@case("argmax: NaN of either sign anywhere gives -1; infinities are numbers; subnormals count")
def argmax_nan(rng: Rng) -> Case:
    x = f32(rng, 8, 513)
    x[0, 0] = x[1, 512] = np.nan
    x[2, 200] = NAN_WITH_SIGN
    x[3, :] = np.nan
    x[4, :] = -np.inf
    x[5, 77] = np.inf
    x[6, :] = -1.0
    x[6, 300], x[6, 20] = TINY, 0.0
    x[7, :], x[7, 31] = -np.inf, -3e38
    return argmax_case(x)


@case("argmax: widths of one and of less than a workgroup")
def argmax_narrow(rng: Rng) -> Case:
    return argmax_case(f32(rng, 259, 1))


def topk_case(x: Any, k: int) -> Case:
    row = np.asarray(x, np.float32).reshape(1, -1)
    values, indices = ops.top_k(row, k)
    return Case(kernel="topk", inputs={"x": row},
                outputs={"values": Expected(values=values), "indices": Expected(values=indices)},
                params={"n": row.size, "k": k})


@case("topk: 32 of 2048")
def topk_centroids(rng: Rng) -> Case:
    return topk_case(f32(rng, 2048), 32)


@case("topk: all of a prime count")
def topk_all(rng: Rng) -> Case:
    return topk_case(f32(rng, 67), 67)


@case("topk: one of one")
def topk_one(rng: Rng) -> Case:
    return topk_case([3.0], 1)


@case("topk: ties across lanes and groups")
def topk_ties(rng: Rng) -> Case:
    return topk_case(rng.integers(0, 4, 211), 97)


@case("topk: NaN first, infinities, both zeros equal, subnormals")
def topk_special(rng: Rng) -> Case:
    x = [1.0, -0.0, np.nan, 0.0, -np.inf, np.inf, -0.0, TINY, -TINY, -1.0, np.nan, np.inf, 0.0]
    return topk_case(x, 13)


@case("gather_rows: edges, repeats and bad indices")
def gather_rows(rng: Rng) -> Case:
    table = rng.integers(-2**31, 2**31, (53, 37)).astype(np.int32)
    index = np.array([0, 52, 53, -1, 7, 7, -2**31, 2**31 - 1], np.int32)
    return gather_rows_case(table, index)


@case("gather_rows: 32 clusters of 128 token ids")
def gather_clusters(rng: Rng) -> Case:
    return gather_rows_case(rng.permutation(512 * 128).astype(np.int32).reshape(512, 128),
                            rng.permutation(512)[:32].astype(np.int32))


def gather_rows_case(table: Array, index: Array) -> Case:
    return Case(kernel="gather_rows", inputs={"table": table, "index": index},
                outputs={"out": Expected(values=ops.gather_rows(table, index))},
                params={"count": index.size, "width": table.shape[1], "table_rows": table.shape[0]})


def amin_case(x: Any) -> Case:
    row = np.asarray(x, np.float32).reshape(1, -1)
    return Case(kernel="amin", inputs={"x": row}, outputs={"out": Expected(values=ops.amin(row))},
                params={"count": row.size})


@case("amin: the 4096 candidates")
def amin_candidates(rng: Rng) -> Case:
    return amin_case(f32(rng, 4096))


@case("amin: fewer than a workgroup, all positive")
def amin_positive(rng: Rng) -> Case:
    return amin_case(np.abs(f32(rng, 67)) + 1.0)


@case("amin: last of a prime count")
def amin_last(rng: Rng) -> Case:
    x = f32(rng, 1009)
    x[-1] = -1e30
    return amin_case(x)


@case("amin: NaN wins")
def amin_nan(rng: Rng) -> Case:
    x = f32(rng, 300)
    x[271] = np.nan
    return amin_case(x)


@case("amin: minus infinity")
def amin_infinite(rng: Rng) -> Case:
    return amin_case([np.inf, 3.0, -np.inf, 0.0])


def add_fill(count: int) -> None:
    @case(f"fill: {count} elements")
    def build(rng: Rng) -> Case:
        scalar = f32(rng, 1, 1)
        return Case(kernel="fill", inputs={"scalar": scalar}, outputs={"out": Expected(values=ops.fill(scalar, count, -1.0))},
                    params={"count": count, "offset": -1.0})


# Less than a vector, every remainder, a thread's last vector, a workgroup and one more, a prime, the vocabulary.
for size in (1, 2, 3, 4, 7, 257, 1023, 4093, 4096, 4098, 3 * 4096 + 5, 10007, 262144):
    add_fill(size)


def scatter_case(template: Array, index: Any, source: Array) -> Case:
    where = np.asarray(index, np.int32)
    wanted = ops.scatter(template.reshape(1, -1), where, source)
    return Case(kernel="scatter", inputs={"index": where, "source": source},
                outputs={"out": Expected(values=wanted, before=template)},
                params={"count": where.size, "size": template.size})


@case("scatter: duplicates near and far, the last wins")
def scatter_duplicates(rng: Rng) -> Case:
    return scatter_case(f32(rng, 97), rng.integers(0, 31, 331), f32(rng, 331))


@case("scatter: out of range is dropped")
def scatter_range(rng: Rng) -> Case:
    index = [0, 96, 97, -1, -2**31, 2**31 - 1, 5, 97, 96]
    return scatter_case(f32(rng, 97), index, f32(rng, len(index)))


@case("scatter: 4096 unique ids into the vocabulary")
def scatter_vocabulary(rng: Rng) -> Case:
    return scatter_case(np.full(262144, -7.0, np.float32), rng.permutation(262144)[:4096], f32(rng, 4096))


INTEGER_EDGES: Final = (-2**31, -2**31 + 1, -65537, -1, 0, 1, 2, 65535, 2**31 - 2, 2**31 - 1)


def integers(rng: Rng, count: int) -> Array:
    return rng.integers(-2**31, 2**31, count).astype(np.int32)


def offset_case(x: Array, value: int, y: Array | None) -> Case:
    return Case(kernel="offset_integers", inputs={"x": x, "y": np.zeros(4, np.int32) if y is None else y},
                outputs={"out": Expected(values=offset_integers(x, value, y))},
                params={"count": x.size, "value": value, "others": 0 if y is None else y.size})


@case("offset_integers: wraps at both ends")
def add_scalar(rng: Rng) -> Case:
    return offset_case(np.concatenate([np.array(INTEGER_EDGES, np.int32), integers(rng, 93)]), 1, None)


@case("offset_integers: a negative value")
def add_negative(rng: Rng) -> Case:
    return offset_case(np.array([-2**31, 5, 2**31 - 1], np.int32), -7, None)


@case("offset_integers: every pair of edges subtracted")
def subtract_edges(rng: Rng) -> Case:
    a, b = np.meshgrid(np.array(INTEGER_EDGES, np.int32), np.array(INTEGER_EDGES, np.int32))
    return offset_case(a.reshape(-1), 0, b.reshape(-1))


@case("offset_integers: one integer subtracted from many")
def subtract_one(rng: Rng) -> Case:
    return offset_case(integers(rng, 131), 0, np.array([-2**31], np.int32))


@case("offset_integers: one from one, and a value")
def subtract_and_add(rng: Rng) -> Case:
    return offset_case(np.array([2**31 - 1], np.int32), 2**31 - 1, np.array([-2**31], np.int32))


def concat_case(a: Array, b: Array) -> Case:
    return Case(kernel="concat", inputs={"a": a, "b": b}, outputs={"out": Expected(values=ops.concat(a, b))},
                params={"rows": a.shape[0], "a_width": a.shape[1], "b_width": b.shape[1]}, per_row=("a", "b", "out"))


@case("concat: unequal prime widths, several rows")
def concat_rows(rng: Rng) -> Case:
    return concat_case(f32(rng, 5, 67), f32(rng, 5, 131))


@case("concat: the drafter's input of E2B")
def concat_draft(rng: Rng) -> Case:
    return concat_case(f32(rng, 1, 1536), f32(rng, 1, 1536))


def copy_case(rng: Rng, size: int, offset: int, count: int) -> Case:
    # Any bits, NaNs among them, must come through unchanged.
    source = rng.integers(0, 2**32, size, dtype=np.uint32)
    return Case(kernel="copy_words", inputs={"source": source},
                outputs={"out": Expected(values=copy_words(source, offset=offset, count=count))},
                params={"count": count, "source_offset": offset})


@case("copy_words: the last rows of a pass")
def copy_tail(rng: Rng) -> Case:
    return copy_case(rng, 7 * 211, 4 * 211, 3 * 211)


@case("copy_words: one word")
def copy_one(rng: Rng) -> Case:
    return copy_case(rng, 3, 2, 1)


@case("copy_words: everything at a prime count")
def copy_all(rng: Rng) -> Case:
    return copy_case(rng, 1009, 0, 1009)
