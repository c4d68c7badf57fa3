"""References that the oracle has no need of: the two commit steps, plain copies, sums of parts, and RoPE in fixed-point turns."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


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
