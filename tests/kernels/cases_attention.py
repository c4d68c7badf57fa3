"""Cases of the cache_write and attention kernels.

References see logical rows 0..n-1; the kernels see the ring that holds the last of them, with poison in every slot that
no visible position uses.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from cases_linear import f32
from kernel_case import POISON, Array, Case, Expected, Rng, case

from gemma4web.oracle import ops

STALE = np.array([POISON], np.uint32).view(np.float32)[0]


def ring_of(rows: Array, capacity: int) -> Array:
    """Logical rows [n, heads, d] as a cache [1, S, heads, d] after all of them were written in order."""
    cache = np.full((1, capacity, *rows.shape[1:]), STALE, np.float32)
    for position in range(max(0, rows.shape[0] - capacity), rows.shape[0]):
        cache[0, position % capacity] = rows[position]
    return cache


def attention_case(
    q: Array, keys: Array, values: Array, positions: Array, *, window: int, capacity: int, donor: bool = False
) -> Case:
    """q [N, Hq, d], keys and values [n, Hkv, d] by logical position, positions i32[N] or the donor length i32[1]."""
    rows, q_heads, head_dim = q.shape
    flat = q.reshape(rows, -1)
    logical = [array[None] for array in (keys, values)]
    if donor:
        logical = [ops.donor_view(array) for array in logical]
    wanted = ops.attention(flat, *logical, positions, head_dim=head_dim, window=window, donor=donor)
    return Case(
        kernel="attention",
        inputs={"q": flat, "k": ring_of(keys, capacity), "v": ring_of(values, capacity), "positions": positions},
        outputs={"out": Expected(values=wanted)},
        params={"rows": rows, "q_heads": q_heads, "kv_heads": keys.shape[1], "head_dim": head_dim,
                "capacity": capacity, "window": window, "donor": int(donor)},
        per_row=("q", "out") if donor else ("q", "positions", "out"),
    )


def add_attention(name: str, *, q_heads: int, kv_heads: int, head_dim: int, window: int, first: int, rows: int,
                  capacity: int = 0, donor: bool = False) -> None:
    """``first`` is the first row's position, or the donor length; the default capacity is the smallest that holds."""
    @case(f"attention: {name}, {q_heads}/{kv_heads} heads of {head_dim}, window {window}, {rows} rows at {first}")
    def build(rng: Rng) -> Case:
        count = first if donor else first + rows
        keys, values = (f32(rng, count, kv_heads, head_dim) for _ in range(2))
        positions = np.array([first] if donor else range(first, first + rows), np.int32)
        q = f32(rng, rows, q_heads, head_dim, scale=2.0 * head_dim**-0.5)
        room = capacity or (window - 1 + max(rows, 3) if window else count + 2)
        return attention_case(q, keys, values, positions, window=window, capacity=room, donor=donor)


add_attention("first token", q_heads=2, kv_heads=1, head_dim=16, window=0, first=0, rows=1)
add_attention("prefill", q_heads=3, kv_heads=3, head_dim=7, window=0, first=0, rows=67)
add_attention("grouped heads", q_heads=6, kv_heads=2, head_dim=36, window=0, first=61, rows=5)
add_attention("tile edges", q_heads=2, kv_heads=1, head_dim=64, window=0, first=126, rows=4)
add_attention("long full", q_heads=2, kv_heads=1, head_dim=64, window=0, first=1021, rows=3)
add_attention("E2B sliding after the wrap", q_heads=8, kv_heads=1, head_dim=256, window=512, first=601, rows=3)
add_attention("E2B full", q_heads=8, kv_heads=1, head_dim=512, window=0, first=130, rows=3)
add_attention("E4B sliding", q_heads=8, kv_heads=2, head_dim=256, window=512, first=530, rows=1)
add_attention("head of 128", q_heads=4, kv_heads=2, head_dim=128, window=5, first=11, rows=3)
add_attention("ring larger than needed", q_heads=2, kv_heads=1, head_dim=32, window=13, first=71, rows=3, capacity=37)
add_attention("chunk across the wrap", q_heads=2, kv_heads=1, head_dim=24, window=8, first=7, rows=19)
add_attention("donor full", q_heads=4, kv_heads=1, head_dim=512, window=0, first=67, rows=1, donor=True)
add_attention("donor sliding", q_heads=4, kv_heads=1, head_dim=256, window=512, first=777, rows=1, donor=True)
add_attention("donor sliding, short", q_heads=4, kv_heads=2, head_dim=32, window=8, first=5, rows=1, donor=True)
add_attention("donor of one row", q_heads=4, kv_heads=2, head_dim=32, window=8, first=1, rows=1, donor=True)
add_attention("donor, window of one sees nothing", q_heads=2, kv_heads=1, head_dim=32, window=1, first=5, rows=1,
              donor=True)


def add_window_edge(first: int, rows: int, *, donor: bool) -> None:
    """Zero queries weigh all visible rows alike, one-hot values show which they are (window 8)."""
    @case(f"attention: window 8 edge, {'donor length' if donor else 'positions from'} {first}, {rows} rows")
    def build(rng: Rng) -> Case:
        count = first if donor else first + rows
        keys = f32(rng, count, 1, 32)
        values = np.zeros((count, 1, 32), np.float32)
        values[np.arange(count), 0, np.arange(count)] = 1.0
        positions = np.array([first] if donor else range(first, first + rows), np.int32)
        return attention_case(np.zeros((rows, 1, 32), np.float32), keys, values, positions, window=8, capacity=7 + rows,
                              donor=donor)


add_window_edge(6, 5, donor=False)  # p = W-2 .. W+2
add_window_edge(15, 3, donor=False)  # p = 2W-1 .. 2W+1
add_window_edge(15, 11, donor=False)
for length in (1, 6, 7, 8, 9, 10, 15, 16, 17):
    add_window_edge(length, 1, donor=True)


@case("attention: nothing visible gives zero rows, whatever the cache holds")
def masked(rng: Rng) -> Case:
    made = attention_case(f32(rng, 3, 2, 40), f32(rng, 9, 1, 40), f32(rng, 9, 1, 40), np.array([-1, 4, -5], np.int32),
                          window=0, capacity=9)
    return made


@case("attention: one valid score of -20000")
def deep_score(rng: Rng) -> Case:
    q, keys = np.zeros((1, 1, 4), np.float32), np.zeros((1, 1, 4), np.float32)
    q[0, 0, 0], keys[0, 0, 0] = 200.0, -100.0
    return attention_case(q, keys, f32(rng, 1, 1, 4), np.array([0], np.int32), window=0, capacity=3)


@case("attention: scores far apart in later tiles")
def rising_scores(rng: Rng) -> Case:
    keys = np.zeros((200, 1, 8), np.float32)
    keys[:, 0, 0] = np.linspace(-300.0, 300.0, 200)
    keys[:, 0, 1] = -keys[:, 0, 0]
    q = np.zeros((2, 1, 8), np.float32)
    q[0, 0, 0] = q[1, 0, 1] = 1.0
    return attention_case(q, keys, f32(rng, 200, 1, 8), np.array([198, 199], np.int32), window=0, capacity=202)


@case("attention: NaN in a query, a key, a value; an infinite score")
def poisoned(rng: Rng) -> Case:
    q, keys, values = f32(rng, 4, 1, 8), f32(rng, 90, 1, 8), f32(rng, 90, 1, 8)
    q[1, 0, 3] = np.nan
    keys[70, 0, 0] = np.nan
    made = attention_case(q, keys, values, np.array([10, 20, 80, 30], np.int32), window=0, capacity=90)
    wanted = made.outputs["out"].values.copy()
    wanted[1] = wanted[2] = np.nan
    keys[30, 0, :] = np.inf
    q[3] = 1.0
    wanted[3] = np.nan
    return Case(kernel="attention", params=made.params, per_row=made.per_row, outputs={"out": Expected(values=wanted)},
                inputs={**made.inputs, "q": q.reshape(4, -1), "k": ring_of(keys, 90)})


def cache_case(rng: Rng, rows: int, heads: int, head_dim: int, capacity: int, first: int) -> Case:
    x = f32(rng, rows, heads * head_dim)
    before = f32(rng, 1, capacity, heads, head_dim)
    positions = np.arange(first, first + rows, dtype=np.int32)
    wanted = ops.cache_write(x, positions, before)
    return Case(kernel="cache_write", inputs={"x": x, "positions": positions},
                outputs={"cache": Expected(values=wanted, before=before)},
                params={"rows": rows, "width": heads * head_dim, "capacity": capacity})


def pair_case(rng: Rng, made: Case) -> Case:
    """A case of cache_write for both caches: values other than the keys."""
    before = made.outputs["cache"].before
    assert before is not None
    other_before, other_x = f32(rng, *before.shape), f32(rng, *made.inputs["x"].shape)
    where = made.inputs["positions"]
    other = Expected(values=ops.cache_write(other_x[where >= 0], where[where >= 0], other_before), before=other_before)
    return replace(made, kernel="cache_write_pair", outputs={"key_cache": made.outputs["cache"], "value_cache": other},
                   inputs={"keys": made.inputs["x"], "values": other_x, "positions": where})


def add_cache(rows: int, heads: int, head_dim: int, capacity: int, first: int) -> None:
    @case(f"cache_write: {rows} rows of {heads} x {head_dim} at {first} into a ring of {capacity}")
    def build(rng: Rng) -> Case:
        return cache_case(rng, rows, heads, head_dim, capacity, first)

    @case(f"cache_write_pair: {rows} rows of {heads} x {head_dim} at {first} into a ring of {capacity}")
    def build_pair(rng: Rng) -> Case:
        return pair_case(rng, cache_case(rng, rows, heads, head_dim, capacity, first))


for shape in ((1, 1, 1, 1, 0), (3, 2, 37, 11, 9), (7, 3, 31, 7, 100003), (19, 1, 64, 26, 33), (3, 1, 256, 514, 512)):
    add_cache(*shape)


@case("cache_write: a row with a negative position writes nothing")
def cache_negative(rng: Rng) -> Case:
    made = cache_case(rng, 2, 1, 33, 5, 1)
    x = np.concatenate([made.inputs["x"], f32(rng, 1, 33)])
    return Case(kernel="cache_write", outputs=made.outputs, params={**made.params, "rows": 3},
                inputs={"x": x, "positions": np.array([1, 2, -1], np.int32)})


@case("cache_write_pair: a row with a negative position writes nothing")
def cache_pair_negative(rng: Rng) -> Case:
    return pair_case(rng, cache_negative(rng))
