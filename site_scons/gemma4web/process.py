"""Starts other programs: one function, which prints the shell line and turns a failure into an error of the tree."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gemma4web.errors import Gemma4WebError, ToolchainError


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
    with the shell line and the end of the program's output; ``what`` names the step for the message.
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
    if finished.returncode != 0:
        tail = (finished.stdout + finished.stderr).strip()[-4000:]
        raise error(f"{what or words[0]} failed with exit code {finished.returncode}: {line}\n{tail}")
    return finished.stdout
