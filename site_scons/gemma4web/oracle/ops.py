"""The reference of every op in the program schema: one pure function an op, in float64 unless told otherwise.

Shapes are those beside the tables in ``program.fbs``; N is the number of rows of the pass. A function never changes its
arguments and computes in ``dtype``, whatever the dtype of its inputs. Weights are plain floating arrays here: packed
4-bit weights are unpacked first (``unpack_q4``), which is exact. Formulas: Gemma 4 as the Hugging Face implementation
computes it.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]

TURN_BITS: Final = 32
"""RoPE frequencies are fixed point: 2**32 units are one turn, so that phases wrap without loss."""


def _ints(values: npt.ArrayLike) -> Ints:
    return np.asarray(values, np.int32).reshape(-1)


def unpack_q4(
    values: Array, scales: Array, *, dtype: npt.DTypeLike = np.float64, swap_nibbles: bool = False
) -> Array:
    """values u8[O, K/2], scales [O, K/group] -> [O, K] = (nibble - 8) * scale, column 2j in the low nibble of byte j.

    ``swap_nibbles`` is the fault of reading the two columns of a byte in the other order.
    """
    rows, half = values.shape
    low, high = values & 15, values >> 4
    pair = (high, low) if swap_nibbles else (low, high)
    codes = np.stack(pair, axis=-1).reshape(rows, half * 2).astype(dtype) - 8
    return np.asarray(codes * np.repeat(scales.astype(dtype), 2 * half // scales.shape[1], axis=1))


def embedding(ids: npt.ArrayLike, table: Array, scale: float, *, dtype: npt.DTypeLike = np.float64) -> Array:
    """ids i32[N], table [V, D] -> [N, D] = table[id] * scale; an id outside 0..V-1 gives a zero row."""
    index = _ints(ids)
    inside = (index >= 0) & (index < table.shape[0])
    rows = table[np.where(inside, index, 0)].astype(dtype) * np.asarray(scale, dtype)
    return np.where(inside[:, None], rows, np.zeros((), dtype))


def rms(x: Array, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) over the last axis."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + np.asarray(eps, x.dtype)))


def rms_norm(
    x: Array, *, width: int, eps: float, weight: Array | None = None, residual: Array | None = None,
    scalar: Array | None = None, dtype: npt.DTypeLike = np.float64,
) -> Array:
    """(residual + rms(x) * weight) * scalar with rms over groups of ``width`` columns; absent inputs drop out.

    x [N, G*width], weight [width], residual like x, scalar [1] -> like x. The weight multiplies as stored (no 1+).
    """
    y = rms(x.astype(dtype).reshape(-1, width), eps)
    if weight is not None:
        y = y * weight.astype(dtype)
    y = y.reshape(x.shape)
    if residual is not None:
        y = residual.astype(dtype) + y
    return y if scalar is None else y * scalar.astype(dtype).reshape(())


def linear(x: Array, weight: Array, *, dtype: npt.DTypeLike = np.float64) -> Array:
    """x [N, K], weight [O, K] -> [N, O] = x weight^T."""
    return np.asarray(x.astype(dtype) @ weight.astype(dtype).T)


def rope_frequencies(*, head_dim: int, rotated_pairs: int, denominator: int, theta: float) -> npt.NDArray[np.float64]:
    """Radians per position of each of head_dim/2 pairs: theta^(-2i/denominator) for i < rotated_pairs, else 0."""
    pair = np.arange(head_dim // 2, dtype=np.float64)
    return np.where(pair < rotated_pairs, theta ** (-2.0 * pair / denominator), 0.0)


def rope_turns(*, head_dim: int, rotated_pairs: int, denominator: int, theta: float) -> npt.NDArray[np.uint32]:
    """The ``frequencies`` table of the rope kernel: turns per position in units of 2^-32, u32[head_dim/2]."""
    radians = rope_frequencies(head_dim=head_dim, rotated_pairs=rotated_pairs, denominator=denominator, theta=theta)
    units = np.floor(radians / (2.0 * math.pi) * 2.0**TURN_BITS + 0.5)
    return units.astype(np.uint64).astype(np.uint32)


def rope(
    x: Array, positions: npt.ArrayLike, *, head_dim: int, rotated_pairs: int, denominator: int, theta: float,
    dtype: npt.DTypeLike = np.float64,
) -> Array:
    """Turns element i of every head with element i + head_dim/2 by position * frequency_i; x [N, heads*head_dim].

    Angles and their sines are always float64; only the products are in ``dtype``.
    """
    frequency = rope_frequencies(head_dim=head_dim, rotated_pairs=rotated_pairs, denominator=denominator, theta=theta)
    angle = _ints(positions).astype(np.float64)[:, None, None] * frequency
    cosine, sine = np.cos(angle).astype(dtype), np.sin(angle).astype(dtype)
    heads = x.astype(dtype).reshape(x.shape[0], -1, head_dim)
    first, second = heads[..., : head_dim // 2], heads[..., head_dim // 2 :]
    turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.reshape(x.shape)


def cache_write(x: Array, positions: npt.ArrayLike, cache: Array) -> Array:
    """x [N, heads*d], positions i32[N] -> cache [1, S, heads, d] with row position % S replaced; later rows win."""
    after = cache.copy()
    _, capacity, heads, head_dim = cache.shape
    for row, position in enumerate(_ints(positions)):
        after[0, int(position) % capacity] = x[row].reshape(heads, head_dim)
    return after


def donor_view(cache: Array) -> Array:
    """cache [1, S, heads, d] -> [1, heads, S, d]; the attention that reads it picks the visible slots."""
    return cache.transpose(0, 2, 1, 3)


def visible_positions(query: int, window: int, *, donor: bool) -> npt.NDArray[np.int64]:
    """Key positions that a query sees. Causal, query at p: t <= p and t > p - window (window 0: all of 0..p).

    Donor, ``query`` = donor length P: max(0, P - window + 1)..P-1 (window 0: 0..P-1), the same for every row.
    """
    last = query - 1 if donor else query
    first = max(0, query - window + 1) if window > 0 else 0
    return np.arange(first, last + 1, dtype=np.int64)


def attention(
    q: Array, keys: Array, values: Array, positions: npt.ArrayLike, *, head_dim: int, window: int, donor: bool,
    dtype: npt.DTypeLike = np.float64,
) -> Array:
    """softmax(q . K) V over the visible positions, no scale; query head h reads KV head h // (q_heads / kv_heads).

    q [N, heads*d]. Causal: keys, values are caches [1, S, heads, d], ``positions`` i32[N]. Donor: views
    [1, heads, S, d], ``positions`` is the donor length i32[1]. Position t lies in slot t % S. A row that sees nothing
    is zero.
    """
    if donor:
        keys, values = keys.transpose(0, 2, 1, 3), values.transpose(0, 2, 1, 3)
    capacity, kv_heads = keys.shape[1], keys.shape[2]
    rows = q.astype(dtype).reshape(q.shape[0], -1, head_dim)
    grouped = rows.reshape(rows.shape[0], kv_heads, -1, head_dim)
    where = _ints(positions)
    out = np.zeros_like(grouped)
    for n in range(rows.shape[0]):
        slots = visible_positions(int(where[0] if donor else where[n]), window, donor=donor) % capacity
        if slots.size == 0:
            continue
        k, v = (part[0, slots].astype(dtype).transpose(1, 0, 2) for part in (keys, values))  # [kv_heads, visible, d]
        score = grouped[n] @ k.transpose(0, 2, 1)  # [kv_heads, group, visible]
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        out[n] = (weight / weight.sum(axis=-1, keepdims=True)) @ v
    return out.reshape(q.shape)


def gelu_tanh(x: Array) -> Array:
    """0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)))


def gelu_exact(x: Array) -> Array:
    """x Phi(x) with the true normal distribution: what the model does *not* use."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * x * (1.0 + erf(np.asarray(x, np.float64) / math.sqrt(2.0)))).astype(x.dtype)


def gelu_mul(a: Array, b: Array, *, offset: int = 0, exact: bool = False, dtype: npt.DTypeLike = np.float64) -> Array:
    """a [N, F], b [N, S] -> gelu(a) * b[:, offset : offset + F]; ``exact`` is the fault of the other GELU."""
    left = a.astype(dtype)
    gated = gelu_exact(left) if exact else gelu_tanh(left)
    return np.asarray(gated * b[:, offset : offset + a.shape[1]].astype(dtype))


def ple_combine(
    context: Array, token: Array, weight: Array, *, eps: float, context_scale: float, scale: float,
    dtype: npt.DTypeLike = np.float64,
) -> Array:
    """(rms(context * context_scale) * weight + token) * scale; context, token [N, L*P], weight [P], rms per P."""
    slices = context.astype(dtype).reshape(-1, weight.shape[0]) * np.asarray(context_scale, dtype)
    normed = (rms(slices, eps) * weight.astype(dtype)).reshape(context.shape)
    return np.asarray((normed + token.astype(dtype)) * np.asarray(scale, dtype))


def tail_rows(x: Array, tail: int) -> Array:
    """x [Pass, D] (or [Pass]) -> its last ``tail`` rows."""
    return x[x.shape[0] - tail :]


def softcap(x: Array, cap: float, *, dtype: npt.DTypeLike = np.float64) -> Array:
    """cap * tanh(x / cap)."""
    return np.asarray(cap * np.tanh(x.astype(dtype) / cap))


def argmax(x: Array) -> Ints:
    """x [N, V] -> i32[N]: the lowest index of the greatest value, -1 where the row holds a NaN."""
    return np.where(np.isnan(x).any(axis=-1), -1, np.argmax(x, axis=-1)).astype(np.int32)


def concat(a: Array, b: Array) -> Array:
    """a [N, A], b [N, B] -> [N, A+B]."""
    return np.concatenate([a, b], axis=-1)


def top_k(x: Array, k: int) -> tuple[Array, Ints]:
    """x [1, n] -> values [1, k], indices i32[1, k]: descending, NaN first, +0 equals -0, ties by the lower index."""
    row = x.reshape(-1)
    nan = np.isnan(row)
    rank = np.lexsort((np.arange(row.size), -np.where(nan, 0.0, row), ~nan))
    best = rank[:k]
    return row[best].reshape(1, k), best.astype(np.int32).reshape(1, k)


def gather_rows(table: Array, index: npt.ArrayLike) -> Ints:
    """table i32[C, G], index i32[1, k] -> i32[1, k*G]; an index outside 0..C-1 gives -1 everywhere in its row."""
    rows = _ints(index)
    inside = (rows >= 0) & (rows < table.shape[0])
    picked = np.where(inside[:, None], table[np.where(inside, rows, 0)], -1)
    return picked.astype(np.int32).reshape(1, -1)


def gather_linear(y: Array, weight: Array, ids: npt.ArrayLike, *, dtype: npt.DTypeLike = np.float64) -> Array:
    """y [1, K], weight [V, K], ids i32[1, n] -> [1, n] = weight[ids] . y; an id outside 0..V-1 gives -inf."""
    index = _ints(ids)
    inside = (index >= 0) & (index < weight.shape[0])
    score = weight[np.where(inside, index, 0)].astype(dtype) @ y.astype(dtype).reshape(-1)
    return np.where(inside, score, -np.inf).astype(dtype).reshape(1, -1)


def amin(x: Array) -> Array:
    """x [1, n] -> [1, 1]: the least value."""
    return np.asarray(x.min()).reshape(1, 1)


def fill(scalar: Array, size: int, offset: float) -> Array:
    """scalar [1, 1] -> [1, size], every element scalar + offset."""
    return np.full((1, size), scalar.reshape(())[()] + np.asarray(offset, scalar.dtype), scalar.dtype)


def scatter(template: Array, index: npt.ArrayLike, source: Array) -> Array:
    """template [1, V], index i32[1, n], source [1, n] -> [1, V]; ascending, last write wins, out of range dropped."""
    after = template.copy()
    values = source.reshape(-1)
    for element, target in enumerate(_ints(index)):
        if 0 <= target < after.shape[1]:
            after[0, target] = values[element]
    return after


def scatter_unique(template: Array, index: npt.ArrayLike, source: Array) -> Array:
    """``scatter`` of indices that are certified to be unique. Raises ValueError when two of those in range are equal."""
    where = _ints(index)
    inside = where[(where >= 0) & (where < template.shape[1])]
    if np.unique(inside).size != inside.size:
        raise ValueError("two indices of a unique scatter are equal")
    return scatter(template, index, source)


def add_scalar(x: npt.ArrayLike, value: int) -> Ints:
    """i32 -> i32 + value, wrapping."""
    return _wrapped(np.asarray(x, np.int32).astype(np.int64) + value)


def subtract(a: npt.ArrayLike, b: npt.ArrayLike) -> Ints:
    """i32 a and b, of one shape or b one integer -> a - b, wrapping."""
    wide = np.asarray(a, np.int32).astype(np.int64)
    less = np.asarray(b, np.int32).astype(np.int64)
    return _wrapped(wide - (less.reshape(()) if less.size == 1 else less))


def _wrapped(wide: npt.NDArray[np.int64]) -> Ints:
    """i64 -> its lowest 32 bits."""
    return np.asarray(wide.astype(np.uint64).astype(np.uint32)).view(np.int32)


def pass_rows(
    ids: npt.ArrayLike, positions: npt.ArrayLike, flag: int, draft_0: int, draft_1: int, *, rows: int
) -> tuple[Ints, Ints]:
    """Rows of the target pass. Flag 0: the first ``rows`` of ids and positions. Flag 1 (rows = 3): the pending token
    and both drafts at positions[0], +1, +2."""
    token, where = _ints(ids), _ints(positions)
    if flag == 0:
        return token[:rows].copy(), where[:rows].copy()
    places = np.array([add_scalar(where[:1], step)[0] for step in range(3)], np.int32)
    return np.array([token[0], draft_0, draft_1], np.int32), places


def accept(flag: int, draft_0: int, draft_1: int, greedy: npt.ArrayLike) -> tuple[Ints, Ints, Ints, Ints]:
    """Drafts against the target's greedy rows -> candidates [1,2], target greedy [1,3], match count [1,1], bonus [1,1].

    Flag 0 (a prefill): the last greedy row three times, no candidates (-1), match 0.
    """
    rows = _ints(greedy)
    if flag == 0:
        candidates, best, match = [-1, -1], [rows[-1]] * 3, 0
    else:
        candidates, best = [draft_0, draft_1], list(rows[:3])
        match = 0 if draft_0 != best[0] else 1 if draft_1 != best[1] else 2

    def shaped(values: list[Any]) -> Ints:
        return np.array(values, np.int32).reshape(1, -1)

    return shaped(candidates), shaped(best), shaped([match]), shaped([best[match]])


def seed_write(flag: int, hidden: Array, match: int) -> tuple[Array, Array]:
    """The state that produced the bonus token, h[match] (flag 0: the last row) -> seed [1,1,1,H], probe [1,1]."""
    row = hidden[match] if flag else hidden[-1]
    return row.reshape(1, 1, 1, -1).copy(), row[:1].reshape(1, 1).copy()


def copy_last(greedy: npt.ArrayLike) -> Ints:
    """greedy i32[Tail] -> i32[1, 1], its last element."""
    return _ints(greedy)[-1:].reshape(1, 1).copy()
