"""``python -m gemma4web toolchain``: runs the set-up and shows what was found where."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from gemma4web.toolchain.model import BROWSER_NAME, load_browser
from gemma4web.toolchain.options import CHECKOUT, ToolchainOptions
from gemma4web.toolchain.progress import default_progress
from gemma4web.toolchain.provider import CHOICES
from gemma4web.toolchain.setup import found_rows, set_up


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m gemma4web toolchain",
        description="Finds or fetches the compiler, the WebGPU provider and Chromium, and writes build/toolchain.json.",
    )
    parser.add_argument("--emsdk", metavar="DIR", help="Emscripten SDK to use (default: EMSDK, PATH, Debian's packages)")
    parser.add_argument("--emdawnwebgpu-pkg", metavar="DIR", help="unpacked emdawnwebgpu package to use")
    parser.add_argument("--provider", choices=CHOICES, default="auto", help="implementation of webgpu.h")
    parser.add_argument("--browser", metavar="PROGRAM", help="Chromium to use")
    parser.add_argument("--cache", metavar="DIR", help="where fetched tools are kept (default: GEMMA4WEB_CACHE, else ~/.cache/gemma4web)")
    parser.add_argument("--out", metavar="FILE", type=Path, default=CHECKOUT / "build" / "toolchain.json",
                        help="file to write (default: build/toolchain.json of the checkout)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Runs the set-up; errors of the tree are the caller's to print."""
    options = _parser().parse_args(argv)
    toolchain = set_up(
        ToolchainOptions(emsdk=options.emsdk, emdawnwebgpu_pkg=options.emdawnwebgpu_pkg, provider=options.provider,
                         browser=options.browser, cache=options.cache),
        options.out, default_progress(),
    )
    table = Table("tool", "version or hash", title="toolchain", title_justify="left")
    table.add_column("place", overflow="fold")
    for row in found_rows(toolchain, load_browser(options.out.with_name(BROWSER_NAME))):
        table.add_row(*row)
    Console().print(table)
    return 0
