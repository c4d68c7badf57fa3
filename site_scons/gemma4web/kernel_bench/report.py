"""The HTML report of `bench-kernels`."""

from __future__ import annotations

from gemma4web.kernel_bench.record import KernelBench, faulty, fused_ratio, slower_kernels
from gemma4web.kernel_bench.summary import error_text, number, ratio_text, reasons_text, title_of
from gemma4web.report import template
from gemma4web.summary import SOFTWARE_LABEL

TEMPLATE = "bench_kernels.html.j2"


def render(bench: KernelBench, *, record_name: str) -> str:
    return template(TEMPLATE).render(
        bench=bench, title=title_of(bench), slower=slower_kernels(bench.rows, bench.roofline), faults=faulty(bench.rows),
        number=number, error_text=error_text, fused_ratio=fused_ratio, ratio_text=ratio_text, reasons_text=reasons_text,
        software_label=SOFTWARE_LABEL, record_name=record_name)
