"""4-bit weights in groups of 32 columns, value = (nibble - 8) * scale; and GGUF's Q4_0, the same in another order."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from gemma4web.errors import CheckpointError
from gemma4web.program.ir import Q4_GROUP

Q4_0_BLOCK_BYTES: Final = 2 + Q4_GROUP // 2
"""An f16 scale and 16 bytes: column j of the group in the low nibble of byte j, column j + 16 in the high one."""


def quantise(
    weight: npt.NDArray[np.float32], *, name: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """weight f32[out, in] -> values u8[out, in/2] (even column in the low nibble), scales f16[out, in/32].

    The scale of a group is its value of greatest magnitude (the first of equals), sign included, over -8, rounded to
    f16; a code is clamp(round(w / scale) + 8, 0, 15), halves to even. A group whose scale rounds to zero gets scale 1
    and zeros. Raises CheckpointError, naming the tensor, when in % 32 != 0 or a scale overflows f16.
    """
    rows, columns = weight.shape
    if columns % Q4_GROUP:
        raise CheckpointError(f"{name}: {columns} columns are no multiple of {Q4_GROUP}, which q4 needs",
                              advice="export with --weights f32")
    groups = weight.reshape(rows, columns // Q4_GROUP, Q4_GROUP)
    place = np.abs(groups).argmax(axis=2)
    extreme = np.take_along_axis(groups, place[..., None], axis=2)[..., 0]
    with np.errstate(over="ignore"):
        scales = (extreme / np.float32(-8)).astype(np.float16)
    if not np.isfinite(scales).all():
        raise CheckpointError(f"{name}: a value of magnitude {np.abs(weight).max():.6g} is too large for an f16 scale",
                              advice="export with --weights f32")
    scales = np.where(scales == 0, np.float16(1), scales)
    codes = np.clip(np.rint(groups / scales.astype(np.float64)[..., None]) + 8, 0, 15).astype(np.uint8)
    return packed(codes.reshape(rows, columns)), scales


def packed(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """codes u8[out, in] of 0..15 -> u8[out, in/2], the even column in the low nibble."""
    return (codes[:, 0::2] | (codes[:, 1::2] << 4)).astype(np.uint8, copy=False)


def read_q4_0(raw: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Rows of Q4_0 blocks u8[out, in/32*18] -> codes u8[out, in] of 0..15, scales f16[out, in/32], both as stored."""
    rows = raw.shape[0]
    blocks = raw.reshape(rows, -1, Q4_0_BLOCK_BYTES)
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")[..., 0]
    codes = np.concatenate([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], axis=2)
    return codes.reshape(rows, -1), scales


def multiply_out(codes: npt.NDArray[np.uint8], scales: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """The values f32[out, in] of codes and scales; exact, a product has at most 15 significant bits."""
    groups = (codes.astype(np.float32) - 8).reshape(*scales.shape, Q4_GROUP)
    return (groups * scales.astype(np.float32)[..., None]).reshape(codes.shape)
