"""Our side of what is fused: one kernel for a chain of ops, and the kernels that it stands for (ops/linear_fusions.cc)."""

from __future__ import annotations

from typing import Final

from gemma4web.kernel_bench.cases import EPSILON
from gemma4web.kernel_bench.choices import lanes_of
from gemma4web.kernel_bench.dispatches import DeviceFacts, Dispatch, Plan, Scratch
from gemma4web.kernel_bench.rows import Operation, Row

_WEIGHT: Final = 1
_RESIDUAL: Final = 2
"""Flags of the norms."""


def _suits(row: Row, operation: Operation, rows: int, facts: DeviceFacts, subgroups: bool) -> bool:
    return row.operation is operation and row.sizes["m"] == rows and not (subgroups and facts.subgroup_min < 4)


def _subgroup(facts: DeviceFacts, lanes: int, subgroups: bool) -> int:
    return min(facts.subgroup_min, lanes) if subgroups else 1


def _form(rows: int, subgroups: bool) -> str:
    return f"m{rows}{'_subgroup' if subgroups else ''}"


def _product(row: Row, n: int, facts: DeviceFacts, rows: int, subgroups: bool, **bindings: str | Scratch) -> Dispatch:
    """linear_q4_m1 or one of its forms for ``n`` columns."""
    lanes = lanes_of(k=row.sizes["k"], n=n, subgroup_min=facts.subgroup_min)
    return Dispatch(kernel=f"linear_q4_{_form(rows, subgroups)}", bindings=bindings, params={
        "k": row.sizes["k"], "n": n, "group_shift": 1, "flags": 0, "lanes": lanes,
        "subgroup": _subgroup(facts, lanes, subgroups), "first": 0, "stride": n})


def gated(rows: int, *, subgroups: bool) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if not _suits(row, Operation.GATED, rows, facts, subgroups):
            return None
        s = row.sizes
        lanes = lanes_of(k=s["k"], n=s["n"], subgroup_min=facts.subgroup_min)
        return [Dispatch(kernel=f"linear_q4_gated_{_form(rows, subgroups)}", bindings={"other": "bias"}, params={
            "k": s["k"], "n": s["n"], "group_shift": 1, "flags": 0, "lanes": lanes,
            "subgroup": _subgroup(facts, lanes, subgroups), "stride": 0, "offset": 0})]
    return plan


def ungated(rows: int, *, subgroups: bool) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if not _suits(row, Operation.GATED, rows, facts, subgroups):
            return None
        n, form = row.sizes["n"], _form(rows, subgroups)
        gate, up = (Scratch(name=f"{name} {form}", size_bytes=4 * rows * n) for name in ("gate", "up"))
        return [_product(row, n, facts, rows, subgroups, out=gate),
                _product(row, n, facts, rows, subgroups, values="up_values", scales="up_scales", out=up),
                Dispatch(kernel="gelu_mul", bindings={"a": gate, "b": up},
                         params={"rows": rows, "width": n, "stride": n, "offset": 0})]
    return plan


def three(rows: int, *, subgroups: bool) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if not _suits(row, Operation.QKV, rows, facts, subgroups):
            return None
        params: dict[str, int | float] = {"k": row.sizes["k"], "group_shift": 1, "flags": 0,
                                          "subgroup": facts.subgroup_min if subgroups else 1}
        for number, size in enumerate(("q", "kv", "kv")):
            n = row.sizes[size]
            params |= {f"n_{number}": n,
                       f"lanes_{number}": lanes_of(k=row.sizes["k"], n=n, subgroup_min=facts.subgroup_min)}
        return [Dispatch(kernel=f"linear_q4_three_{_form(rows, subgroups)}", params=params)]
    return plan


def one_by_one(rows: int, *, subgroups: bool) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if not _suits(row, Operation.QKV, rows, facts, subgroups):
            return None
        return [_product(row, row.sizes[size], facts, rows, subgroups, values=f"values_{number}", scales=f"scales_{number}",
                         out=f"out_{number}") for number, size in enumerate(("q", "kv", "kv"))]
    return plan


def norm_pair(kernel: str) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if row.operation is not Operation.NORM_PAIR:
            return None
        return [Dispatch(kernel=kernel, bindings={"scalar": "unused"}, params={
            "rows": row.sizes["m"], "width": row.sizes["width"], "eps": EPSILON, "flags": _WEIGHT | _RESIDUAL})]
    return plan


def two_norms(kernel: str) -> Plan:
    def plan(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
        if row.operation is not Operation.NORM_PAIR:
            return None
        shape = {"rows": row.sizes["m"], "width": row.sizes["width"], "eps": EPSILON}
        return [Dispatch(kernel=kernel, bindings={"scalar": "unused"}, params={**shape, "flags": _WEIGHT | _RESIDUAL}),
                Dispatch(kernel=kernel, params={**shape, "flags": _WEIGHT}, bindings={
                    "x": "out", "weight": "next_weight", "residual": "unused", "scalar": "unused", "out": "next"})]
    return plan


def cache_pair(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.CACHE_PAIR:
        return None
    return [Dispatch(kernel="cache_write_pair", params=_cache(row), bindings={
        "keys": "k_new", "values": "v_new", "key_cache": "k_cache", "value_cache": "v_cache"})]


def two_caches(row: Row, facts: DeviceFacts) -> list[Dispatch] | None:
    if row.operation is not Operation.CACHE_PAIR:
        return None
    return [Dispatch(kernel="cache_write", params=_cache(row), bindings={"x": f"{name}_new", "cache": f"{name}_cache"})
            for name in ("k", "v")]


def _cache(row: Row) -> dict[str, int | float]:
    return {"rows": row.sizes["m"], "width": row.sizes["width"], "capacity": row.sizes["capacity"]}
