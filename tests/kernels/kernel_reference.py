"""References that the oracle has no need of: commit steps, copies, sums of parts, stages of argmax, RoPE in turns."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.oracle import ops

Array = npt.NDArray[Any]

ARGMAX_PART: Final = 2048
"""Columns of one part of the two-stage argmax."""


def copy_words(source: Array, *, offset: int, count: int) -> Array:
    return source[offset:offset + count].copy()


def sum_parts(parts: Array, bias: Array) -> npt.NDArray[np.float64]:
    """parts [P, M, N], bias [N] -> [M, N]."""
    return np.asarray(parts.astype(np.float64).sum(axis=0) + bias.astype(np.float64))


def rope_of_turns(x: Array, positions: Array, turns: Array) -> npt.NDArray[np.float64]:
    """x [N, heads*d], positions i32[N], turns u32[d/2] in 2^-32 of a full turn per position -> float64 like x.

    The phase is an integer modulo 2^32, so that only sine, cosine and the products round.
    """
    phase = (positions.astype(np.uint32).astype(np.uint64)[:, None] * turns.astype(np.uint64)[None, :]) % 2**32
    angle = phase.astype(np.float64) * (2.0 * math.pi / 2**32)
    cosine, sine = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
    half = turns.size
    heads = x.astype(np.float64).reshape(x.shape[0], -1, 2 * half)
    first, second = heads[..., :half], heads[..., half:]
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1).reshape(x.shape)


def commit_round(
    *, flag: int, match: int, bonus: int, positions: Array, donor_length: int, rows: int
) -> tuple[int, int]:
    """(pending token, its position P): behind the prompt's last row after a prefill, P + match + 1 after a round."""
    return bonus, donor_length + match + 1 if flag else int(positions[rows - 1]) + 1


def commit_step(*, next_token: int, positions: Array, rows: int) -> tuple[int, int]:
    """(pending token, its position): one behind the last row of the pass."""
    return next_token, int(positions[rows - 1]) + 1


def order_key(x: Array) -> npt.NDArray[np.uint32]:
    """f32 -> u32 of the same order: +0 and -0 are 2^31, every NaN is the largest."""
    value = x.astype(np.float32)
    wide = value.view(np.int32).astype(np.int64)
    key = 2**31 + np.where(wide < 0, -(wide + 2**31) - 1, wide)
    key = np.where(value == 0.0, 2**31, key)
    return np.where(np.isnan(value), 2**32 - 1, key).astype(np.uint32)


def argmax_parts(x: Array) -> npt.NDArray[np.int64]:
    """x f32[N, V] -> [N, 2 * parts]: key and lowest index of the largest of every 2048 columns; a NaN is the largest."""
    rows = []
    for row in x:
        for first in range(0, x.shape[1], ARGMAX_PART):
            part = row[first:first + ARGMAX_PART]
            place = int(ops.top_k(part.reshape(1, -1), 1)[1][0, 0])
            rows += [int(order_key(part[place:place + 1])[0]), first + place]
    return np.array(rows, np.int64).reshape(x.shape[0], -1)


def argmax_final(best: Array) -> npt.NDArray[np.int32]:
    """(key, index) [N, 2 * parts] -> i32[N]: the lowest index of the largest key, -1 where that is a NaN's."""
    pairs = best.reshape(best.shape[0], -1, 2).astype(np.int64)
    found = [min((-key, index) for key, index in row.tolist()) for row in pairs]
    return np.array([-1 if -key == 2**32 - 1 else index for key, index in found], np.int32)
