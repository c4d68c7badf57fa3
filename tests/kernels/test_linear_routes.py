"""The ways of a 4-bit linear op against each other (O6, G2, P33, P38): equal bits where that is claimed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cases_linear import f32
from cases_linear_dp4a import over_digits
from cases_linear_routes import Weight, linear_route_case, random_weight
from kernel_case import SEED, Array, Case, dispatch
from tests.support.gpu_page import GpuPage

pytestmark = pytest.mark.browser

SHAPES = ((96, 37, 4), (1056, 67, 32), (1536, 64, 128))
"""k, n and threads a column."""


def output(page: GpuPage, made: Case) -> Array:
    found, problems = dispatch(page, made)
    assert not problems, problems
    return found["out"]


def few(kernel: str, x: Array, weight: Weight, lanes: int, subgroup: int) -> Case:
    made = linear_route_case(kernel, x, weight, lanes=lanes, subgroup=subgroup)
    return over_digits(made) if "dp4a" in kernel else made


@pytest.mark.parametrize(("k", "n", "lanes"), SHAPES)
@pytest.mark.parametrize("kernel", ["linear_q4_m1", "linear_q4_m3", "linear_q4_dp4a", "linear_q4_dp4a_m3"])
def test_every_subgroup_size_gives_the_same_bits(gpu_page: GpuPage, kernel: str, k: int, n: int, lanes: int) -> None:
    """P17: without subgroups, with this adapter's own size, and with every smaller one emulated on it."""
    rng = np.random.default_rng([SEED, k, lanes])
    x, weight = f32(rng, 3 if kernel.endswith("m3") else 1, k), random_weight(rng, n, k)
    wanted = output(gpu_page, few(kernel, x, weight, lanes, 1)).tobytes()
    for subgroup in (1, 2, 4):
        found = output(gpu_page, few(f"{kernel}_subgroup", x, weight, lanes, subgroup))
        assert found.tobytes() == wanted, f"subgroups of {subgroup} differ, seed {SEED}"


@pytest.mark.parametrize(("k", "n", "lanes"), SHAPES)
@pytest.mark.parametrize(("one", "three"), [("linear_q4_m1", "linear_q4_m3"), ("linear_q4_dp4a", "linear_q4_dp4a_m3")])
def test_three_rows_have_the_bits_of_each_alone(gpu_page: GpuPage, one: str, three: str, k: int, n: int, lanes: int) -> None:
    """R12, P33: a round's rows are those of a step."""
    rng = np.random.default_rng([SEED, n, lanes])
    x, weight = f32(rng, 3, k), random_weight(rng, n, k)
    together = output(gpu_page, few(three, x, weight, lanes, 1)).reshape(3, n)
    for row in range(3):
        alone = output(gpu_page, few(one, x[row:row + 1], weight, lanes, 1))
        assert alone.tobytes() == together[row].tobytes(), f"row {row}, seed {SEED}"


def test_a_fault_of_contraction_would_be_seen(gpu_page: GpuPage) -> None:
    """The comparison above can fail: the same product in another order has other bits."""
    rng = np.random.default_rng(SEED)
    x, weight = f32(rng, 1, 1056), random_weight(rng, 67, 1056)
    assert (output(gpu_page, few("linear_q4_m1", x, weight, 32, 1)).tobytes()
            != output(gpu_page, few("linear_q4_m1", x, weight, 64, 1)).tobytes())


@pytest.mark.parametrize("kernel", ["linear_q4_tiled", "linear_q4_steel"])
def test_tiles_equal_the_generic_kernel(gpu_page: GpuPage, kernel: str) -> None:
    """G2: within the tolerance of both, for one row, a whole tile and one more."""
    rng = np.random.default_rng(SEED)
    weight = random_weight(rng, 65, 96)
    for rows in (1, 32, 33, 64, 65):
        x = f32(rng, rows, 96)
        tiles = linear_route_case(kernel, x, weight, rows=rows, splits=1)
        plain = replace(tiles, kernel="linear_q4", params={"rows": rows, "k": 96, "n": 65, "group_shift": 1, "flags": 0, "first": 0, "stride": 65},
                        inputs={name: tiles.inputs[name] for name in ("x", "values", "scales")})
        size = tiles.outputs["out"].magnitude
        assert size is not None
        difference = np.abs(output(gpu_page, tiles).astype(np.float64) - output(gpu_page, plain))
        assert np.all(difference <= 2e-5 * size.reshape(-1)), f"{rows} rows, seed {SEED}"
