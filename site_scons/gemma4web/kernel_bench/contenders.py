"""Our side: which kernels can do a row, and how they are dispatched.

To add a kernel, write a function that returns its dispatches for a row, or None where it does not apply, and put a
Contender into CONTENDERS. A kernel that this checkout does not have, or that needs a feature which the device lacks, is
left out of the run by itself and named in the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gemma4web.kernel_bench import fused
from gemma4web.kernel_bench.cases import EPSILON
from gemma4web.kernel_bench.choices import (
    DP4A_COLUMNS,
    DP4A_LANES,
    MATRIX,
    MATRIX_F16,
    STEEL,
    STREAMED_QUERIES,
    TILED,
    Tile,
    attention_splits,
    lanes_of,
    splits_of,
)
from gemma4web.kernel_bench.dispatches import DeviceFacts, Dispatch, Plan, Scratch
from gemma4web.kernel_bench.rows import Operation, Row
from gemma4web.kernels import Kernel

F16_TOLERANCE: Final = 4e-3
"""Of kernels that round activations to f16 and add 32 or 64 products in it: a little over its unit of 2^-10, twice."""
HAS_WEIGHT: Final = 1
"""Flag of rms_norm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Where a result lies: the row's buffer and its numpy type."""

    buffer: str
    dtype: str = "f4"


_RESULTS: Final[Mapping[Operation, Mapping[str, Result]]] = {
    Operation.TOPK: {"values": Result(buffer="values"), "indices": Result(buffer="indices_i4", dtype="i4")},
    Operation.QKV: {f"out_{number}": Result(buffer=f"out_{number}") for number in range(3)},
    Operation.NORM_PAIR: {name: Result(buffer=name) for name in ("out", "next")},
    Operation.CACHE_PAIR: {name: Result(buffer=name) for name in ("k_cache", "v_cache")},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """``f16``: it computes in f16, so its bound is that of f16. ``tolerance`` None: the widest of its kernels' own.

    ``stands_for``: of a fused kernel, the contender that runs its ops one by one.
    """

    name: str
    plan: Plan
    f16: bool = False
    tolerance: float | None = None
    stands_for: str = ""

    def results(self, row: Row) -> Mapping[str, Result]:
        return _RESULTS.get(row.operation, {"out": Result(buffer="out")})


def _linear(kernel: str, *, most_rows: int | None = None) -> Plan:
    """A kernel with the bindings and params of linear_q4, for at most ``most_rows`` rows."""
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        s = row.sizes
        if row.operation is not Operation.LINEAR or (most_rows is not None and s["m"] > most_rows):
            return None
        return [Dispatch(kernel=kernel, params={"rows": s["m"], "k": s["k"], "n": s["n"], "group_shift": 1, "flags": 0,
                                                "first": 0, "stride": s["n"]})]
    return plan


def _few_rows(kernel: str, rows: int, *, subgroups: bool) -> Plan:
    """linear_q4_m1, linear_q4_m3 and their subgroup forms, with the runtime's choice of lanes."""
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        s = row.sizes
        if row.operation is not Operation.LINEAR or s["m"] != rows or (subgroups and facts.subgroup_min < 4):
            return None
        lanes = lanes_of(k=s["k"], n=s["n"], subgroup_min=facts.subgroup_min)
        return [Dispatch(kernel=kernel, params={
            "k": s["k"], "n": s["n"], "group_shift": 1, "flags": 0, "lanes": lanes,
            "subgroup": min(facts.subgroup_min, lanes) if subgroups else 1, "first": 0, "stride": s["n"]})]
    return plan


def _dp4a(kernel: str, rows: int, *, subgroups: bool) -> Plan:
    """linear_q4_dp4a and its forms behind the pass that makes digits of x."""
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        s = row.sizes
        if (row.operation is not Operation.LINEAR or s["m"] != rows or s["n"] < DP4A_COLUMNS
                or (subgroups and facts.subgroup_min < 4)):
            return None
        units = s["k"] // 32
        digits = Scratch(name="digits", size_bytes=96 * rows * units)
        powers = Scratch(name="powers", size_bytes=4 * rows * units)
        return [Dispatch(kernel="to_digits", params={"rows": rows, "units": units},
                         bindings={"digits": digits, "powers": powers}),
                Dispatch(kernel=kernel, bindings={"digits": digits, "powers": powers}, params={
                    "k": s["k"], "n": s["n"], "group_shift": 1, "flags": 0, "lanes": DP4A_LANES,
                    "subgroup": min(facts.subgroup_min, DP4A_LANES) if subgroups else 1, "first": 0, "stride": s["n"]})]
    return plan


def _tiles(kernel: str, tile: Tile, *, least_rows: int = 33, halves: tuple[str, int] | None = None) -> Plan:
    """linear_q4_tiled and its larger forms, with the runtime's choice of parts.

    ``halves``: what makes halves of x first, and how many parts each number has.
    """
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        s = row.sizes
        if row.operation is not Operation.LINEAR or s["m"] < least_rows or s["k"] % 64:
            return None
        before: list[Dispatch] = []
        made: dict[str, Scratch] = {}
        if halves is not None:
            maker, parts = halves
            made = {"halves": Scratch(name=f"{maker} halves", size_bytes=2 * parts * s["m"] * s["k"]),
                    "powers": Scratch(name=f"{maker} powers", size_bytes=4 * s["m"])}
            before.append(Dispatch(kernel=maker, params={"rows": s["m"], "eights": s["k"] // 8}, bindings=dict(made)))
        splits = splits_of(rows=s["m"], k=s["k"], n=s["n"], tile=tile)
        params = {"k": s["k"], "n": s["n"], "group_shift": 1, "flags": 0, "rows": s["m"], "splits": splits}
        if splits == 1:
            return [*before, Dispatch(kernel=kernel, params=params, bindings=dict(made))]
        sums, count = Scratch(name=f"{kernel} parts", size_bytes=4 * splits * s["m"] * s["n"]), s["m"] * s["n"]
        return [*before, Dispatch(kernel=kernel, params=params, bindings={**made, "out": sums}),
                Dispatch(kernel="sum_parts", params={"count": count, "n": s["n"], "splits": splits, "flags": 0},
                         bindings={"parts": sums})]
    return plan


def _topk_staged(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.TOPK or (row.sizes["n"], row.sizes["k"]) != (2048, 32):
        return None
    return [Dispatch(kernel="topk_staged", params={"k": 32}, bindings={"indices": "indices_i4"})]


def _scatter_unique(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.SCATTER:
        return None
    return [Dispatch(kernel="fill", params={"count": row.sizes["size"], "offset": 0.0}, bindings={"scalar": "lowest"}),
            Dispatch(kernel="scatter_unique", params=dict(row.sizes))]


def _attention_decode(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.ATTENTION:
        return None
    s = row.sizes
    capacity, heads, dim = s["past"] + 1, s["heads"], s["head_dim"]
    splits = attention_splits(capacity=capacity, window=0)
    values = Scratch(name="partial values", size_bytes=4 * heads * splits * dim)
    stats = Scratch(name="partial stats", size_bytes=16 * heads * splits)
    shape = {"rows": 1, "q_heads": heads, "head_dim": dim, "window": 0, "donor": 0, "splits": splits}
    return [_cache_write_pair(row),
            Dispatch(kernel="attention_decode_split", params={**shape, "kv_heads": 1, "capacity": capacity},
                     bindings={"k": "k_cache", "v": "v_cache", "values": values, "stats": stats}),
            Dispatch(kernel="attention_combine", params=shape, bindings={"values": values, "stats": stats})]


def _topk(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.TOPK:
        return None
    return [Dispatch(kernel="topk", params=dict(row.sizes), bindings={"indices": "indices_i4"})]


def _scatter(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.SCATTER:
        return None
    return [Dispatch(kernel="fill", params={"count": row.sizes["size"], "offset": 0.0}, bindings={"scalar": "lowest"}),
            Dispatch(kernel="scatter", params=dict(row.sizes))]


def _rms_norm(kernel: str) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if row.operation is not Operation.RMS_NORM:
            return None
        s = row.sizes
        return [Dispatch(kernel=kernel, params={"rows": s["m"], "width": s["width"], "eps": EPSILON, "flags": HAS_WEIGHT},
                         bindings={"residual": "unused", "scalar": "unused"})]
    return plan


def _cache_writes(row: Row) -> list[Dispatch]:
    """The peer's attention stores the new key and value too, so ours has to."""
    s = row.sizes
    params = {"rows": 1, "width": s["head_dim"], "capacity": s["past"] + 1}
    return [Dispatch(kernel="cache_write", params=params, bindings={"x": f"{name}_new", "cache": f"{name}_cache"})
            for name in ("k", "v")]


def _cache_write_pair(row: Row) -> Dispatch:
    s = row.sizes
    return Dispatch(kernel="cache_write_pair", params={"rows": 1, "width": s["head_dim"], "capacity": s["past"] + 1},
                    bindings={"keys": "k_new", "values": "v_new", "key_cache": "k_cache", "value_cache": "v_cache"})


def _attention(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.ATTENTION:
        return None
    s = row.sizes
    params = {"rows": 1, "q_heads": s["heads"], "kv_heads": 1, "head_dim": s["head_dim"], "capacity": s["past"] + 1,
              "window": 0, "donor": 0}
    return [*_cache_writes(row),
            Dispatch(kernel="attention", params=params, bindings={"k": "k_cache", "v": "v_cache"})]


def _prefill(row: Row) -> dict[str, int | float]:
    """Params of the kernels that take a whole prompt."""
    s = row.sizes
    return {"rows": s["m"], "q_heads": s["heads"], "kv_heads": 1, "head_dim": s["head_dim"], "capacity": s["m"], "window": 0,
            "donor": 0}


_CACHES: Final = {"k": "k_cache", "v": "v_cache"}


def _prefill_generic(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.PREFILL:
        return None
    return [_prefill_caches(row), Dispatch(kernel="attention", params=_prefill(row), bindings=_CACHES)]


def _prefill_streaming(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.PREFILL:
        return None
    return [_prefill_caches(row), Dispatch(kernel="attention_streaming", bindings=_CACHES, params={
        **_prefill(row), "tile_rows": STREAMED_QUERIES // row.sizes["heads"]})]


def _prefill_materialised(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.PREFILL:
        return None
    params, s = _prefill(row), row.sizes
    scores = Scratch(name="scores", size_bytes=4 * s["m"] * s["heads"] * s["m"])
    softmax = {name: params[name] for name in ("rows", "q_heads", "capacity", "window", "donor")}
    return [_prefill_caches(row),
            Dispatch(kernel="attention_scores", params=params, bindings={"k": "k_cache", "scores": scores}),
            Dispatch(kernel="attention_softmax", params=softmax, bindings={"scores": scores}),
            Dispatch(kernel="attention_values", params=params, bindings={"weights": scores, "v": "v_cache"})]


def _prefill_caches(row: Row) -> Dispatch:
    """The peer's attention stores keys and values too."""
    s = row.sizes
    return Dispatch(kernel="cache_write_pair", params={"rows": s["m"], "width": s["head_dim"], "capacity": s["m"]},
                    bindings={"keys": "k_new", "values": "v_new", "key_cache": "k_cache", "value_cache": "v_cache"})


def _fused() -> tuple[Contender, ...]:
    """Every fused kernel before what it stands for."""
    made: list[Contender] = []
    for rows in (1, 3):
        for subgroups in (False, True):
            form = f"m{rows}{'_subgroup' if subgroups else ''}"
            for name, plan, apart, apart_plan in (
                    (f"linear_q4_gated_{form}", fused.gated, f"linear_q4_{form} x 2 + gelu_mul", fused.ungated),
                    (f"linear_q4_three_{form}", fused.three, f"linear_q4_{form} x 3", fused.one_by_one)):
                made += [Contender(name=name, plan=plan(rows, subgroups=subgroups), stands_for=apart),
                         Contender(name=apart, plan=apart_plan(rows, subgroups=subgroups))]
    for form in ("", "_wide"):
        made += [Contender(name=f"rms_norm_pair{form}", plan=fused.norm_pair(f"rms_norm_pair{form}"),
                           stands_for=f"rms_norm{form} x 2"),
                 Contender(name=f"rms_norm{form} x 2", plan=fused.two_norms(f"rms_norm{form}"))]
    return (*made, Contender(name="cache_write_pair", plan=fused.cache_pair, stands_for="cache_write x 2"),
            Contender(name="cache_write x 2", plan=fused.two_caches))


CONTENDERS: Final = (
    Contender(name="linear_q4", plan=_linear("linear_q4")),
    Contender(name="linear_q4_m1", plan=_few_rows("linear_q4_m1", 1, subgroups=False)),
    Contender(name="linear_q4_m1_subgroup", plan=_few_rows("linear_q4_m1_subgroup", 1, subgroups=True)),
    Contender(name="linear_q4_m3", plan=_few_rows("linear_q4_m3", 3, subgroups=False)),
    Contender(name="linear_q4_m3_subgroup", plan=_few_rows("linear_q4_m3_subgroup", 3, subgroups=True)),
    Contender(name="to_digits + linear_q4_dp4a", plan=_dp4a("linear_q4_dp4a", 1, subgroups=False)),
    Contender(name="to_digits + linear_q4_dp4a_subgroup", plan=_dp4a("linear_q4_dp4a_subgroup", 1, subgroups=True)),
    Contender(name="to_digits + linear_q4_dp4a_m3", plan=_dp4a("linear_q4_dp4a_m3", 3, subgroups=False)),
    Contender(name="to_digits + linear_q4_dp4a_m3_subgroup", plan=_dp4a("linear_q4_dp4a_m3_subgroup", 3, subgroups=True)),
    Contender(name="linear_q4_tiled", plan=_tiles("linear_q4_tiled", TILED, least_rows=2)),
    Contender(name="linear_q4_steel", plan=_tiles("linear_q4_steel", STEEL)),
    Contender(name="linear_q4_steel_packed", plan=_tiles("linear_q4_steel_packed", STEEL), tolerance=F16_TOLERANCE),
    Contender(name="linear_q4_steel_f16", plan=_tiles("linear_q4_steel_f16", STEEL), f16=True, tolerance=F16_TOLERANCE),
    Contender(name="linear_q4_bk64", plan=_tiles("linear_q4_bk64", STEEL, least_rows=128), f16=True, tolerance=F16_TOLERANCE),
    Contender(name="to_halves + linear_q4_matrix", plan=_tiles("linear_q4_matrix", MATRIX, halves=("to_halves", 2))),
    Contender(name="to_halves_f16 + linear_q4_matrix_f16", f16=True, tolerance=F16_TOLERANCE,
              plan=_tiles("linear_q4_matrix_f16", MATRIX_F16, halves=("to_halves_f16", 1))),
    Contender(name="topk", plan=_topk),
    Contender(name="topk_staged", plan=_topk_staged),
    Contender(name="fill + scatter", plan=_scatter),
    Contender(name="fill + scatter_unique", plan=_scatter_unique),
    Contender(name="rms_norm", plan=_rms_norm("rms_norm")),
    Contender(name="rms_norm_wide", plan=_rms_norm("rms_norm_wide")),
    Contender(name="cache_write x 2 + attention", plan=_attention),
    Contender(name="cache_write_pair + attention_decode_split + attention_combine", plan=_attention_decode),
    Contender(name="cache_write_pair + attention", plan=_prefill_generic),
    Contender(name="cache_write_pair + attention_streaming", plan=_prefill_streaming),
    Contender(name="cache_write_pair + attention_scores + attention_softmax + attention_values", plan=_prefill_materialised),
    *_fused(),
)


def obstacle(dispatches: list[Dispatch], kernels: Mapping[str, Kernel], facts: DeviceFacts) -> str | None:
    """Why these cannot run here, in words; None when they can."""
    if missing := sorted({item.kernel for item in dispatches} - set(kernels)):
        return f"this checkout has no kernel {', '.join(missing)}"
    needed = {feature for item in dispatches for feature in kernels[item.kernel].features}
    if lacking := sorted(needed - facts.features):
        return f"the device has no {', '.join(lacking)}"
    return None
