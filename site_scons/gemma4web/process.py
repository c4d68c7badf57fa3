"""Starts other programs: one function, which prints the shell line and turns a failure into an error of the tree."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from gemma4web.errors import DiskFullError, Gemma4WebError, ToolchainError

_INTERRUPTED: Final = (-signal.SIGINT, 128 + signal.SIGINT)
_DISK_FULL: Final = re.compile(r"ENOSPC|EDQUOT|No space left on device|Disk quota exceeded", re.IGNORECASE)


def run(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    error: type[Gemma4WebError] = ToolchainError,
    what: str | None = None,
    timeout_s: float = 1800.0,
    echo: bool = False,
) -> str:
    """Runs ``argv`` to its end and returns its standard output.

    ``env`` replaces the whole environment when given. A non-zero exit, a missing program or a timeout raises ``error``
    with the shell line and the end of the program's output; ``what`` names the step for the message. A program that met
    a full disk raises DiskFullError (V14); one that was ended by Ctrl-C raises KeyboardInterrupt.
    """
    words = [os.fspath(word) for word in argv]
    line = shlex.join(words)
    if echo:
        print(line, flush=True)
    try:
        finished = subprocess.run(
            words, env=None if env is None else dict(env), cwd=cwd, capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=timeout_s, check=False,
        )
    except FileNotFoundError:
        raise error(f"{what or words[0]}: no such program: {words[0]}") from None
    except subprocess.TimeoutExpired:
        raise error(f"{what or words[0]}: no end after {timeout_s:.0f} s: {line}") from None
    if finished.returncode in _INTERRUPTED:
        raise KeyboardInterrupt
    if finished.returncode != 0:
        said = (finished.stdout + finished.stderr).strip()
        if full := next((text for text in said.splitlines() if _DISK_FULL.search(text)), None):
            raise DiskFullError(f"{what or words[0]}: the disk is full: {full.strip()[:400]}")
        raise error(f"{what or words[0]} failed with exit code {finished.returncode}: {line}\n{said[-4000:]}")
    return finished.stdout
