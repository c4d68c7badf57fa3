"""Cases of the 4-bit linear kernels over digits: activations as numbers of three signed bytes, products by dot4I8Packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from cases_linear import f32, linear_part
from cases_linear_routes import Weight, linear_route_case, random_weight
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import to_digits

ROWS: Final = {"linear_q4_dp4a": 1, "linear_q4_dp4a_m3": 3, "linear_q4_dp4a_subgroup": 1, "linear_q4_dp4a_m3_subgroup": 3}


def digits_case(x: Array) -> Case:
    digits, powers = to_digits(x)
    return Case(kernel="to_digits", inputs={"x": x}, params={"rows": x.shape[0], "units": x.shape[1] // 32},
                outputs={"digits": Expected(values=digits.view(np.int32)),
                         "powers": Expected(values=powers, magnitude=np.abs(powers))})


def over_digits(made: Case) -> Case:
    """The same case for a kernel that has digits and powers in the place of x."""
    digits, powers = to_digits(made.inputs["x"])
    weights = {name: data for name, data in made.inputs.items() if name != "x"}
    return replace(made, inputs={"digits": digits, "powers": powers, **weights})


def dp4a_case(rng: Rng, kernel: str, k: int, n: int, lanes: int, weight: Weight | None = None) -> Case:
    """The reference is that of x itself, so the rounding to digits is within the tolerance too."""
    x = f32(rng, ROWS[kernel], k)
    if weight is None:
        x *= np.float32(10.0) ** rng.integers(-8, 8, (1, k // 32)).repeat(32, axis=1).astype(np.float32)
    return over_digits(linear_route_case(kernel, x, weight or random_weight(rng, n, k), lanes=lanes,
                                         subgroup=4 if kernel.endswith("subgroup") else 1))


def add_dp4a(kernel: str, k: int, n: int, lanes: int) -> None:
    @case(f"{kernel}: {k} to {n} by {lanes} lanes")
    def build(rng: Rng) -> Case:
        return dp4a_case(rng, kernel, k, n, lanes)


def add_dp4a_part(kernel: str) -> None:
    @case(f"{kernel}: columns in the middle of wider rows")
    def build(rng: Rng) -> Case:
        return linear_part(rng, dp4a_case(rng, kernel, 96, 31, 4, random_weight(rng, 31, 96, bias=True)), 17, 61)


def add_dp4a_of_a_format(kernel: str, group: int, wide_scales: bool, bias: bool) -> None:
    form = f"groups of {group}, {'f32' if wide_scales else 'f16'} scales{', bias' if bias else ''}"

    @case(f"{kernel}: {form}")
    def build(rng: Rng) -> Case:
        made = random_weight(rng, 37, 3 * group, group=group, wide_scales=wide_scales, bias=bias)
        return dp4a_case(rng, kernel, 3 * group, 37, 16, made)


# Fewer units of 32 than lanes, more, and no multiple; columns that fill no block.
for kernel in ROWS:
    add_dp4a_part(kernel)
    for shape in ((32, 1, 4), (96, 31, 32), (64, 33, 128), (160, 65, 8), (1056, 67, 64), (2560, 131, 16), (6144, 61, 128)):
        add_dp4a(kernel, *shape)
    for group in (32, 64, 128):
        add_dp4a_of_a_format(kernel, group, group == 64, group != 32)


@case("to_digits: two rows of units of very different size")
def different_units(rng: Rng) -> Case:
    sizes = np.float32(10.0) ** rng.integers(-20, 20, (2, 67)).repeat(32, axis=1).astype(np.float32)
    return digits_case(f32(rng, 2, 67 * 32) * sizes)


@case("to_digits: zeros, powers of two and what rounds up to the next digit")
def special_units(rng: Rng) -> Case:
    x = np.zeros((1, 6 * 32), np.float32)
    x[0, 32:64] = np.float32(2.0) ** rng.integers(-30, 30, 32)
    x[0, 64:96] = np.float32(1e-38)
    x[0, 96:128] = np.nextafter(np.float32(2.0), np.float32(0.0))
    x[0, 128:160] = -x[0, 96:128]
    x[0, 160:192] = np.arange(-16, 16) * np.float32(32768.0)
    return digits_case(x)


@case("to_digits: a NaN and an infinity make their units NaN")
def not_finite(rng: Rng) -> Case:
    x = f32(rng, 1, 3 * 32)
    x[0, 5], x[0, 40] = np.nan, -np.inf
    return digits_case(x)
