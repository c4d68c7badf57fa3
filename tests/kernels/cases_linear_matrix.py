"""Cases of the 4-bit linear kernels on the matrix unit, and of the halves of x that they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from cases_linear import f32
from cases_linear_routes import F16_SCALE, Weight, linear_route_case, random_weight
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import to_halves

from gemma4web.oracle import ops

PARTS: Final = {"linear_q4_matrix": 2, "linear_q4_matrix_f16": 1}
TO_HALVES: Final = {"to_halves": 2, "to_halves_f16": 1}


def halves_case(kernel: str, x: Array) -> Case:
    halves, powers = to_halves(x, parts=TO_HALVES[kernel])
    return Case(kernel=kernel, inputs={"x": x}, params={"rows": x.shape[0], "eights": x.shape[1] // 8},
                outputs={"halves": Expected(values=halves.view(np.int32)),
                         "powers": Expected(values=powers, magnitude=np.abs(powers))})


def over_halves(made: Case) -> Case:
    """The same case for a kernel that has halves and powers in the place of x. Alone, a row has the same bits."""
    parts = PARTS[made.kernel]
    halves, powers = to_halves(made.inputs["x"], parts=parts)
    weights = {name: data for name, data in made.inputs.items() if name != "x"}
    out = made.outputs["out"]
    assert out.magnitude is not None
    # Each row is also run alone, of a case with rows in more than one piece and in few tiles.
    rows = ("halves", "powers", "out") if made.params["rows"] == 17 else ()
    return replace(made, inputs={"halves": halves, "powers": powers, **weights}, per_row=rows,
                   outputs={"out": replace(out, magnitude=out.magnitude * (F16_SCALE if parts == 1 else 1.0))})


def matrix_case(rng: Rng, kernel: str, rows: int, k: int, n: int, weight: Weight | None = None) -> Case:
    """The reference is that of x itself, so the rounding to halves is within the tolerance too; rows of different size."""
    x = f32(rng, rows, k) * np.float32(10.0) ** rng.integers(-8, 8, (rows, 1)).astype(np.float32)
    return over_halves(linear_route_case(kernel, x, weight or random_weight(rng, n, k), rows=rows, splits=1))


def add_matrix(kernel: str, rows: int, k: int, n: int) -> None:
    @case(f"{kernel}: {rows} x {k} by {n}")
    def build(rng: Rng) -> Case:
        return matrix_case(rng, kernel, rows, k, n)


def add_matrix_of_a_format(kernel: str, group: int, bias: bool) -> None:
    @case(f"{kernel}: groups of {group}{', bias' if bias else ''}")
    def build(rng: Rng) -> Case:
        return matrix_case(rng, kernel, 5, 128, 37, random_weight(rng, 37, 128, group=group, bias=bias))


# Less than a piece, a tile, whole ones, one more.
for kernel in PARTS:
    unit = 64 if PARTS[kernel] == 1 else 32
    for tile in ((1, unit, 1), (2, 2 * unit, 63), (17, 3 * unit, 64), (33, unit, 65), (64, 2 * unit, 128), (65, unit, 31),
                 (129, unit, 129), (3, 256, 67)):
        add_matrix(kernel, *tile)
    for group in (32, 64, 128):
        add_matrix_of_a_format(kernel, group, group != 32)


@case("linear_q4_matrix: scales of every size, whose lower bits count")
def scales_of_every_size(rng: Rng) -> Case:
    """From the least half to 8000, all bits of the fraction in use."""
    weight = random_weight(rng, 67, 96)
    bits = rng.integers(1, 0x6FD0, weight.scales.shape).astype(np.uint16) | np.uint16(1)
    return matrix_case(rng, "linear_q4_matrix", 3, 96, 67, replace(weight, scales=bits.view(np.float16)))


@case("linear_q4_matrix: three parts of k, of which the last is shorter")
def matrix_in_parts(rng: Rng) -> Case:
    """A part is two blocks of 32 columns; the parts' outputs lie one after the other."""
    weight, x = random_weight(rng, 33, 160), f32(rng, 17, 160)
    whole = over_halves(linear_route_case("linear_q4_matrix", x, weight, rows=17, splits=3))
    spans = (slice(0, 64), slice(64, 128), slice(128, 160))
    parts = np.stack([ops.linear(x[:, span], weight.dense[:, span]) for span in spans])
    # An error of a half's last bit is one of the row's largest number, wherever that stands.
    sizes = np.stack([ops.linear(np.abs(x[:, span]), np.abs(weight.dense[:, span])) for span in spans])
    return replace(whole, per_row=(), outputs={"out": Expected(values=parts, magnitude=sizes)})


@case("linear_q4_matrix: a NaN and an infinity in two of three rows")
def rows_not_finite(rng: Rng) -> Case:
    x = f32(rng, 3, 64)
    x[0, 5], x[2, 40] = np.nan, -np.inf
    made = over_halves(linear_route_case("linear_q4_matrix", np.nan_to_num(x), random_weight(rng, 31, 64), rows=3, splits=1))
    halves, powers = to_halves(x)
    out = made.outputs["out"]
    values = np.where(np.isfinite(x).all(axis=1)[:, None], out.values, np.nan)
    return replace(made, inputs={**made.inputs, "halves": halves, "powers": powers},
                   outputs={"out": replace(out, values=values)})


for kernel in TO_HALVES:
    @case(f"{kernel}: rows of very different size, more eights than threads")
    def different_rows(rng: Rng, kernel: str = kernel) -> Case:
        """The largest lies in an eight that is its thread's first of two, or in one of a thread far behind."""
        x = f32(rng, 5, 2088)
        x[:3, 3] = x[3:, 8 * 200] = 1000.0
        return halves_case(kernel, x * np.float32(10.0) ** rng.integers(-20, 20, (5, 1)).astype(np.float32))

    @case(f"{kernel}: zeros, what is just below a power of two, what a row's largest leaves nothing of")
    def special_rows(rng: Rng, kernel: str = kernel) -> Case:
        x = np.zeros((4, 64), np.float32)
        x[1] = np.nextafter(np.float32(2.0), np.float32(0.0)) * np.where(np.arange(64) % 2, 1, -1)
        x[2] = np.float32(2.0) ** -np.arange(64, dtype=np.float32)
        x[3] = np.float32(1e-38)
        return halves_case(kernel, x)

    @case(f"{kernel}: a NaN and an infinity make their rows NaN")
    def not_finite(rng: Rng, kernel: str = kernel) -> Case:
        x = f32(rng, 3, 24)
        x[0, 5], x[2, 20] = np.nan, -np.inf
        return halves_case(kernel, x)
