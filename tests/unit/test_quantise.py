"""The 4-bit form: group 32, scale of the extreme value over -8, even columns in the low nibble."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gemma4web.errors import CheckpointError
from gemma4web.export.quantise import quantise
from gemma4web.oracle.ops import unpack_q4


def _reference(row: list[float]) -> tuple[list[int], float]:
    """One group by hand: codes and scale."""
    extreme = 0.0
    for value in row:
        if abs(value) > abs(extreme):
            extreme = value
    scale = float(np.float16(np.float32(extreme) / np.float32(-8)))
    scale = scale or 1.0
    return [min(max(round(value / scale) + 8, 0), 15) for value in row], scale


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (3, 64), elements=st.floats(-100, 100, width=32)))
def test_equals_a_group_by_group_reference(weight: np.ndarray) -> None:
    values, scales = quantise(weight, name="w")
    for row in range(3):
        for group in range(2):
            codes, scale = _reference([float(x) for x in weight[row, group * 32 : group * 32 + 32]])
            packed = values[row, group * 16 : group * 16 + 16]
            assert [int(x) for x in np.stack([packed & 15, packed >> 4], 1).reshape(-1)] == codes
            assert float(scales[row, group]) == scale


@settings(max_examples=60, deadline=None)
@given(arrays(np.float32, (2, 96), elements=st.floats(-8, 8, width=32)))
def test_unpacked_values_stay_within_half_a_step(weight: np.ndarray) -> None:
    """Also catches a wrong nibble order or group: a value far from its neighbour would come back as the neighbour.

    Only the far end, -extreme, is cut off by the clamp: codes reach from -8 to 7 steps.
    """
    values, scales = quantise(weight, name="w")
    step = np.abs(np.repeat(scales.astype(np.float64), 32, axis=1))
    error = np.abs(unpack_q4(values, scales) - weight)
    cut = weight / np.repeat(scales.astype(np.float64), 32, axis=1) > 7.5
    assert (error[~cut] <= step[~cut] * 0.5 + 1e-12).all()
    assert (error[cut] <= step[cut] * 1.01).all()


def test_swapped_nibbles_exchange_neighbours() -> None:
    weight = np.tile(np.float32([1.0, -0.5]), (2, 16))
    values, scales = quantise(weight, name="w")
    np.testing.assert_array_equal(unpack_q4(values, scales), weight)
    np.testing.assert_array_equal(unpack_q4(values, scales, swap_nibbles=True), weight[:, ::-1])


def test_extreme_is_exact_and_has_code_zero() -> None:
    """The value of greatest magnitude, whatever its sign, becomes code 0 = -8 steps of the opposite sign."""
    for sign in (1.0, -1.0):
        weight = np.full((1, 32), 0.25, np.float32)
        weight[0, 5] = sign * 2.0
        values, scales = quantise(weight, name="w")
        assert values[0, 2] >> 4 == 0 and float(scales[0, 0]) == -sign * 0.25
        assert unpack_q4(values, scales)[0, 5] == sign * 2.0


def test_zero_groups_have_scale_one() -> None:
    for weight in (np.zeros((1, 32), np.float32), np.full((1, 32), 1e-9, np.float32), np.full((1, 32), -0.0, np.float32)):
        values, scales = quantise(weight, name="w")
        assert (values == 0x88).all() and scales[0, 0] == 1 and (unpack_q4(values, scales) == 0).all()


@pytest.mark.parametrize("columns", [1, 31, 33, 48])
def test_columns_that_do_not_divide_are_refused(columns: int) -> None:
    with pytest.raises(CheckpointError, match=f"model.x: {columns} columns are no multiple of 32"):
        quantise(np.zeros((2, columns), np.float32), name="model.x")


def test_scale_beyond_f16_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"model.x: a value of magnitude 1e\+06"):
        quantise(np.full((1, 32), 1e6, np.float32), name="model.x")
