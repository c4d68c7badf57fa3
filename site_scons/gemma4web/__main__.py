"""The command line: ``python -m gemma4web COMMAND``. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Final

from gemma4web import __version__
from gemma4web.errors import DiskFullError, Gemma4WebError

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "export": ("gemma4web.export.command", "main", "checkpoints -> programs, weight shards and receipts in a new folder"),
    "toolchain": ("gemma4web.toolchain", "main", "find or fetch the compiler, the WebGPU provider and Chromium"),
    "verify": ("gemma4web.verification", "main_verify", "recompute every hash and claim of a staged bundle or an exported model"),
    "serve": ("gemma4web.serve", "main", "serve a bundle on this machine"),
    "bench": ("gemma4web.bench", "main", "run a bundle several times: records, medians and spread"),
    "bench-kernels": ("gemma4web.kernel_bench.command", "main", "measure our kernels beside onnxruntime-web's in one page"),
    "run": ("gemma4web.run_command", "main", "run a bundle in headless Chromium and record what it did"),
    "preflight": ("gemma4web.preflight", "main", "start Chromium, run a small shader, and say on what adapter"),
}
"""Command -> (module, function taking argv and returning an exit code, one line of help)."""

INTERRUPTED: Final = 130
UNREAD: Final = 141
"""As a shell has it of a program that nobody listens to any more."""


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, _, text) in COMMANDS.items()]
    return "\n".join(["usage: python -m gemma4web COMMAND [options]", "",
                      "Gemma 4 with multi-token prediction in the browser.", "", "commands:", *lines, "",
                      "`python -m gemma4web COMMAND --help` shows a command's options."])


def _drop_output() -> None:
    """Sends what still waits for standard output nowhere, so that the interpreter ends in peace."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def main(argv: list[str] | None = None) -> int:
    """Runs one command; an error of the tree is printed without a traceback and gives its exit code.

    So does an output that takes no more, and a character that it cannot spell is written as an escape.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if words else 2
    if words[0] == "--version":
        print(__version__)
        return 0
    if words[0] not in COMMANDS:
        print(f"gemma4web: no command {words[0]!r}\n\n{_help()}", file=sys.stderr)
        return 2
    module, function, _ = COMMANDS[words[0]]
    try:
        code = int(getattr(importlib.import_module(module), function)(words[1:]) or 0)
        if sys.stdout is not None:  # closed by the caller
            sys.stdout.flush()
        return code
    except Gemma4WebError as error:
        print(f"gemma4web {words[0]}: {type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        _drop_output()
        if error.errno == errno.EPIPE:  # `| head` has read enough
            return UNREAD
        print(f"gemma4web {words[0]}: {DiskFullError.__name__}: its output cannot be written: {error.strerror}", file=sys.stderr)
        return DiskFullError.exit_code
    except KeyboardInterrupt:
        print(f"gemma4web {words[0]}: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
