"""References that the oracle has no need of: fused ops, commit steps, copies, sums of parts, argmax stages, RoPE, split attention."""

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


def offset_integers(x: Array, value: int, y: Array | None) -> npt.NDArray[np.int32]:
    """i32 x + value - y, wrapping; y i32 of x's shape, of one element, or None."""
    offset = ops.add_scalar(x, value)
    return offset if y is None else ops.subtract(offset, y)


def sum_parts(parts: Array, bias: Array) -> npt.NDArray[np.float64]:
    """parts [P, M, N], bias [N] -> [M, N]."""
    return np.asarray(parts.astype(np.float64).sum(axis=0) + bias.astype(np.float64))


def rms_norm_pair(
    x: Array, weight: Array | None, residual: Array | None, scalar: Array | None, next_weight: Array, *, eps: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """x and residual [N, W], weights [W], scalar [1] -> (out, norm of out) [N, W]; not rounded in between."""
    width = x.shape[1]
    out = ops.rms_norm(x, width=width, eps=eps, weight=weight, residual=residual, scalar=scalar)
    return out, ops.rms_norm(out, width=width, eps=eps, weight=next_weight)


def gated_linear(x: Array, gate: Array, factor: Array, *, silu: bool = False) -> npt.NDArray[np.float64]:
    """act(x . gate) * factor: x [N, K], gate [O, K], factor [N, O]. gelu_tanh, or silu(v) = v / (1 + exp(-v))."""
    value = ops.linear(x, gate)
    # tanh knows no overflow: 1 / (1 + exp(-v)) is (1 + tanh(v / 2)) / 2.
    activated = 0.5 * value * (1.0 + np.tanh(0.5 * value)) if silu else ops.gelu_tanh(value)
    return np.asarray(activated * factor)


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


CHUNK = 16
"""Keys that one split of a decode step takes at a time, at multiples of the position."""


def attention_partials(
    q: Array, k: Array, v: Array, positions: Array, *, head_dim: int, window: int, donor: bool, splits: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """q [N, heads*d] over rings [1, S, kv_heads, d] -> values [N, heads, splits, d], stats [N, heads, splits, 4].

    Split s has every ``splits``-th chunk of visible keys from the s-th on; stats are max, sum, 0, 0. NaN where a split has
    no key.
    """
    rows, (capacity, kv_heads) = q.shape[0], k.shape[1:3]
    heads = q.astype(np.float64).reshape(rows, -1, head_dim)
    values = np.full((rows, heads.shape[1], splits, head_dim), np.nan)
    stats = np.full((rows, heads.shape[1], splits, 4), np.nan)
    for row in range(rows):
        seen = ops.visible_positions(int(positions[0 if donor else row]), window, donor=donor)
        for head in range(heads.shape[1]):
            kv_head = head // (heads.shape[1] // kv_heads)
            for split in range(splits if seen.size else 0):
                mine = seen[(seen // CHUNK - seen[0] // CHUNK) % splits == split]
                if not mine.size:
                    continue
                score = k[0, mine % capacity, kv_head].astype(np.float64) @ heads[row, head]
                weight = np.exp(score - score.max())
                values[row, head, split] = weight @ v[0, mine % capacity, kv_head].astype(np.float64)
                stats[row, head, split] = score.max(), weight.sum(), 0.0, 0.0
    return values, stats


def attention_of_partials(values: Array, stats: Array) -> npt.NDArray[np.float64]:
    """What the splits come to together, [N, heads*d]; a row without splits is zero."""
    top = np.fmax.reduce(stats[..., 0], axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(invalid="ignore"):
        weight = np.nan_to_num(np.exp(stats[..., 0] - top))
    sums = (weight * np.nan_to_num(stats[..., 1])).sum(axis=-1)
    total = (weight[..., None] * np.nan_to_num(values)).sum(axis=-2)
    return np.asarray(total / np.where(sums == 0.0, 1.0, sums)[..., None]).reshape(values.shape[0], -1)


def to_digits(x: Array) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """x f32[M, 32 U] -> digits u32[M, 6, U, 4] and powers f32[M, U], with x = (a + 256 b + 65536 c) * 16 * power.

    A unit's largest number lies in 2^21..2^22 as an integer. Per 8 columns there are words of the even and of the odd
    ones: vectors 0, 2, 3, 5 have digits a and b of the four groups of 8, vectors 1 and 4 have c of two groups each. A
    unit that is not finite has power NaN and digits 0.
    """
    rows, units = x.shape[0], x.shape[1] // 32
    by_unit = x.astype(np.float64).reshape(rows, units, 32)
    most = np.abs(by_unit).max(axis=2)
    finite = np.isfinite(most)
    exponent = np.where(most > 0, np.clip(np.frexp(np.where(finite, most, 1.0))[1] + 126, 64, 254), 64)
    whole = np.where(finite[..., None], by_unit, 0.0) * 2.0 ** (148.0 - exponent)[..., None]
    number = np.rint(whole).astype(np.int64)
    a = (number + 128) % 256 - 128
    rest = (number - a) // 256
    b = (rest + 128) % 256 - 128
    digits = np.stack([a, b, (rest - b) // 256])
    bytes_ = digits.astype(np.int8).reshape(3, rows, units, 4, 4, 2)
    even_odd = np.ascontiguousarray(np.moveaxis(bytes_, 5, 0)).view(np.uint32)[..., 0]
    word = {(digit, eight, parity): even_odd[parity, digit, :, :, eight]
            for digit in range(3) for eight in range(4) for parity in range(2)}
    low = [np.stack([word[0, e, 0], word[0, e, 1], word[1, e, 0], word[1, e, 1]], axis=-1) for e in range(4)]
    high = [np.stack([word[2, e, 0], word[2, e, 1], word[2, e + 1, 0], word[2, e + 1, 1]], axis=-1) for e in (0, 2)]
    vectors = np.stack([low[0], high[0], low[1], low[2], high[1], low[3]], axis=1)
    powers = np.where(finite, 2.0 ** (exponent - 152.0), np.nan).astype(np.float32)
    return vectors, powers


def to_halves(x: Array, *, parts: int = 2) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.float32]]:
    """x f32[M, 8 E] -> halves u32[M, E, parts, 4] and powers f32[M], with x = (sum of the parts) * power.

    A row's largest number lies in 2^14..2^15 as a half. Of two parts the first has the upper 11 bits, cut, and the second
    the rest; a single one is rounded. Eight columns lie in the order 0 4 1 5 2 6 3 7. A row that is not finite has power NaN
    and halves 0.
    """
    rows = x.shape[0]
    most = np.abs(x.astype(np.float64)).max(axis=1)
    finite = np.isfinite(most)
    exponent = np.where(most > 0, np.clip(np.frexp(np.where(finite, most, 1.0))[1] + 126, 64, 254), 64)
    whole = np.where(finite[:, None], x.astype(np.float64), 0.0) * 2.0 ** (141.0 - exponent)[:, None]
    upper = (whole.astype(np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    pieces = [upper, whole - upper] if parts == 2 else [whole]
    halves = np.stack([piece.astype(np.float16).reshape(rows, -1, 8)[:, :, [0, 4, 1, 5, 2, 6, 3, 7]] for piece in pieces], axis=2)
    powers = np.where(finite, 2.0 ** (exponent - 141.0), np.nan).astype(np.float32)
    return np.ascontiguousarray(halves).view(np.uint32), powers


def attention_scores(
    q: Array, k: Array, positions: Array, *, head_dim: int, window: int, donor: bool
) -> npt.NDArray[np.float64]:
    """q [N, heads*d] over a ring [1, S, kv_heads, d] -> [N, heads, S], NaN in the slots that a row does not see."""
    rows, (capacity, kv_heads) = q.shape[0], k.shape[1:3]
    heads = q.astype(np.float64).reshape(rows, -1, head_dim)
    scores = np.full((*heads.shape[:2], capacity), np.nan)
    for row in range(rows):
        slots = ops.visible_positions(int(positions[0 if donor else row]), window, donor=donor) % capacity
        for head in range(heads.shape[1]):
            keys = k[0, slots, head // (heads.shape[1] // kv_heads)].astype(np.float64)
            with np.errstate(invalid="ignore"):
                scores[row, head, slots] = keys @ heads[row, head]
    return scores


def attention_softmax(scores: Array) -> npt.NDArray[np.float64]:
    """Scores [N, heads, S] -> weights that sum to 1 where there is any; NaN stays NaN, an unseen slot."""
    wide = scores.astype(np.float64)
    with np.errstate(invalid="ignore"):
        weights = np.exp(wide - np.fmax.reduce(wide, axis=-1, keepdims=True))
        return np.asarray(weights / np.nansum(weights, axis=-1, keepdims=True))


def attention_of_weights(weights: Array, v: Array) -> npt.NDArray[np.float64]:
    """Weights [N, heads, S] and a ring [1, S, kv_heads, d] -> [N, heads*d]; slots with NaN for a weight are not touched."""
    rows, heads = weights.shape[:2]
    out = np.zeros((rows, heads, v.shape[3]))
    for row in range(rows):
        for head in range(heads):
            slots = np.flatnonzero(~np.isnan(weights[row, head]))
            out[row, head] = weights[row, head, slots] @ v[0, slots, head // (heads // v.shape[2])].astype(np.float64)
    return out.reshape(rows, -1)
