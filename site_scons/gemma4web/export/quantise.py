"""4-bit weights in groups of 32 columns, value = (nibble - 8) * scale."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemma4web.errors import CheckpointError
from gemma4web.program.ir import Q4_GROUP


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
    flat = codes.reshape(rows, columns)
    return flat[:, 0::2] | (flat[:, 1::2] << 4), scales
