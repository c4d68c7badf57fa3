"""Cases of the guarded 4-bit linear kernels: one and three rows, tiles; groups of 32, 64 and 128, f16 and f32 scales."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from cases_linear import F32_SCALES, HAS_BIAS, f32, linear_part
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import sum_parts

from gemma4web.oracle import ops


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """values u8[n, k/2], scales f16 or f32 [n, k/group], bias f32[n] or None."""

    values: Array
    scales: Array
    bias: Array | None
    group: int

    @property
    def dense(self) -> Array:
        return ops.unpack_q4(self.values, self.scales)

    @property
    def flags(self) -> int:
        return F32_SCALES * (self.scales.dtype == np.float32) | HAS_BIAS * (self.bias is not None)


def random_weight(rng: Rng, n: int, k: int, *, group: int = 32, wide_scales: bool = False, bias: bool = False) -> Weight:
    scales = rng.uniform(0.001, 0.1, (n, k // group)) * rng.choice([-1.0, 1.0], (n, k // group))
    return Weight(values=rng.integers(0, 256, (n, k // 2), dtype=np.uint8), group=group, bias=f32(rng, n) if bias else None,
                  scales=scales.astype(np.float32 if wide_scales else np.float16))


def linear_route_case(kernel: str, x: Array, weight: Weight, **more: int) -> Case:
    """``more``: params beside shape, group and flags. Those of one and three rows write all columns of out."""
    n, k = weight.dense.shape
    bias = np.zeros(4, np.float32) if weight.bias is None else weight.bias
    added = 0.0 if weight.bias is None else weight.bias.astype(np.float64)
    if kernel.startswith(("linear_q4_m1", "linear_q4_m3", "linear_q4_dp4a")):
        more |= {"first": 0, "stride": n}
    return Case(
        kernel=kernel, inputs={"x": x, "values": weight.values, "scales": weight.scales, "bias": bias},
        outputs={"out": Expected(values=ops.linear(x, weight.dense) + added,
                                 magnitude=ops.linear(np.abs(x), np.abs(weight.dense)) + np.abs(added))},
        params={"k": k, "n": n, "group_shift": (weight.group // 32).bit_length(), "flags": weight.flags, **more},
    )


FEW_ROWS: Final = {"linear_q4_m1": 1, "linear_q4_m3": 3, "linear_q4_m1_subgroup": 1, "linear_q4_m3_subgroup": 3}


def few_rows_case(rng: Rng, kernel: str, k: int, n: int, lanes: int, weight: Weight | None = None) -> Case:
    """Subgroups of four lanes, the fewest that an adapter has, so that the same case runs on every one."""
    made = weight or random_weight(rng, n, k)
    return linear_route_case(kernel, f32(rng, FEW_ROWS[kernel], k), made, lanes=lanes,
                             subgroup=4 if kernel.endswith("subgroup") else 1)


def add_few_rows(kernel: str, k: int, n: int, lanes: int) -> None:
    @case(f"{kernel}: {k} to {n} by {lanes} lanes")
    def build(rng: Rng) -> Case:
        return few_rows_case(rng, kernel, k, n, lanes)


def add_part(kernel: str) -> None:
    @case(f"{kernel}: columns in the middle of wider rows")
    def build(rng: Rng) -> Case:
        return linear_part(rng, few_rows_case(rng, kernel, 96, 31, 4, random_weight(rng, 31, 96, bias=True)), 17, 61)


def add_few_rows_of_a_format(kernel: str, group: int, wide_scales: bool, bias: bool) -> None:
    form = f"groups of {group}, {'f32' if wide_scales else 'f16'} scales{', bias' if bias else ''}"

    @case(f"{kernel}: {form}")
    def build(rng: Rng) -> Case:
        made = random_weight(rng, 37, 3 * group, group=group, wide_scales=wide_scales, bias=bias)
        return few_rows_case(rng, kernel, 3 * group, 37, 16, made)


# Fewer units of 16 than lanes, more, and no multiple; columns that fill no block; one real shape of every kind of lanes.
for kernel in FEW_ROWS:
    add_part(kernel)
    for shape in ((32, 1, 4), (96, 31, 32), (64, 33, 128), (160, 65, 8), (1056, 67, 64), (1536, 256, 32), (6144, 61, 128)):
        add_few_rows(kernel, *shape)
    for group in (32, 64, 128):
        add_few_rows_of_a_format(kernel, group, group == 64, group != 32)
    add_few_rows_of_a_format(kernel, 32, True, True)


TILED: Final = ("linear_q4_tiled", "linear_q4_steel", "linear_q4_steel_packed", "linear_q4_steel_f16", "linear_q4_bk64")


F16_KERNELS: Final = ("linear_q4_steel_packed", "linear_q4_steel_f16", "linear_q4_bk64")
"""Activations and weights are rounded to f16; all but the first compute in it too."""
F16_SCALE: Final = 400.0
"""From the tolerance of f32 to 4e-3: activations are rounded to f16, and up to 64 products are added in it."""


def tiled_case(rng: Rng, kernel: str, rows: int, k: int, n: int, weight: Weight | None = None) -> Case:
    made = replace(linear_route_case(kernel, f32(rng, rows, k), weight or random_weight(rng, n, k), rows=rows, splits=1),
                   per_row=("x", "out"))
    if kernel not in F16_KERNELS:
        return made
    out = made.outputs["out"]
    assert out.magnitude is not None
    return replace(made, outputs={"out": replace(out, magnitude=out.magnitude * F16_SCALE)})


def add_tiled(kernel: str, rows: int, k: int, n: int) -> None:
    @case(f"{kernel}: {rows} x {k} by {n}")
    def build(rng: Rng) -> Case:
        return tiled_case(rng, kernel, rows, k, n)


def add_tiled_of_a_format(kernel: str, group: int, wide_scales: bool, bias: bool) -> None:
    form = f"groups of {group}, {'f32' if wide_scales else 'f16'} scales{', bias' if bias else ''}"

    @case(f"{kernel}: {form}")
    def build(rng: Rng) -> Case:
        made = random_weight(rng, 37, 128, group=group, wide_scales=wide_scales, bias=bias)
        return tiled_case(rng, kernel, 5, 128, 37, made)


# Less than a tile, a whole one, one more; k of one block, of several, and of blocks that 32 divides and 64 does not.
for kernel in TILED:
    unit = 64 if kernel == "linear_q4_bk64" else 32
    for tile in ((1, unit, 1), (2, 2 * unit, 63), (7, 3 * unit, 64), (16, unit, 128), (17, 2 * unit, 129), (33, unit, 65),
                 (64, 2 * unit, 64), (65, unit, 31), (3, 1536, 67)):
        add_tiled(kernel, *tile)
    for group in (32, 64, 128):
        add_tiled_of_a_format(kernel, group, group == 64, group != 32)


@case("linear_q4_steel: three parts of k, of which the last is shorter")
def steel_in_parts(rng: Rng) -> Case:
    """A part is two blocks of 32 columns; the parts' outputs lie one after the other."""
    weight, x = random_weight(rng, 33, 160), f32(rng, 17, 160)
    whole = linear_route_case("linear_q4_steel", x, weight, rows=17, splits=3)
    dense = weight.dense
    spans = (slice(0, 64), slice(64, 128), slice(128, 160))
    parts = np.stack([ops.linear(x[:, span], dense[:, span]) for span in spans])
    sizes = np.stack([ops.linear(np.abs(x[:, span]), np.abs(dense[:, span])) for span in spans])
    return replace(whole, outputs={"out": Expected(values=parts, magnitude=sizes)})


@case("sum_parts: three parts and a bias at prime sizes")
def sum_of_parts(rng: Rng) -> Case:
    parts, bias = f32(rng, 3, 11, 29), f32(rng, 29)
    return Case(kernel="sum_parts", inputs={"parts": parts, "bias": bias},
                outputs={"out": Expected(values=sum_parts(parts, bias))},
                params={"count": 11 * 29, "n": 29, "splits": 3, "flags": HAS_BIAS})


@case("sum_parts: one part, no bias")
def sum_of_one_part(rng: Rng) -> Case:
    parts = f32(rng, 1, 5, 13)
    return Case(kernel="sum_parts", inputs={"parts": parts, "bias": f32(rng, 4)},
                outputs={"out": Expected(values=parts[0])}, params={"count": 65, "n": 13, "splits": 1, "flags": 0})
