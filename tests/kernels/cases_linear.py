"""Cases of the embedding, linear and gather_linear kernels, with plain and packed 4-bit weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from kernel_case import Array, Case, Expected, Rng, case

from gemma4web.oracle import ops


def f32(rng: Rng, *shape: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def packed(rng: Rng, rows: int, columns: int, *, group: int = 32, scale_dtype: npt.DTypeLike = np.float16,
           ) -> tuple[Array, Array]:
    """values u8[rows, columns/2] with every code, scales [rows, columns/group] of both signs."""
    values = rng.integers(0, 256, (rows, columns // 2), dtype=np.uint8)
    scales = (rng.uniform(0.001, 0.1, (rows, columns // group)) * rng.choice([-1.0, 1.0], (rows, columns // group)))
    return values, scales.astype(scale_dtype)


F32_SCALES: Final = 1
HAS_BIAS: Final = 2


def scale_params(table: Mapping[str, Array]) -> dict[str, int]:
    """What the params of a kernel say of the scales of a 4-bit weight; nothing of one that has none."""
    if "scales" not in table:
        return {}
    group = 2 * table["values"].shape[1] // table["scales"].shape[1]
    return {"group_shift": (group // 32).bit_length(), "flags": F32_SCALES * (table["scales"].dtype == np.float32)}


# Groups that are not the usual ones, and f32 scales.
FORMS: Final = ((32, np.float32), (64, np.float16), (64, np.float32), (128, np.float16), (128, np.float32))


def embedding_case(table: Mapping[str, Array], dense: Array, ids: npt.ArrayLike, scale: float, kernel: str) -> Case:
    index = np.asarray(ids, np.int32)
    scale = float(np.float32(scale))
    return Case(
        kernel=kernel, inputs={"ids": index, **table},
        outputs={"out": Expected(values=ops.embedding(index, dense, scale))},
        params={"rows": index.size, "k" if "scales" in table else "width": dense.shape[1], "vocab": dense.shape[0],
                "scale": scale, "first": 0, "count": dense.shape[0], **scale_params(table)},
        per_row=("ids", "out"),
    )


@case("embedding_f32: vocabulary edges and bad ids at prime sizes")
def embedding_edges(rng: Rng) -> Case:
    table = f32(rng, 97, 53)
    return embedding_case({"table": table}, table, [0, 96, 97, -1, 5, -2**31, 2**31 - 1], 53**0.5, "embedding_f32")


@case("embedding_f32: more groups than one dimension of the faked grid takes")
def embedding_many(rng: Rng) -> Case:
    table = f32(rng, 13, 101)
    return embedding_case({"table": table}, table, rng.integers(0, 13, 31), 1.0, "embedding_f32")


def embedding_part(whole: Case, before: Array, first: int, count: int) -> Case:
    """The rows of a part alone, over what the other parts left: ids of other parts, and where the part is not the first
    also those outside the vocabulary, keep what is there."""
    ids, vocab, wanted = whole.inputs["ids"], int(whole.params["vocab"]), whole.outputs["out"].values
    mine = (ids >= first) & (ids < first + count)
    if first == 0:
        mine |= (ids < 0) | (ids >= vocab)
    inputs = {name: array if name == "ids" else array[first:first + count] for name, array in whole.inputs.items()}
    return Case(kernel=whole.kernel, inputs=inputs,
                outputs={"out": Expected(values=np.where(mine[:, None], wanted, before), before=before)},
                params={**whole.params, "first": first, "count": count})


@case("embedding_f32: the first rows of a table")
def embedding_first_part(rng: Rng) -> Case:
    return embedding_part(embedding_edges(rng), f32(rng, 7, 53), 0, 5)


@case("embedding_f32: rows in the middle of a table")
def embedding_middle_part(rng: Rng) -> Case:
    return embedding_part(embedding_edges(rng), f32(rng, 7, 53), 5, 91)


@case("embedding_q4: the last rows of a table, from an odd one on")
def embedding_q4_last_part(rng: Rng) -> Case:
    return embedding_part(embedding_q4_edges(rng), f32(rng, 7, 96), 17, 80)


@case("embedding_q4: the first rows of a table")
def embedding_q4_first_part(rng: Rng) -> Case:
    return embedding_part(embedding_q4_edges(rng), f32(rng, 7, 96), 0, 17)


@case("embedding_q4: vocabulary edges and bad ids")
def embedding_q4_edges(rng: Rng) -> Case:
    values, scales = packed(rng, 97, 96)
    return embedding_case({"values": values, "scales": scales}, ops.unpack_q4(values, scales),
                          [0, 96, 97, -1, 17, -2**31, 2**31 - 1], 96**0.5, "embedding_q4")


@case("embedding_q4: one row of the PLE table of E2B (8960 columns)")
def embedding_q4_ple(rng: Rng) -> Case:
    values, scales = packed(rng, 7, 8960)
    return embedding_case({"values": values, "scales": scales}, ops.unpack_q4(values, scales), [6, 0, 3], 16.0,
                          "embedding_q4")


def linear_case(x: Array, weight: Mapping[str, Array], dense: Array, kernel: str) -> Case:
    return Case(
        kernel=kernel, inputs={"x": x, **weight},
        outputs={"out": Expected(values=ops.linear(x, dense), magnitude=ops.linear(np.abs(x), np.abs(dense)))},
        params={"rows": x.shape[0], "k": x.shape[1], "n": dense.shape[0], "first": 0, "stride": dense.shape[0],
                **scale_params(weight)},
        per_row=("x", "out"),
    )


def linear_part(rng: Rng, whole: Case, first: int, stride: int) -> Case:
    """The same product as columns ``first`` .. of rows of ``stride``; what other parts wrote beside them stays."""
    made, n = whole.outputs["out"], int(whole.params["n"])
    before = f32(rng, made.values.shape[0], stride)
    mine = slice(first, first + n)
    wanted, size = before.astype(np.float64), np.ones_like(before, np.float64)
    assert made.magnitude is not None
    wanted[:, mine], size[:, mine] = made.values, made.magnitude
    inputs = dict(whole.inputs)
    if int(whole.params.get("flags", 0)) & HAS_BIAS:
        inputs["bias"] = np.concatenate([f32(rng, first), inputs["bias"]])
    return replace(whole, inputs=inputs, outputs={"out": Expected(values=wanted, magnitude=size, before=before)},
                   params={**whole.params, "first": first, "stride": stride})


@case("linear_f32: columns in the middle of wider rows")
def linear_f32_part(rng: Rng) -> Case:
    weight = f32(rng, 31, 53)
    return linear_part(rng, linear_case(f32(rng, 3, 53), {"weight": weight}, weight, "linear_f32"), 17, 61)


@case("linear_q4: columns in the middle of wider rows")
def linear_q4_part(rng: Rng) -> Case:
    values, scales = packed(rng, 31, 96)
    whole = linear_case(f32(rng, 3, 96), {"values": values, "scales": scales}, ops.unpack_q4(values, scales), "linear_q4")
    return linear_part(rng, whole, 17, 61)


def add_linear_f32(rows: int, k: int, n: int) -> None:
    @case(f"linear_f32: {rows} x {k} by {n}")
    def build(rng: Rng) -> Case:
        weight = f32(rng, n, k)
        return linear_case(f32(rng, rows, k), {"weight": weight}, weight, "linear_f32")


# Every remainder of k by 4, primes, tails of the 64-wide workgroup, one real shape.
for shape in ((1, 1, 1), (3, 2, 5), (2, 3, 31), (1, 4, 63), (3, 5, 64), (7, 61, 65), (17, 31, 97), (16, 64, 128),
              (33, 47, 33), (15, 33, 32), (2, 1040, 63), (1, 1536, 256), (3, 257, 129)):
    add_linear_f32(*shape)


def add_linear_q4(rows: int, k: int, n: int) -> None:
    @case(f"linear_q4: {rows} x {k} by {n}")
    def build(rng: Rng) -> Case:
        values, scales = packed(rng, n, k)
        return linear_case(f32(rng, rows, k), {"values": values, "scales": scales}, ops.unpack_q4(values, scales),
                           "linear_q4")


# k of one, an odd and an even number of groups: a row of scales may begin in the middle of a word.
for shape in ((1, 32, 1), (3, 96, 31), (2, 64, 33), (7, 160, 65), (15, 32, 63), (17, 224, 96), (33, 96, 97),
              (16, 64, 64), (2, 1024, 32),
              (1, 1536, 2048), (3, 6144, 256), (3, 1056, 67)):
    add_linear_q4(*shape)


@case("linear_q4: one-hot activations show every weight and the nibble order")
def linear_q4_one_hot(rng: Rng) -> Case:
    values, scales = packed(rng, 17, 64)
    return linear_case(np.eye(64, dtype=np.float32), {"values": values, "scales": scales},
                       ops.unpack_q4(values, scales), "linear_q4")


@case("linear_q4: codes -8 and +7 alone")
def linear_q4_extremes(rng: Rng) -> Case:
    values = rng.choice(np.array([0x00, 0xFF, 0x0F, 0xF0], np.uint8), (19, 48))
    scales = np.full((19, 3), 0.5, np.float16)
    return linear_case(f32(rng, 2, 96), {"values": values, "scales": scales}, ops.unpack_q4(values, scales), "linear_q4")


def gather_case(y: Array, weight: Mapping[str, Array], dense: Array, ids: Any, kernel: str) -> Case:
    index = np.asarray(ids, np.int32)
    return Case(
        kernel=kernel, inputs={"y": y, **weight, "ids": index},
        outputs={"out": Expected(values=ops.gather_linear(y, dense, index),
                                 magnitude=ops.gather_linear(np.abs(y), np.abs(dense), index))},
        params={"count": index.size, "k": dense.shape[1], "rows": dense.shape[0], "first": 0,
                "held": dense.shape[0], **scale_params(weight)},
    )


BAD_IDS = (0, 96, 97, -1, -2**31, 2**31 - 1, 3, 3)


@case("gather_linear_f32: edges, repeats and bad ids at prime sizes")
def gather_linear_edges(rng: Rng) -> Case:
    weight = f32(rng, 97, 61)
    ids = [*BAD_IDS, *rng.integers(0, 97, 211)]
    return gather_case(f32(rng, 1, 61), {"weight": weight}, weight, ids, "gather_linear_f32")


def gather_part(rng: Rng, whole: Case, first: int, held: int) -> Case:
    """The rows of a part alone; scores of ids of other parts, and where it is not the first also of bad ones, stay."""
    ids, rows, made = whole.inputs["ids"], int(whole.params["rows"]), whole.outputs["out"]
    mine = (ids >= first) & (ids < first + held)
    if first == 0:
        mine |= (ids < 0) | (ids >= rows)
    before = f32(rng, *made.values.shape)
    inputs = {name: array[first:first + held] if name in ("weight", "values", "scales") else array
              for name, array in whole.inputs.items()}
    out = Expected(values=np.where(mine, made.values, before), before=before, magnitude=made.magnitude)
    return replace(whole, inputs=inputs, outputs={"out": out}, params={**whole.params, "first": first, "held": held})


@case("gather_linear_f32: rows in the middle")
def gather_middle_part(rng: Rng) -> Case:
    return gather_part(rng, gather_linear_edges(rng), 3, 90)


@case("gather_linear_f32: the first rows")
def gather_first_part(rng: Rng) -> Case:
    return gather_part(rng, gather_linear_edges(rng), 0, 40)


@case("gather_linear_q4: the last rows")
def gather_q4_last_part(rng: Rng) -> Case:
    return gather_part(rng, gather_linear_q4_edges(rng), 4, 93)


@case("gather_linear_q4: the first rows")
def gather_q4_first_part(rng: Rng) -> Case:
    return gather_part(rng, gather_linear_q4_edges(rng), 0, 4)


@case("gather_linear_f32: the 4096 candidates of the centroid head, width 256")
def gather_linear_head(rng: Rng) -> Case:
    weight = f32(rng, 4096, 256)
    return gather_case(f32(rng, 1, 256), {"weight": weight}, weight, rng.permutation(4096), "gather_linear_f32")


@case("gather_linear_q4: edges, repeats and bad ids")
def gather_linear_q4_edges(rng: Rng) -> Case:
    values, scales = packed(rng, 97, 96)
    ids = [*BAD_IDS, *rng.integers(0, 97, 211)]
    return gather_case(f32(rng, 1, 96), {"values": values, "scales": scales}, ops.unpack_q4(values, scales), ids,
                       "gather_linear_q4")


@case("gather_linear_q4: one-hot activation in a high nibble")
def gather_linear_q4_one_hot(rng: Rng) -> Case:
    values, scales = packed(rng, 131, 64)
    y = np.zeros((1, 64), np.float32)
    y[0, 2 * rng.integers(0, 32) + 1] = 1.0
    return gather_case(y, {"values": values, "scales": scales}, ops.unpack_q4(values, scales), np.arange(131),
                       "gather_linear_q4")


def add_form(group: int, scale_dtype: npt.DTypeLike) -> None:
    """The generic kernels of other groups and scales; three groups a row, so that rows of scales begin in half words."""
    form = f"groups of {group}, {np.dtype(scale_dtype).name} scales"

    def table(rng: Rng) -> tuple[dict[str, Array], Array]:
        values, scales = packed(rng, 97, 3 * group, group=group, scale_dtype=scale_dtype)
        return {"values": values, "scales": scales}, ops.unpack_q4(values, scales)

    @case(f"embedding_q4: {form}")
    def embedding(rng: Rng) -> Case:
        return embedding_case(*table(rng), [0, 96, 97, -1, 17], 2.0, "embedding_q4")

    @case(f"linear_q4: {form}")
    def linear(rng: Rng) -> Case:
        return linear_case(f32(rng, 5, 3 * group), *table(rng), "linear_q4")

    @case(f"gather_linear_q4: {form}")
    def gather_linear(rng: Rng) -> Case:
        return gather_case(f32(rng, 1, 3 * group), *table(rng), [*BAD_IDS, *range(97)], "gather_linear_q4")


for each in FORMS:
    add_form(*each)
