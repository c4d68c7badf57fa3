"""Every op at the shapes of Gemma 4 E2B and its assistant (O10): right values, everything written, nothing beside it."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from e2b_shapes import SHAPES, Sampled, linear
from kernel_case import SEED, Case, kernels, run_case
from tests.support.gpu_page import GpuDevice, GpuPage

pytestmark = [pytest.mark.browser, pytest.mark.slow]

DeviceOf = Callable[[str], GpuDevice]
BINDING_LIMIT = 2**27
"""What a device of default limits binds at most, in bytes."""


def problems_of(made: Case | Sampled, device: GpuDevice, text: str | None = None) -> list[str]:
    return made.problems(device, text) if isinstance(made, Sampled) else run_case(device, made, text=text)


@pytest.mark.parametrize("name", SHAPES)
def test_shape(device_of: DeviceOf, large_page: GpuPage, name: str) -> None:
    """On a device of default limits; what does not fit one of its bindings on a device of the adapter's own."""
    made = SHAPES[name](np.random.default_rng([SEED, zlib.crc32(name.encode())]), SEED)
    one = made.case if isinstance(made, Sampled) else made
    large = any(array.nbytes > BINDING_LIMIT for array in one.inputs.values())
    problems = problems_of(made, large_page if large else device_of(one.kernel))
    assert not problems, "\n".join([*problems, f"GEMMA4WEB_SEED={SEED} makes the same inputs"])


@pytest.mark.parametrize(("fault", "old", "new"), [
    ("the last column", "&& column < params.n {", "&& column + 1u < params.n {"),
    ("every weight", "-24.0", "-23.0"),
])
def test_a_sample_of_columns_notices(gpu_page: GpuPage, fault: str, old: str, new: str) -> None:
    """A column that nobody writes is seen wherever it is, a wrong product in what is compared."""
    text = kernels()["linear_q4_m1"].text
    assert old in text
    made = linear("linear_q4_m1", 1, 256, 1536)(np.random.default_rng(SEED), SEED)
    assert made.problems(gpu_page) == []
    assert made.problems(gpu_page, text.replace(old, new)), fault
