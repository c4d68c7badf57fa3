"""The 4-bit form: groups of 32 or more, scale of the extreme value over -8 or the trained step, even columns in the low nibble."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gemma4web.errors import CheckpointError
from gemma4web.export.quantise import multiply_out, quantise, read_q4_0, repack_q4_0
from gemma4web.oracle.ops import unpack_q4
from gemma4web.program.ir import Q4_GROUPS, ScaleDtype


def _reference(row: list[float]) -> tuple[list[int], float]:
    """One group by hand: codes and scale."""
    extreme = 0.0
    for value in row:
        if abs(value) > abs(extreme):
            extreme = value
    parts = [count for count in range(8, 0, -1) if extreme and all(
        abs(value / extreme * count - round(value / extreme * count)) <= 1 / 24 and -value / extreme * count < 7.5
        for value in row)]
    scale = float(np.float16(np.float32(extreme) / np.float32(-(parts or [8])[0])))
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

    Only the far end, -extreme, is cut off by the clamp: codes reach from -8 to 7 steps. Scales below f16's normal range
    are too coarse for this.
    """
    weight = np.where(np.abs(weight) < 2**-10, np.float32(0), weight)
    values, scales = quantise(weight, name="w")
    step = np.abs(np.repeat(scales.astype(np.float64), 32, axis=1))
    error = np.abs(unpack_q4(values, scales) - weight)
    cut = weight / np.repeat(scales.astype(np.float64), 32, axis=1) > 7.5
    assert (error[~cut] <= step[~cut] * 0.5 + 1e-12).all()
    assert (error[cut] <= step[cut] * 1.01).all()


@settings(max_examples=40, deadline=None)
@given(arrays(np.float32, (2, 256), elements=st.floats(-100, 100, width=32)), st.sampled_from(Q4_GROUPS),
       st.sampled_from(ScaleDtype))
def test_every_form_is_that_of_its_groups(weight: np.ndarray, group: int, scale_dtype: ScaleDtype) -> None:
    """Each group alone gives the same codes and scale; f32 scales are not rounded to f16."""
    values, scales = quantise(weight, name="w", group=group, scale_dtype=scale_dtype)
    assert scales.shape == (2, 256 // group) and scales.dtype == (np.float16 if scale_dtype is ScaleDtype.F16 else np.float32)
    for row in range(2):
        for number in range(256 // group):
            part = weight[row : row + 1, number * group : (number + 1) * group]
            alone, scale = quantise(part, name="w", group=group, scale_dtype=scale_dtype)
            assert np.array_equal(values[row, number * group // 2 : (number + 1) * group // 2], alone[0])
            assert scales[row, number] == scale[0, 0]
            extreme = part[0, np.abs(part[0]).argmax()]
            if scale_dtype is ScaleDtype.F32 and extreme:
                assert scale[0, 0] in {extreme / np.float32(-count) for count in range(1, 9)}
    step = np.abs(np.repeat(scales.astype(np.float64), group, axis=1))
    error = np.abs(unpack_q4(values, scales) - weight)
    kept = (weight / np.repeat(scales.astype(np.float64), group, axis=1) <= 7.5) & (step >= 2**-14)
    assert (error[kept] <= step[kept] * 0.51).all()


def test_a_value_beyond_f16_scales_has_an_f32_scale() -> None:
    weight = np.full((1, 32), 1e6, np.float32)
    values, scales = quantise(weight, name="w", scale_dtype=ScaleDtype.F32)
    assert np.array_equal(unpack_q4(values, scales), weight)


def _trained(random: np.random.Generator, rows: int, columns: int, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights as training leaves them: levels of -8..7, at most ``most`` from 0, times a step a group, rounded to bf16;
    and the levels and steps."""
    levels = np.clip(np.rint(random.normal(size=(rows, columns)) * most / 3), -most, min(most, 7))
    levels[:, ::32] = -most
    steps = np.repeat(random.uniform(0.002, 0.05, (rows, columns // 32)) * random.choice([-1, 1], (rows, columns // 32)), 32, 1)
    bits = (levels * steps).astype(np.float32).view(np.uint32)
    return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(np.float32), levels, steps


@pytest.mark.parametrize("most", range(1, 9))
def test_trained_levels_come_back(most: int) -> None:
    """X22: the step is the extreme over the number of steps that it is away from 0, not over 8, which moves what is no
    multiple of 8 off its level. bf16 is 2^-9 off the value, and so is the step that is taken from it."""
    weight, levels, steps = _trained(np.random.default_rng(most), 64, 256, most)
    values, scales = quantise(weight, name="w")
    found = np.stack([values & 15, values >> 4], 2).reshape(weight.shape).astype(int) - 8
    np.testing.assert_allclose(found * np.repeat(scales.astype(np.float64), 32, 1), levels * steps, rtol=0,
                               atol=float(np.abs(steps).max()) * 0.04)
    coarse = np.repeat(np.abs(weight.reshape(64, 8, 32)).max(2) / 8, 32, 1)
    off = np.abs(weight / coarse - np.rint(weight / coarse))
    assert (off.max() < 0.1) == (most in (1, 2, 4, 8))


def test_chunks_do_not_show() -> None:
    """A weight larger than what is worked on at a time equals its rows, one by one."""
    random = np.random.default_rng(5)
    weight = random.normal(size=(70, 1024)).astype(np.float32)
    weight[::3] = _trained(random, 24, 1024, 7)[0]
    values, scales = quantise(weight, name="w")
    for row in range(70):
        one = quantise(weight[row : row + 1], name="w")
        np.testing.assert_array_equal(values[row], one[0][0])
        np.testing.assert_array_equal(scales[row], one[1][0])


def test_repacked_blocks_are_those_read() -> None:
    raw = np.random.default_rng(6).integers(0, 256, (3000, 3 * 18), dtype=np.uint8)  # more rows than are worked on at a time
    raw[:, 1::18] &= 0x3B  # finite scales
    values, scales = repack_q4_0(raw)
    codes, wanted = read_q4_0(raw)
    np.testing.assert_array_equal(scales, wanted)
    np.testing.assert_array_equal(values, codes[:, 0::2] | codes[:, 1::2] << 4)
    np.testing.assert_array_equal(multiply_out(codes, scales), gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_0))
    np.testing.assert_array_equal(unpack_q4(values, scales), multiply_out(codes, scales))


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
