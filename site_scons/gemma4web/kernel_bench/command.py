"""`scons bench-kernels`: options, the peer's package, and files that are written whatever happens."""

from __future__ import annotations

import argparse
import errno
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console

from gemma4web import __version__
from gemma4web.errors import BrowserError, RecordError, UsageError
from gemma4web.files import dump_json, write_atomic
from gemma4web.kernel_bench import peers
from gemma4web.kernel_bench.measure import Plan, Progress, failure_of, measure
from gemma4web.kernel_bench.record import faulty
from gemma4web.kernel_bench.report import render
from gemma4web.kernel_bench.rows import choose_rows
from gemma4web.kernel_bench.summary import print_bench
from gemma4web.kernels import Kernel, expand_all
from gemma4web.launching import add_launch_options, console_of, run_options

RECORD: Final = Path("build/records/bench-kernels.json")
REPORT: Final = Path("build/report/bench-kernels.html")
KERNELS: Final = Path(__file__).resolve().parents[3] / "runtime_cpp/kernels"
DEADLINE_S: Final = 600.0
_FINE_CLOCK: Final = "--disable-dawn-features=timestamp_quantization"
_GPU_F16: Final = "--enable-dawn-features=allow_unsafe_apis,vulkan_enable_f16_on_nvidia"
"""Drivers of NVIDIA offer f16, which Dawn hides unless told; elsewhere the word does nothing."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gemma4web bench-kernels", description=main.__doc__)
    parser.add_argument("--rows", default="", metavar="REGEX", help="measure the rows whose name this matches (default: all)")
    parser.add_argument("--list", action="store_true", help="print the names of these rows and stop")
    speed = parser.add_mutually_exclusive_group()
    speed.add_argument("--quick", action="store_const", const=True, dest="quick",
                       help="few repeats, few tokens; the default on a software adapter")
    speed.add_argument("--full", action="store_const", const=False, dest="quick", help="all rows, also on a software adapter")
    parser.add_argument("--repeats", type=int, metavar="N", help="interleaved samples of each contender (default: 3 quick, 9 full)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random inputs (default: 1)")
    peer = parser.add_mutually_exclusive_group()
    peer.add_argument("--ort", type=Path, metavar="DIR", help="the unpacked npm package onnxruntime-web, instead of fetching it")
    peer.add_argument("--no-peer", action="store_true", help="measure our kernels alone")
    parser.add_argument("--cache", metavar="DIR", help="where the fetched package is kept (default: GEMMA4WEB_CACHE, else "
                                                       "~/.cache/gemma4web)")
    parser.add_argument("--kernels", type=Path, default=KERNELS, metavar="DIR", help=f"our WGSL files (default: {KERNELS})")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS",
                        help=f"limit for each step of a row (default: {DEADLINE_S:.0f})")
    add_launch_options(parser)
    parser.add_argument("--record", type=Path, default=RECORD, metavar="FILE", help=f"default: {RECORD}")
    parser.add_argument("--report", type=Path, default=REPORT, metavar="FILE", help=f"default: {REPORT}")
    return parser


def peer_package(options: argparse.Namespace) -> Path | None:
    """The folder of onnxruntime-web: named, or fetched into the cache. Raises UsageError, FetchError."""
    if options.no_peer:
        return None
    peers.onnx_module()
    if options.ort is None:
        # Only a fetch needs the packages that fetch.
        from gemma4web.pins import load_pins
        from gemma4web.toolchain.cache import default_cache
        from gemma4web.toolchain.progress import default_progress
        from gemma4web.toolchain.registries import bench_modules
        cache = default_cache() if options.cache is None else Path(options.cache).absolute()
        return bench_modules(load_pins(), cache, default_progress()) / "node_modules" / peers.NAME
    folder: Path = options.ort.absolute()
    return folder


def kernels_of(folder: Path) -> Mapping[str, Kernel]:
    """Raises UsageError for a folder without kernels, KernelError for one that breaks the format."""
    if not any(folder.glob("*.wgsl")):
        raise UsageError(f"{folder} has no *.wgsl file", advice="run in the checkout, or name runtime_cpp/kernels with --kernels")
    return {kernel.name: kernel for kernel in expand_all(folder)}


def main(argv: Sequence[str] | None = None) -> int:
    """Measures our WGSL kernels beside onnxruntime-web's in one page of headless Chromium; writes a record and a report."""
    options = _parser().parse_args(argv)
    rows = choose_rows(options.rows, quick=options.quick is True)
    if options.list:
        print("\n".join(row.name for row in rows))
        return 0
    _check(options)
    kernels = kernels_of(options.kernels)
    run = run_options(options)  # before a long download
    versions = {"gemma4web": __version__}
    if (ort := peer_package(options)) is not None:
        peers.check_package(ort)
        versions["onnx"] = peers.onnx_module().__version__
    plan = Plan(rows=options.rows, quick=options.quick, repeats=options.repeats, seed=options.seed, ort=ort, versions=versions)
    flags = [_FINE_CLOCK, *([_GPU_F16] if options.gpu else []), *options.browser_flag]
    run = replace(run, browser_flags=tuple(flags))
    progress, console = Progress(options=run, plan=plan), console_of()
    try:
        measure(plan, run, kernels, progress, lambda line: console.print(line, style="dim", markup=False, soft_wrap=True))
    except BaseException as error:
        progress.failure = failure_of(error)
        try:
            _write(progress, options, console)
        except RecordError as second:  # what ended the run is told, and this beside it
            console.print(str(second), style="red", markup=False, soft_wrap=True)
        raise
    _write(progress, options, console)
    if progress.failure:
        raise BrowserError(progress.failure)
    if faults := faulty(progress.rows):
        raise BrowserError(f"{len(faults)} of the measurements failed or are wrong; they are named above and in the record")
    return 0


def _check(options: argparse.Namespace) -> None:
    """Whatever would be noticed only after minutes. Raises UsageError."""
    if options.repeats is not None and options.repeats < 1:
        raise UsageError(f"--repeats {options.repeats} measures nothing", advice="use at least 1; 3 or more give a spread")
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}, wanted at least 0", advice="leave it out, or name a number from 0 on")
    if not 0 < options.deadline < math.inf:
        raise UsageError(f"--deadline {options.deadline:g} gives no step any time", advice="name a number of seconds above 0")
    if options.record.absolute() == options.report.absolute():
        raise UsageError(f"--record and --report are both {options.record}", advice="name two files")
    for word, path in (("--record", options.record), ("--report", options.report)):
        try:
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, "it is a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise UsageError(f"{word} {path} cannot be written: {error.strerror}",
                             advice=f"name a file in a folder of yours with {word}") from None


def _write(progress: Progress, options: argparse.Namespace, console: Console) -> None:
    """Whatever has been measured, marked incomplete unless all of it was. Raises RecordError when a file cannot be written."""
    bench = progress.record()
    if bench is None:
        return
    print_bench(bench, console)
    faults = []
    for what, path, text in (("record", options.record, dump_json(msgspec.to_builtins(bench))),
                             ("report", options.report, render(bench, record_name=options.record.name))):
        try:
            write_atomic(path, text)
            console.print(f"{what} {path}", markup=False, soft_wrap=True)
        except OSError as error:
            faults.append(f"the {what} {path} cannot be written: {error.strerror}")
    if faults:
        raise RecordError("; ".join(faults), advice="make room there, or name other files with --record and --report")
