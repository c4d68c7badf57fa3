"""Finds a Chromium that starts headless: the named one, Playwright's own, one on PATH, or Debian's unpacked packages."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gemma4web.errors import Gemma4WebError, ToolchainError
from gemma4web.pins import Pins, Version, parse_version, version_text
from gemma4web.process import run
from gemma4web.toolchain.model import Browser
from gemma4web.toolchain.packages import WRAPPER, chromium_prefix
from gemma4web.toolchain.progress import SetUpProgress

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
_VERSION: Final = re.compile(r"(?:Chromium|Chrome)\D*(\d+(?:\.\d+)+)")
_PAGE: Final = "data:text/html,<p>started</p>"
_START_TIMEOUT_S: Final = 90.0


def try_browser(program: Path, least: Version, *, origin: str) -> Browser:
    """Asks for the version and lets the browser print a page without a display.

    Raises ToolchainError with the path, what was found and what was wanted.
    """
    try:
        text = run([program, "--version"], what=f"{program} --version", timeout_s=_START_TIMEOUT_S)
    except OSError as error:
        raise ToolchainError(f"{origin}: {program} cannot be started: {error.strerror}") from None
    match = _VERSION.search(text)
    if match is None:
        raise ToolchainError(f"{origin}: {program} says {text.strip()!r}, wanted a Chromium")
    if parse_version(match[1]) < least:
        raise ToolchainError(f"{origin}: {program} is Chromium {match[1]}, wanted {version_text(least)} or newer",
                             advice="name a newer one with BROWSER=, or leave BROWSER out so that one is set up")
    with tempfile.TemporaryDirectory(prefix="gemma4web-browser-", ignore_cleanup_errors=True) as profile:
        page = run(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync",
             f"--user-data-dir={profile}", "--dump-dom", _PAGE],
            what=f"starting {program} without a display", timeout_s=_START_TIMEOUT_S,
        )
    if "started" not in page:
        raise ToolchainError(f"{origin}: {program} starts but shows no page without a display")
    return Browser(executable=program, env={}, version=match[1], origin=origin)


def installed_browsers() -> Iterator[tuple[Path, str]]:
    """Browsers that may fit, likeliest first, each with the words that say where it was found."""
    base = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or Path.home() / ".cache" / "ms-playwright")
    if base.is_dir():
        for path in sorted(base.glob("chromium-*/chrome-linux*/chrome"), reverse=True):
            yield path, "Playwright's own"
    for name in _NAMES:
        found = shutil.which(name)
        if found is not None:
            yield Path(found), "on PATH"


def find_browser(named: Path | None, pins: Pins, cache: Path, progress: SetUpProgress) -> Browser:
    """The first browser that starts. One that was named must; others that fail are passed over with a line.

    Raises ToolchainError, FetchError.
    """
    least = pins.minimum["chromium"]
    if named is not None:
        found = shutil.which(str(named))
        if found is None:
            raise ToolchainError(f"BROWSER={named}: no such program",
                                 advice="name the executable of a Chromium, or leave BROWSER out")
        return try_browser(Path(found).absolute(), least, origin="BROWSER")
    for program, origin in installed_browsers():
        try:
            return try_browser(program, least, origin=origin)
        except Gemma4WebError as error:
            progress.line(f"passing over {program} ({origin}): {str(error.args[0]).splitlines()[0]}")
    folder, _ = chromium_prefix(pins, cache, progress)
    return try_browser(folder / WRAPPER, least, origin="Debian packages in the cache")
