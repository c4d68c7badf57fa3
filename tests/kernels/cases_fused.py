"""Cases of the kernels that run several linear ops, and what follows them, at once."""

from __future__ import annotations

from typing import Final

import numpy as np
from cases_linear import f32
from cases_linear_routes import Weight, random_weight
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import gated_linear

from gemma4web.oracle import ops

HAS_OTHER: Final = 4
SILU: Final = 8
STEEPEST: Final = 1.13
"""No slope of either activation is larger."""
FUSED_ROWS: Final = {"m1": 1, "m3": 3, "m1_subgroup": 1, "m3_subgroup": 3}
"""Form -> rows."""


def subgroup_of(form: str) -> int:
    """Subgroups of four lanes, the fewest that an adapter has, so that the same case runs on every one."""
    return 4 if form.endswith("subgroup") else 1


def activations(rng: Rng, rows: int, k: int) -> Array:
    """So large that sums over k reach both ends of an activation, and its middle."""
    return f32(rng, rows, k, scale=8.0 * k**-0.5)


def gated_case(form: str, x: Array, gate: Weight, factor: Weight | Array, *, lanes: int, subgroup: int,
               offset: int = 0, silu: bool = False) -> Case:
    """``factor``: the second weight, or f32 [rows, stride] of which the columns from ``offset`` on are taken."""
    n, k = gate.dense.shape
    none = np.zeros(4, np.uint32)
    if isinstance(factor, Weight):
        up, up_size = ops.linear(x, factor.dense), ops.linear(np.abs(x), np.abs(factor.dense))
        bound: dict[str, Array] = {"up_values": factor.values, "up_scales": factor.scales, "other": f32_none()}
        flags, stride = gate.flags, 0
    else:
        up, up_size = factor[:, offset:offset + n].astype(np.float64), np.zeros((x.shape[0], n))
        bound = {"up_values": none, "up_scales": none, "other": factor}
        flags, stride = gate.flags | HAS_OTHER, factor.shape[1]
    wanted = gated_linear(x, gate.dense, up, silu=silu)
    activation = gated_linear(x, gate.dense, np.ones_like(up), silu=silu)
    size = (STEEPEST * ops.linear(np.abs(x), np.abs(gate.dense)) * np.abs(up) + np.abs(activation) * up_size
            + np.abs(wanted))
    return Case(kernel=f"linear_q4_gated_{form}",
                inputs={"x": x, "values": gate.values, "scales": gate.scales, **bound},
                outputs={"out": Expected(values=wanted, magnitude=size)},
                params={"k": k, "n": n, "group_shift": (gate.group // 32).bit_length(), "flags": flags | SILU * silu,
                        "lanes": lanes, "subgroup": subgroup, "stride": stride, "offset": offset})


def f32_none() -> Array:
    return np.zeros(4, np.float32)


def add_gated(form: str, k: int, n: int, lanes: int, *, silu: bool) -> None:
    @case(f"linear_q4_gated_{form}: two weights {k} to {n} by {lanes} lanes, {'silu' if silu else 'gelu'}")
    def build(rng: Rng) -> Case:
        return gated_case(form, activations(rng, FUSED_ROWS[form], k), random_weight(rng, n, k), random_weight(rng, n, k),
                          lanes=lanes, subgroup=subgroup_of(form), silu=silu)


def add_gated_by_other(form: str, k: int, n: int, lanes: int, stride: int, offset: int, *, silu: bool) -> None:
    @case(f"linear_q4_gated_{form}: {k} to {n} by {lanes} lanes and columns {offset} on of {stride}, "
          f"{'silu' if silu else 'gelu'}")
    def build(rng: Rng) -> Case:
        rows = FUSED_ROWS[form]
        return gated_case(form, activations(rng, rows, k), random_weight(rng, n, k), f32(rng, rows, stride), lanes=lanes,
                          subgroup=subgroup_of(form), offset=offset, silu=silu)


def add_gated_special(form: str, *, broken: bool) -> None:
    @case(f"linear_q4_gated_{form}: huge activations{' and a NaN' if broken else ''}")
    def build(rng: Rng) -> Case:
        rows, weight = FUSED_ROWS[form], random_weight(rng, 37, 64)
        x = f32(rng, rows, 64, scale=1e4)
        if broken:
            x[rows - 1, 5] = np.nan
        return gated_case(form, x, weight, random_weight(rng, 37, 64), lanes=16, subgroup=subgroup_of(form), silu=True)


# Fewer units of 16 than lanes, more, and no multiple; columns that fill no block; a real shape.
for form in FUSED_ROWS:
    for number, shape in enumerate(((32, 1, 4), (96, 31, 32), (64, 33, 128), (160, 65, 8), (1056, 67, 64), (1536, 256, 32))):
        add_gated(form, *shape, silu=number % 2 == 1)
    add_gated_by_other(form, 96, 31, 16, 211, 101, silu=False)
    add_gated_by_other(form, 160, 37, 4, 37, 0, silu=True)
    for broken in (False, True):
        add_gated_special(form, broken=broken)


def several_case(kind: str, form: str, x: Array, weights: list[Weight], lanes: list[int], subgroup: int) -> Case:
    """``kind``: two or three. Each weight has its own n and lanes; k and the group are common."""
    inputs: dict[str, Array] = {"x": x}
    outputs: dict[str, Expected] = {}
    sizes: dict[str, int] = {}
    for i, weight in enumerate(weights):
        inputs |= {f"values_{i}": weight.values, f"scales_{i}": weight.scales}
        outputs[f"out_{i}"] = Expected(values=ops.linear(x, weight.dense),
                                       magnitude=ops.linear(np.abs(x), np.abs(weight.dense)))
        sizes |= {f"n_{i}": weight.dense.shape[0], f"lanes_{i}": lanes[i]}
    first = weights[0]
    return Case(kernel=f"linear_q4_{kind}_{form}", inputs=inputs, outputs=outputs,
                params={"k": x.shape[1], "group_shift": (first.group // 32).bit_length(), "flags": first.flags,
                        "subgroup": subgroup, **sizes})


def add_several(kind: str, form: str, k: int, sizes: list[int], lanes: list[int]) -> None:
    @case(f"linear_q4_{kind}_{form}: {k} to {sizes} by {lanes} lanes")
    def build(rng: Rng) -> Case:
        return several_case(kind, form, f32(rng, FUSED_ROWS[form], k), [random_weight(rng, n, k) for n in sizes], lanes,
                            subgroup_of(form))


# One group of workgroups each, several, and a last one that is not full; lanes that differ.
for form in FUSED_ROWS:
    for sizes in ([1, 1, 1], [131, 37, 67], [32, 256, 5]):
        add_several("two", form, 96, sizes[:2], [4, 32])
        add_several("three", form, 96, sizes, [4, 32, 128])
    add_several("two", form, 1056, [67, 129], [128, 8])
    add_several("three", form, 1056, [67, 129, 3], [128, 8, 16])
