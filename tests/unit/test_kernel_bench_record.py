"""The record of bench-kernels: round trip, bounds, ratios, who is slower, and what the report says."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console

from gemma4web.files import dump_json
from gemma4web.kernel_bench.record import (
    Entry,
    KernelBench,
    Roofline,
    RowResult,
    Spread,
    bound_us,
    faulty,
    fused_ratio,
    slower_kernels,
    spread_of,
    with_ratios,
)
from gemma4web.kernel_bench.report import render
from gemma4web.kernel_bench.summary import print_bench
from gemma4web.record import Adapter, Browser

ROOFLINE = Roofline(dispatch_us=3.0, read_bytes_per_s=4e12, read_groups=1056, copy_bytes_per_s=3e12, f32_flops=50e12,
                    f16_flops=100e12)


def entry(name: str, side: Any, median_us: float | None, **more: Any) -> Entry:
    spread = None if median_us is None else spread_of([median_us, median_us - 1, median_us + 1])
    return msgspec.structs.replace(Entry(
        name=name, side=side, f16=False, status="ok", message="", error=1e-7, tolerance=1e-5, dispatches=1, buffer_copies=0,
        calls=9, pass_us=spread, batch_us=spread if side == "ours" else None, wall_us=spread, bytes_per_s=1e9,
        flops_per_s=2e9, bound_us=5.0, share_of_bound=0.25, ratios={}), **more)


def row(name: str, *entries: Entry, failure: str = "") -> RowResult:
    return RowResult(name=name, traffic_bytes=100, flops=200, copies=3, checked="5 of 9 columns", failure=failure, reference_us=7.0,
                     left_out={"ghost": "no kernel"}, entries=with_ratios(entries))


def bench_of(*rows: RowResult, software: bool = True, failure: str = "") -> KernelBench:
    return KernelBench(
        complete=not failure, failure=failure,
        adapter=Adapter(vendor="v", architecture="a", software=software, features=[], limits={}),
        browser=Browser(name="chromium", version="1.2.3.4"), flags=["--flag"], versions={"onnxruntime-web": "1.30.0"},
        clock="gpu timestamps", timestamp_quantum_ns=32, seed=1, repeats=3, quick=True, notes=["a note"], roofline=ROOFLINE,
        rows=list(rows))


def test_a_record_survives_a_round_trip_and_a_foreign_schema_is_refused() -> None:
    bench = bench_of(row("one", entry("ours", "ours", 10.0), entry("peer", "peer", 20.0)))
    text = dump_json(msgspec.to_builtins(bench))
    assert msgspec.json.decode(text, type=KernelBench) == bench
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(json.dumps({**json.loads(text), "schema": 2}), type=KernelBench)


def test_a_fused_kernel_is_compared_with_what_it_stands_for() -> None:
    """Batched where that was measured; nothing where either is missing; shown in the report."""
    fused, apart = entry("fused", "ours", 10.0, stands_for="apart"), entry("apart", "ours", 17.5)
    assert fused_ratio(fused, [fused, apart]) == 1.75
    assert fused_ratio(fused, [fused]) is None and fused_ratio(apart, [fused, apart]) is None
    assert fused_ratio(fused, [fused, entry("apart", "ours", None)]) is None
    text = render(bench_of(row("pair", fused, apart)), record_name="r.json")
    assert '<td data-label="unfused / fused">1.75</td>' in text


def test_the_bound_is_the_longer_of_bytes_and_operations() -> None:
    assert bound_us(8_000_000, 10, ROOFLINE, f16=False) == pytest.approx(2.0)
    assert bound_us(8, 200_000_000, ROOFLINE, f16=False) == pytest.approx(4.0)
    assert bound_us(8, 200_000_000, ROOFLINE, f16=True) == pytest.approx(2.0)
    assert bound_us(8, 200, None, f16=True) == 0.0


def test_a_spread_is_median_least_and_most() -> None:
    found = spread_of([5.0, 1.0, 2.0])
    assert found is not None
    assert (found.median_us, found.min_us, found.max_us, found.samples) == (2.0, 1.0, 5.0, 3)
    assert spread_of([]) is None


def test_ratios_compare_ours_with_every_peer_that_was_measured() -> None:
    ours, _, f16, wrong = with_ratios([entry("k", "ours", 10.0), entry("f32", "peer", 20.0), entry("f16", "peer", 5.0),
                                       entry("bad", "peer", None, status="wrong")])
    assert ours.ratios == {"f32": 2.0, "f16": 0.5}
    assert f16.ratios == wrong.ratios == {}


def test_slower_kernels_are_named_worst_first() -> None:
    rows = [row("one", entry("k", "ours", 10.0), entry("f32", "peer", 20.0), entry("f16", "peer", 5.0)),
            row("two", entry("k", "ours", 40.0), entry("f32", "peer", 4.0))]
    assert [(item.row, item.peer, item.ratio) for item in slower_kernels(rows, None)] == [("two", "f32", 0.1), ("one", "f16", 0.5)]


@pytest.mark.parametrize(("mine", "peer", "wanted"), [
    ({"median_us": 9.0}, {"median_us": 6.5}, "the difference of 2.5 us is less than an empty dispatch takes, 3 us"),
    ({"median_us": 90.0}, {"median_us": 6.5, "buffer_copies": 2},
     "the peer has 2 more buffer copies outside any pass, for which a single compute pass has no room"),
    ({"median_us": 90.0}, {"median_us": 6.5, "f16": True}, "the peer computes in f16"),
    ({"median_us": 90.0, "f16": True, "buffer_copies": 1}, {"median_us": 6.5, "f16": True, "buffer_copies": 1}, None),
    ({"median_us": 90.0}, {"median_us": 88.5, "pass_us": Spread(median_us=80.0, min_us=1.0, max_us=89.0, samples=3)},
     "the samples of both overlap"),
])
def test_a_slower_kernel_is_explained_by_the_numbers_alone(mine: dict[str, Any], peer: dict[str, Any], wanted: str | None) -> None:
    bench = bench_of(row("one", entry("k", "ours", **mine), entry("p", "peer", **peer)))
    [item] = slower_kernels(bench.rows, bench.roofline)
    assert item.reasons == ([wanted] if wanted else [])
    why = wanted or "nothing that was measured accounts for it"
    told = StringIO()
    print_bench(bench, Console(file=told, width=200))
    assert f"({item.ratio:.2f}): {why}" in told.getvalue()
    assert f'data-label="why">{why}</td>' in render(bench, record_name="r.json")


def test_wrong_and_failed_measurements_are_faults() -> None:
    rows = [row("one", entry("k", "ours", None, status="wrong", message="error 1"), entry("f32", "peer", 1.0)),
            row("two", failure="device lost")]
    assert faulty(rows) == ["two: device lost", "one: k WRONG: error 1"]


def test_the_report_names_software_slower_kernels_and_failures() -> None:
    html = render(bench_of(row("one", entry("k<b>", "ours", 10.0), entry("f32", "peer", 5.0)), failure="interrupted"),
                  record_name="r.json")
    assert "Software timings are never GPU results" in html
    assert "<strong>Incomplete.</strong> interrupted" in html
    assert "k&lt;b&gt;" in html and "k<b>" not in html
    assert '<td data-label="peer / ours">0.50</td>' in html
    assert "25.0 percent of the bound" in html
    assert "ghost: no kernel" in html
    gpu = render(bench_of(row("one", entry("k", "ours", 10.0)), software=False), record_name="r.json")
    assert "Software" not in gpu
    assert "Nothing was compared." in gpu
