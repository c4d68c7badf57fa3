"""The data of a row: random inputs from a seed, which both sides get, and its reference in float64.

Every input is exact in f16, so that one reference serves both precisions. Weights are packed as runtime and MatMulNBits
both read them: u8 [N, K/32, 16], the even column in the low nibble, value = (nibble - 8) * scale.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.kernel_bench.rows import GROUP, Operation, Row
from gemma4web.oracle import ops

Array = npt.NDArray[Any]
Rng = np.random.Generator

CHECKED_COLUMNS: Final = 2048
"""Columns of a linear row that are compared; of wider ones a random choice with both ends."""
EPSILON: Final = 1e-6
LOWEST: Final = -65504.0
"""Where scatter writes nothing: the lowest number that f16 has too."""


class Role(StrEnum):
    INPUT = "input"
    WEIGHT = "weight"
    """Read once a call, so it is rotated among copies that no cache holds together."""
    IN_OUT = "in_out"
    """A cache: written by a call, so put back before each check; rotated too."""
    OUTPUT = "output"
    """Filled with NaN before each check."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Buffer:
    role: Role
    data: Array

    @property
    def rotated(self) -> bool:
        return self.role in (Role.WEIGHT, Role.IN_OUT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """``error`` takes what a contender wrote, by name and flat, and returns its largest error by its scale; inf: unwritten.

    ``checked``: what of the outputs was compared, in words.
    """

    buffers: Mapping[str, Buffer]
    error: Callable[[Mapping[str, Array]], float]
    checked: str


def make_case(row: Row, seed: int) -> Case:
    """The same data for the same row and seed, whichever rows are measured beside it."""
    rng = np.random.default_rng([seed, zlib.crc32(row.name.encode())])
    return _MAKERS[row.operation](row.sizes, rng)


def _normal(rng: Rng, *shape: int, scale: float = 1.0) -> Array:
    """f32, every value exact in f16."""
    return (rng.standard_normal(shape, np.float32) * np.float32(scale)).astype(np.float16).astype(np.float32)


def _both(name: str, role: Role, data: Array) -> dict[str, Buffer]:
    """The same numbers as f32 under ``name`` and as f16 under ``name``_f16."""
    return {name: Buffer(role=role, data=data.astype(np.float32)),
            f"{name}_f16": Buffer(role=role, data=data.astype(np.float16))}


def _outputs(name: str, count: int) -> dict[str, Buffer]:
    return _both(name, Role.OUTPUT, np.zeros(count, np.float32))


def _worst(found: Array, wanted: Array, magnitude: Array) -> float:
    if found.size != wanted.size:
        return math.inf
    error = np.abs(found.astype(np.float64) - wanted.reshape(-1)) / magnitude.reshape(-1)
    return math.inf if np.isnan(error).any() else float(error.max())


def _weight(rng: Rng, n: int, k: int) -> tuple[Array, Array]:
    """values u8[n, k/2], scales f16[n, k/GROUP] of both signs."""
    values = rng.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (n, k // GROUP)).astype(np.float16) * rng.choice(
        np.array([-1, 1], np.float16), (n, k // GROUP))
    return values, scales


def _weight_buffers(values: Array, scales: Array, suffix: str = "", prefix: str = "") -> dict[str, Buffer]:
    """As our kernels bind them, and f32 scales for the peer in f32."""
    return {f"{prefix}values{suffix}": Buffer(role=Role.WEIGHT, data=values),
            f"{prefix}scales{suffix}": Buffer(role=Role.WEIGHT, data=scales),
            f"{prefix}scales{suffix}_f32": Buffer(role=Role.WEIGHT, data=scales.astype(np.float32))}


def _linear(sizes: Mapping[str, int], rng: Rng) -> Case:
    m, k, n = sizes["m"], sizes["k"], sizes["n"]
    x = _normal(rng, m, k)
    values, scales = _weight(rng, n, k)
    columns = np.arange(n)
    if n > CHECKED_COLUMNS:
        inner = 1 + rng.choice(n - 2, CHECKED_COLUMNS - 2, replace=False)
        columns = np.sort(np.concatenate([[0, n - 1], inner]))
    dense = ops.unpack_q4(values[columns], scales[columns])
    wanted, magnitude = ops.linear(x, dense), ops.linear(np.abs(x), np.abs(dense))

    def error(found: Mapping[str, Array]) -> float:
        out = found["out"].reshape(m, n)
        # A column outside the sample may be anything but unwritten.
        return _worst(out[:, columns].reshape(-1), wanted, magnitude) if np.isfinite(out).all() else math.inf

    return Case(buffers={
        **_both("x", Role.INPUT, x), **_weight_buffers(values, scales), **_outputs("out", m * n),
        "bias": Buffer(role=Role.INPUT, data=np.zeros(4, np.float32)),
    }, error=error, checked=f"{columns.size} of {n} columns, every one finite")


def _topk(sizes: Mapping[str, int], rng: Rng) -> Case:
    n, k = sizes["n"], sizes["k"]
    # Distinct in f16 as well, so that there is one right order.
    x = ((rng.permutation(n) - n // 2) / 32).astype(np.float32)
    values, indices = ops.top_k(x, k)

    def error(found: Mapping[str, Array]) -> float:
        same = np.array_equal(found["values"].astype(np.float32), values[0]) and np.array_equal(
            found["indices"], indices[0])
        return 0.0 if same else math.inf

    index = {f"indices_{kind}": Buffer(role=Role.OUTPUT, data=np.zeros(k, kind)) for kind in ("i4", "i8")}
    return Case(buffers={**_both("x", Role.INPUT, x), **_outputs("values", k), **index}, error=error,
                checked="every value and index, exactly")


def _scatter(sizes: Mapping[str, int], rng: Rng) -> Case:
    count, size = sizes["count"], sizes["size"]
    index = rng.choice(size, count, replace=False).astype(np.int32)
    source = _normal(rng, count)
    template = np.full(size, LOWEST, np.float32)
    wanted = template.copy()
    wanted[index] = source

    def error(found: Mapping[str, Array]) -> float:
        return 0.0 if np.array_equal(found["out"].astype(np.float32), wanted) else math.inf

    return Case(buffers={
        "index": Buffer(role=Role.INPUT, data=index), **_both("source", Role.INPUT, source),
        **_both("template", Role.INPUT, template), "lowest": Buffer(role=Role.INPUT, data=np.array([LOWEST], np.float32)),
        **_outputs("out", size),
    }, error=error, checked="every element, exactly")


def _rms_norm(sizes: Mapping[str, int], rng: Rng) -> Case:
    m, width = sizes["m"], sizes["width"]
    x, weight = _normal(rng, m, width), _normal(rng, width)
    wanted = ops.rms_norm(x, width=width, eps=EPSILON, weight=weight)
    magnitude = np.maximum(1.0, np.abs(wanted))
    return Case(buffers={**_both("x", Role.INPUT, x), **_both("weight", Role.INPUT, weight),
                         "unused": Buffer(role=Role.INPUT, data=np.zeros(4, np.float32)), **_outputs("out", m * width)},
                error=lambda found: _worst(found["out"], wanted, magnitude), checked="every element")


def _attention(sizes: Mapping[str, int], rng: Rng) -> Case:
    """One new token: its key and value go into the last slot of caches of past + 1 slots, then it attends to all."""
    heads, dim, past = sizes["heads"], sizes["head_dim"], sizes["past"]
    q = _normal(rng, 1, heads * dim, scale=dim**-0.5)
    keys, values = _normal(rng, past + 1, dim), _normal(rng, past + 1, dim)
    wanted = ops.attention(q, keys.reshape(1, -1, 1, dim), values.reshape(1, -1, 1, dim), [past], head_dim=dim, window=0,
                           donor=False)
    magnitude = np.maximum(1.0, np.abs(wanted))
    caches: dict[str, Buffer] = {}
    for name, whole in (("k", keys), ("v", values)):
        before = whole.copy()
        before[past] = np.nan
        caches |= _both(f"{name}_new", Role.INPUT, whole[past]) | _both(f"{name}_cache", Role.IN_OUT, before)
    return Case(buffers={
        **_both("q", Role.INPUT, q), **caches, "positions": Buffer(role=Role.INPUT, data=np.array([past], np.int32)),
        **_outputs("out", heads * dim),
    }, error=lambda found: _worst(found["out"], wanted, magnitude), checked="every element")


def _prefill(sizes: Mapping[str, int], rng: Rng) -> Case:
    """A prompt: every row attends to itself and to those before it; keys and values are in caches of as many slots."""
    m, heads, dim = sizes["m"], sizes["heads"], sizes["head_dim"]
    q = _normal(rng, m, heads * dim, scale=dim**-0.5)
    keys, values = _normal(rng, m, dim), _normal(rng, m, dim)
    positions = np.arange(m, dtype=np.int32)
    wanted = ops.attention(q, keys.reshape(1, -1, 1, dim), values.reshape(1, -1, 1, dim), positions, head_dim=dim, window=0,
                           donor=False)
    magnitude = np.maximum(1.0, np.abs(wanted))
    caches: dict[str, Buffer] = {}
    for name, whole in (("k", keys), ("v", values)):
        caches |= _both(f"{name}_new", Role.INPUT, whole) | _both(f"{name}_cache", Role.IN_OUT, whole)
    return Case(buffers={
        **_both("q", Role.INPUT, q), **caches, "positions": Buffer(role=Role.INPUT, data=positions),
        "last": Buffer(role=Role.INPUT, data=positions[-1:]), **_outputs("out", m * heads * dim),
    }, error=lambda found: _worst(found["out"], wanted, magnitude), checked="every element")


def _gated(sizes: Mapping[str, int], rng: Rng) -> Case:
    m, k, n = sizes["m"], sizes["k"], sizes["n"]
    x = _normal(rng, m, k, scale=8.0 * k**-0.5)
    gate, up = _weight(rng, n, k), _weight(rng, n, k)
    dense_gate, dense_up = ops.unpack_q4(*gate), ops.unpack_q4(*up)
    gates, ups = ops.linear(x, dense_gate), ops.linear(x, dense_up)
    activated = ops.gelu_tanh(gates)
    wanted = activated * ups
    sizes_of = [ops.linear(np.abs(x), np.abs(dense)) for dense in (dense_gate, dense_up)]
    magnitude = _STEEPEST * sizes_of[0] * np.abs(ups) + np.abs(activated) * sizes_of[1] + np.abs(wanted)
    return Case(buffers={
        **_both("x", Role.INPUT, x), **_weight_buffers(*gate), **_weight_buffers(*up, prefix="up_"),
        "bias": Buffer(role=Role.INPUT, data=np.zeros(4, np.float32)), **_outputs("out", m * n),
    }, error=lambda found: _worst(found["out"], wanted, magnitude), checked="every element")


_STEEPEST: Final = 1.13
"""No slope of gelu_tanh is larger."""


def _qkv(sizes: Mapping[str, int], rng: Rng) -> Case:
    m, k = sizes["m"], sizes["k"]
    x = _normal(rng, m, k)
    buffers, wanted = _both("x", Role.INPUT, x), dict[str, tuple[Array, Array]]()
    for number, n in enumerate((sizes["q"], sizes["kv"], sizes["kv"])):
        packed = _weight(rng, n, k)
        dense = ops.unpack_q4(*packed)
        wanted[f"out_{number}"] = ops.linear(x, dense), ops.linear(np.abs(x), np.abs(dense))
        buffers |= _weight_buffers(*packed, suffix=f"_{number}") | _outputs(f"out_{number}", m * n)
    buffers["bias"] = Buffer(role=Role.INPUT, data=np.zeros(4, np.float32))
    return Case(buffers=buffers, error=lambda found: max(_worst(found[name], *both) for name, both in wanted.items()),
                checked="every element of three products")


def _norm_pair(sizes: Mapping[str, int], rng: Rng) -> Case:
    """residual + norm(x) * weight, and the norm of that with a weight of its own."""
    m, width = sizes["m"], sizes["width"]
    x, residual, weight, after = _normal(rng, m, width), _normal(rng, m, width), _normal(rng, width), _normal(rng, width)
    out = ops.rms_norm(x, width=width, eps=EPSILON, weight=weight, residual=residual)
    both = {"out": out, "next": ops.rms_norm(out, width=width, eps=EPSILON, weight=after)}
    return Case(buffers={
        **_both("x", Role.INPUT, x), **_both("residual", Role.INPUT, residual), **_both("weight", Role.INPUT, weight),
        **_both("next_weight", Role.INPUT, after), "unused": Buffer(role=Role.INPUT, data=np.zeros(4, np.float32)),
        **_outputs("out", m * width), **_outputs("next", m * width),
    }, error=lambda found: max(_worst(found[name], wanted, np.maximum(1.0, np.abs(wanted))) for name, wanted in both.items()),
        checked="every element of both")


def _cache_pair(sizes: Mapping[str, int], rng: Rng) -> Case:
    """Rows for the last slots of both caches; what was in the others stays."""
    m, width, capacity = sizes["m"], sizes["width"], sizes["capacity"]
    rows = {name: _normal(rng, m, width) for name in ("k", "v")}
    wanted, buffers = dict[str, Array](), dict[str, Buffer]()
    for name, new in rows.items():
        before = _normal(rng, capacity, width)
        wanted[f"{name}_cache"] = before.copy()
        wanted[f"{name}_cache"][capacity - m :] = new
        buffers |= {f"{name}_new": Buffer(role=Role.INPUT, data=new), f"{name}_cache": Buffer(role=Role.IN_OUT, data=before)}
    buffers["positions"] = Buffer(role=Role.INPUT, data=np.arange(capacity - m, capacity, dtype=np.int32))

    def error(found: Mapping[str, Array]) -> float:
        return 0.0 if all(np.array_equal(found[name], cache.reshape(-1)) for name, cache in wanted.items()) else math.inf

    return Case(buffers=buffers, error=error, checked="both caches whole, exactly")


_MAKERS: Final[Mapping[Operation, Callable[[Mapping[str, int], Rng], Case]]] = {
    Operation.LINEAR: _linear, Operation.TOPK: _topk, Operation.SCATTER: _scatter, Operation.RMS_NORM: _rms_norm,
    Operation.ATTENTION: _attention, Operation.PREFILL: _prefill, Operation.GATED: _gated, Operation.QKV: _qkv,
    Operation.NORM_PAIR: _norm_pair, Operation.CACHE_PAIR: _cache_pair,
}
