"""Which Chromium a command starts, and how: the options that every command with a browser has.

Nothing here drives a browser, so a command that needs no Playwright can use it on a machine without.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from gemma4web.chromium import Chromium, launch_flags
from gemma4web.errors import UsageError
from gemma4web.toolchain.model import load_browser

DEADLINE_S: Final = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """``deadline_s`` bounds each variant, from opening its page to its result.

    ``route_mask``: bits of the kernel routes that may be taken (ops/route.h); 0: those that suit the adapter.
    """

    chromium: Chromium
    gpu: bool = False
    browser_flags: tuple[str, ...] = ()
    deadline_s: float = DEADLINE_S
    route_mask: int = 0


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """Which Chromium, and how it is started."""
    parser.add_argument("--browser", type=Path, help="a Chromium executable; default: the one that set-up found")
    parser.add_argument("--browser-json", type=Path, default=Path("build/browser.json"), help=argparse.SUPPRESS)
    parser.add_argument("--gpu", action="store_true", help="use the machine's GPU; a software adapter then fails the run")
    parser.add_argument("--browser-flag", action="append", default=[], metavar="FLAG", help="one more flag for Chromium")


def run_options(options: argparse.Namespace) -> RunOptions:
    """Raises UsageError for a browser that is not there, ToolchainError when none is set up."""
    if options.browser is None:
        if not options.browser_json.is_file():
            raise UsageError(f"no Chromium is named, and {options.browser_json} does not exist here",
                             advice="name one with --browser PROGRAM, or run in the checkout, after `scons toolchain`")
        found = load_browser(options.browser_json)
        chromium = Chromium(executable=found.executable, env=found.env)
    elif options.browser.is_file():
        chromium = Chromium(executable=options.browser.absolute())
    else:
        raise UsageError(f"{options.browser} is no file", advice="name a Chromium executable with --browser PROGRAM")
    return RunOptions(chromium=chromium, gpu=options.gpu, browser_flags=tuple(options.browser_flag),
                      deadline_s=getattr(options, "deadline", DEADLINE_S),
                      route_mask=getattr(options, "routes", 0))


def settings_of(options: argparse.Namespace) -> dict[str, str]:
    """What a report says of how it was run."""
    flags = launch_flags(gpu=options.gpu, extra=options.browser_flag)
    return {"Adapter asked for": "the machine's GPU" if options.gpu else "software", "Browser flags": " ".join(flags)}


def console_of() -> Console:
    """A terminal as it is; a file or pipe wide enough for the tables."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else 120)
