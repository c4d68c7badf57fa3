"""4-bit weights in groups of columns, value = (nibble - 8) * scale; and GGUF's Q4_0, the same in another order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gemma4web.errors import CheckpointError
from gemma4web.program.ir import Q4_GROUPS, ScaleDtype

Q4_0_GROUP: Final = 32
Q4_0_BLOCK_BYTES: Final = 2 + Q4_0_GROUP // 2
"""An f16 scale and 16 bytes: column j of the group in the low nibble of byte j, column j + 16 in the high one."""

Scales = npt.NDArray[np.float16] | npt.NDArray[np.float32]

_CHUNK_VALUES: Final = 1 << 16
"""Values that are worked on at a time: their temporaries stay in the processor's cache."""
_ON_GRID: Final = 1 / 24
"""Distance from an integer, in steps, of values that lie on a trained grid: bf16 moves a value of k steps, and the step
with it, by 2^-9 each, so that k <= 8 steps are off by at most 8 * (2^-8 + 2^-11 of the f16 scale)."""
_NEAR_HALF: Final = 0.4999
"""Distance from an integer beyond which an f32 quotient up to 16 leaves open which integer is nearest: it is off by 1e-6."""
_SAMPLE: Final = 4
"""Columns that rule out most steps of a group that has no grid."""


def _extremes(columns: npt.NDArray[np.float32], low: npt.NDArray[np.float32], high: npt.NDArray[np.float32],
              ) -> npt.NDArray[np.float32]:
    """The value of greatest magnitude of every group f32[group, n], the first of equals -> f32[n]."""
    extremes = np.where(high > -low, high, low)
    ties = np.flatnonzero(high == -low)
    if ties.size:
        tied = columns[:, ties]
        extremes[ties] = np.take_along_axis(tied, np.abs(tied).argmax(axis=0)[None], axis=0)[0]
    return extremes


def _on_grid(columns: npt.NDArray[np.float32], inverse: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Whether every value of a group f32[columns, n] is close to a multiple of its step f32[n], given as 1 / step."""
    steps = columns * inverse
    rounded = np.rint(steps)
    rounded -= steps
    return np.asarray(np.abs(rounded, out=rounded).max(axis=0) <= _ON_GRID)


def _likely_counts(sample: npt.NDArray[np.float32], inverse: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The largest of 1..7 that puts the sampled values f32[columns, n] on steps of extreme / count, else 0 -> f32[n]."""
    counts = np.zeros(inverse.size, np.float32)
    for count in range(1, 8):
        counts[_on_grid(sample, inverse * count)] = count
    return counts


def _trained_scales(columns: npt.NDArray[np.float32], extremes: npt.NDArray[np.float32],
                    clamped: npt.NDArray[np.bool_], scales: Scales) -> None:
    """Replaces the scales of groups that lie on the grid of another step than extreme / -8 by that step.

    ``clamped`` bool[n]: with that step there is a value at +8, which has no code. A few columns tell which step a group may
    have, one look at all columns whether it has it; the few groups that disappoint are asked about each smaller count.
    """
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.where(extremes == 0, np.float32(0), np.float32(-1) / extremes)
        counts = np.zeros(extremes.size, np.float32)
        left = np.flatnonzero(clamped | ~_on_grid(columns, inverse * 8))
        counts[left] = _likely_counts(columns[:_SAMPLE].take(left, axis=1), inverse[left])
        found = (counts > 0) & _on_grid(columns, inverse * counts)
        scales[found] = extremes[found] / -counts[found]
        left = np.flatnonzero((counts > 1) & ~found)
        for count in range(6, 0, -1):
            groups = left[counts[left] > count]
            fits = groups[_on_grid(columns.take(groups, axis=1), inverse[groups] * count)] if groups.size else groups
            scales[fits] = extremes[fits] / np.float32(-count)
            counts[fits] = 0


def _codes(columns: npt.NDArray[np.float32], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.uint8]:
    """clamp(round(columns / scales) + 8, 0, 15), halves to even -> u8[32, n].

    A quotient in f32 that is near a half may have been rounded onto it or over it: those are divided again in f64, which
    has the digits to tell.
    """
    steps = columns / scales.astype(np.float32)
    rounded = np.rint(steps)
    steps -= rounded
    np.abs(steps, out=steps)
    near = np.flatnonzero(steps.max(axis=0) > _NEAR_HALF)
    if near.size:
        rounded[:, near] = np.rint(columns[:, near] / scales[near].astype(np.float64))
    rounded += 8
    return np.clip(rounded, 0, 15, out=rounded).astype(np.uint8)


def _quantise_chunk(groups: npt.NDArray[np.float32], dtype: npt.DTypeLike) -> tuple[npt.NDArray[np.uint8], Scales]:
    """groups f32[n, group] -> values u8[n, group/2], scales [n]; infinite where one overflows."""
    columns = np.ascontiguousarray(groups.T)  # numpy is many times faster along the long axis
    low, high = columns.min(axis=0), columns.max(axis=0)
    extremes = _extremes(columns, low, high)
    with np.errstate(over="ignore"):
        scales = (extremes / np.float32(-8)).astype(dtype)
        _trained_scales(columns, extremes, np.minimum(-low, high) >= np.abs(extremes) * np.float32(7.5 / 8), scales)
    scales[scales == 0] = 1
    codes = _codes(columns, scales)
    return np.bitwise_or(codes[0::2], codes[1::2] << 4).astype(np.uint8, copy=False).T, scales


def quantise(
    weight: npt.NDArray[np.float32], *, name: str, group: int = Q4_GROUPS[0], scale_dtype: ScaleDtype = ScaleDtype.F16,
) -> tuple[npt.NDArray[np.uint8], Scales]:
    """weight f32[out, in] -> values u8[out, in/2] (even column in the low nibble), scales [out, in/group].

    The scale of a group is its value of greatest magnitude (the first of equals), sign included, over -8, rounded to
    the scales' dtype; or over -m, m the largest of 1..7 that puts all values of the group on whole steps where -8 does not put them
    on -8..7, as for weights that were trained on the Q4_0 grid. A code is clamp(round(w / scale) + 8, 0, 15), halves to even.
    A group whose scale rounds to zero gets scale 1 and zeros. Raises CheckpointError, naming the tensor, when
    in % group != 0 or a scale overflows f16.
    """
    rows, columns = weight.shape
    if columns % group:
        raise CheckpointError(f"{name}: {columns} columns are no multiple of {group}, which q4 needs",
                              advice="export with --weights f32")
    dtype: npt.DTypeLike = np.float16 if scale_dtype is ScaleDtype.F16 else np.float32
    groups = np.ascontiguousarray(weight).reshape(-1, group)
    values, scales = np.empty((len(groups), group // 2), np.uint8), np.empty(len(groups), dtype)
    for first in range(0, len(groups), _CHUNK_VALUES // group):
        chunk = slice(first, first + _CHUNK_VALUES // group)
        values[chunk], scales[chunk] = _quantise_chunk(groups[chunk], dtype)
    if not np.isfinite(scales).all():
        raise CheckpointError(f"{name}: a value of magnitude {np.abs(weight).max():.6g} is too large for an f16 scale",
                              advice="export with --scale-dtype f32, or with --weights f32")
    return values.reshape(rows, columns // 2), scales.reshape(rows, columns // group)


def _blocks(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Rows of Q4_0 blocks u8[out, in/32*18] -> their bytes of codes u8[out, in/32, 16] and scales f16[out, in/32]."""
    blocks = raw.reshape(raw.shape[0], -1, Q4_0_BLOCK_BYTES)
    return np.ascontiguousarray(blocks[..., 2:]), np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]


def read_q4_0(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Rows of Q4_0 blocks u8[out, in/32*18] -> codes u8[out, in] of 0..15, scales f16[out, in/32], both as stored."""
    blocks, scales = _blocks(raw)
    codes = np.concatenate([blocks & 15, blocks >> 4], axis=2)
    return codes.reshape(raw.shape[0], -1), scales


def repack_q4_0(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Rows of Q4_0 blocks u8[out, in/32*18] -> values u8[out, in/2] as ``quantise`` packs them, scales f16[out, in/32].

    Two bytes of a block hold columns j and j + 1 in their low nibbles, j + 16 and j + 17 in the high ones.
    """
    rows, groups = len(raw), raw.shape[1] // Q4_0_BLOCK_BYTES
    values, scales = np.empty((rows, groups, Q4_0_GROUP // 2), np.uint8), np.empty((rows, groups), np.float16)
    step = max(1, 2 * _CHUNK_VALUES // (groups * Q4_0_GROUP))
    for first in range(0, rows, step):
        chunk = slice(first, first + step)
        blocks, scales[chunk] = _blocks(raw[chunk])
        pairs = blocks.view("<u2")
        values[chunk, :, :8] = pairs & 0x0F | pairs >> 4 & 0xF0
        values[chunk, :, 8:] = pairs >> 4 & 0x0F | pairs >> 8 & 0xF0
    return values.reshape(rows, -1), scales


def multiply_out(codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """The values f32[out, in] of codes and scales; exact, a product has at most 15 significant bits."""
    groups = (codes.astype(np.float32) - 8).reshape(*scales.shape, Q4_0_GROUP)
    return (groups * scales.astype(np.float32)[..., None]).reshape(codes.shape)
