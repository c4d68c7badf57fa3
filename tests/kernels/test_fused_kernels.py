"""Fused kernels against the kernels that they stand for (G6): equal bits, so that a pass may take either."""

from __future__ import annotations

import numpy as np
import pytest
from cases_fused import FUSED_ROWS, activations, gated_case, several_case
from cases_linear import f32
from cases_linear_routes import Weight, linear_route_case, random_weight
from cases_norm import EPS, gelu_case, norm_pair_case
from kernel_case import SEED, Array, Case, Expected, dispatch
from tests.support.gpu_page import GpuPage

pytestmark = pytest.mark.browser

SHAPES = ((96, 37, 4), (1056, 67, 32), (1536, 64, 128))
"""k, n and threads a column."""


def outputs(page: GpuPage, made: Case) -> dict[str, Array]:
    found, problems = dispatch(page, made)
    assert not problems, problems
    return found


def norm(page: GpuPage, kernel: str, x: Array, weight: Array, residual: Array, scalar: Array, flags: int) -> Array:
    rows, width = x.shape
    made = Case(kernel=kernel, inputs={"x": x, "weight": weight, "residual": residual, "scalar": scalar},
                outputs={"out": Expected(values=np.zeros((rows, width)))},
                params={"rows": rows, "width": width, "eps": EPS, "flags": flags})
    return outputs(page, made)["out"].reshape(rows, width)


@pytest.mark.parametrize("flags", [2, 3, 7])
@pytest.mark.parametrize("width", [1, 65, 257, 1536])
@pytest.mark.parametrize("form", ["", "_wide"])
def test_a_norm_pair_is_two_norms(gpu_page: GpuPage, form: str, width: int, flags: int) -> None:
    rng = np.random.default_rng([SEED, width, flags])
    x, residual = f32(rng, 3, width), f32(rng, 3, width)
    weight, scalar, next_weight = f32(rng, width), f32(rng, 1), f32(rng, width)
    together = outputs(gpu_page, norm_pair_case(x, weight, residual, scalar, next_weight, flags,
                                                kernel=f"rms_norm_pair{form}"))
    first = norm(gpu_page, f"rms_norm{form}", x, weight, residual, scalar, flags)
    second = norm(gpu_page, f"rms_norm{form}", first, next_weight, residual, scalar, 1)
    assert together["out"].tobytes() == first.tobytes(), f"seed {SEED}"
    assert together["next"].tobytes() == second.tobytes(), f"seed {SEED}"


def product(page: GpuPage, form: str, x: Array, weight: Weight, lanes: int, subgroup: int) -> Array:
    made = linear_route_case(f"linear_q4_{form}", x, weight, lanes=lanes, subgroup=subgroup)
    return outputs(page, made)["out"].reshape(x.shape[0], -1)


@pytest.mark.parametrize(("k", "n", "lanes"), SHAPES)
@pytest.mark.parametrize("form", list(FUSED_ROWS))
def test_a_gated_product_is_two_products_and_their_gate(gpu_page: GpuPage, form: str, k: int, n: int, lanes: int) -> None:
    """For every subgroup size up to this adapter's own; with a second weight, and with a slice of another tensor."""
    rng = np.random.default_rng([SEED, k, lanes])
    x, gate, up = activations(rng, FUSED_ROWS[form], k), random_weight(rng, n, k), random_weight(rng, n, k)
    other = f32(rng, FUSED_ROWS[form], 3 * n)
    for subgroup in (1, 2, 4) if form.endswith("subgroup") else (1,):
        a = product(gpu_page, form, x, gate, lanes, subgroup)
        for factor, offset in ((up, 0), (other, n + 1)):
            b = product(gpu_page, form, x, up, lanes, subgroup) if isinstance(factor, Weight) else factor
            apart = outputs(gpu_page, gelu_case(a, b, offset))["out"]
            made = gated_case(form, x, gate, factor, lanes=lanes, subgroup=subgroup, offset=offset)
            assert outputs(gpu_page, made)["out"].tobytes() == apart.tobytes(), f"subgroups of {subgroup}, seed {SEED}"


@pytest.mark.parametrize("kind", ["two", "three"])
@pytest.mark.parametrize("form", list(FUSED_ROWS))
def test_several_products_are_each_alone(gpu_page: GpuPage, form: str, kind: str) -> None:
    """For every subgroup size up to this adapter's own, which is the smallest there is."""
    rng = np.random.default_rng([SEED, len(kind)])
    lanes = [32, 128, 4][:2 if kind == "two" else 3]
    x, weights = f32(rng, FUSED_ROWS[form], 1056), [random_weight(rng, 67 + 30 * i, 1056) for i in range(len(lanes))]
    for subgroup in (1, 2, 4) if form.endswith("subgroup") else (1,):
        together = outputs(gpu_page, several_case(kind, form, x, weights, lanes, subgroup))
        for i, weight in enumerate(weights):
            alone = product(gpu_page, form, x, weight, lanes[i], subgroup)
            assert together[f"out_{i}"].tobytes() == alone.tobytes(), f"product {i}, subgroups of {subgroup}, seed {SEED}"
