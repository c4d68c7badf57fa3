"""What `bench-kernels` says on the terminal."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gemma4web.kernel_bench.record import Entry, KernelBench, Slower, Spread, faulty, fused_ratio, slower_kernels
from gemma4web.summary import SOFTWARE_LABEL


def title_of(bench: KernelBench) -> str:
    """Adapter and browser; a software adapter is labelled."""
    name = " ".join(filter(None, (bench.adapter.vendor, bench.adapter.architecture))) or "unnamed"
    label = f" ({SOFTWARE_LABEL})" if bench.adapter.software else ""
    return f"{name}{label}, {bench.browser.name} {bench.browser.version}"


def us(spread: Spread | None) -> str:
    """A median with three digits."""
    return "" if spread is None else number(spread.median_us)


def number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def error_text(entry: Entry) -> str:
    return "" if entry.error is None else "exact" if entry.error == 0 else f"{entry.error:.1e}"


def ratio_text(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def reasons_text(item: Slower) -> str:
    return "; ".join(item.reasons) or "nothing that was measured accounts for it"


def print_bench(bench: KernelBench, console: Console) -> None:
    table = Table(title=title_of(bench), title_justify="left", title_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    # Long names fold; numbers are never cut.
    table.add_column("row and contender", overflow="fold")
    for heading in ("us a pass", "batched", "of bound", "peer / ours", "unfused", "error"):
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    for row in bench.rows:
        table.add_row(f"[bold]{escape(row.name)}[/]" + ("" if row.entries else f" {'FAILED' if row.failure else 'nobody'}"))
        for entry in row.entries:
            time = us(entry.pass_us) if entry.status == "ok" else entry.status.upper()
            table.add_row(
                f"  {escape(entry.name)}", time, us(entry.batch_us),
                f"{100 * entry.share_of_bound:.1f} %" if entry.share_of_bound else "",
                ", ".join(f"{ratio:.2f}" for ratio in entry.ratios.values()), ratio_text(fused_ratio(entry, row.entries)),
                error_text(entry))
    console.print(table)
    if any(fused_ratio(entry, row.entries) for row in bench.rows for entry in row.entries):
        console.print("unfused: time of the kernels that a fused one stands for by its own, batched", style="dim")
    if line := bench.roofline:
        console.print(f"roofline: read {line.read_bytes_per_s / 1e9:.4g} GB/s, copy {line.copy_bytes_per_s / 1e9:.4g} GB/s, "
                      f"f32 {line.f32_flops / 1e9:.4g} GFLOP/s, f16 {line.f16_flops / 1e9:.4g} GFLOP/s, "
                      f"empty dependent dispatch {line.dispatch_us:.3g} us")
    for fault in faulty(bench.rows):
        console.print(fault, style="red", markup=False, soft_wrap=True)
    if slower := slower_kernels(bench.rows, bench.roofline):
        console.print(f"slower than the peer: {len(slower)}", style="yellow")
        for item in slower:
            console.print(f"  {item.row}: {item.contender} {number(item.ours_us)} us, {item.peer} {number(item.peer_us)} us "
                          f"({item.ratio:.2f}): {reasons_text(item)}", markup=False, soft_wrap=True)
