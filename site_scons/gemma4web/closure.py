"""Remembers what the Closure Compiler answered, since linking after an edited shader asks it the same again.

Run as a program in the compiler's place: `python closure.py FOLDER SALT COMPILER [argument ...]`. The answer is a pure
function of the arguments, the contents of the files they name, and the compiler, which ``SALT`` identifies; only an
answer without any word on standard error is kept. Imports nothing of the package, so that it starts at once.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

OUTPUT = "--js_output_file"


def key_of(salt: str, arguments: Sequence[str]) -> str:
    """SHA-256 over the salt and the arguments, in which a file stands for its content and the output for itself."""
    digest = hashlib.sha256(salt.encode())
    output = False
    for argument in arguments:
        flag, separator, value = argument.partition("=")
        path = Path(value if separator and flag.startswith("--") else argument)
        if output:
            text = b"output"
        elif path.is_file():
            text = f"{flag if separator else ''}={hashlib.sha256(path.read_bytes()).hexdigest()}".encode()
        else:
            text = argument.encode()
        digest.update(len(text).to_bytes(8, "big") + text)
        output = argument == OUTPUT
    return digest.hexdigest()


def compile_or_recall(folder: Path, salt: str, compiler: str, arguments: Sequence[str]) -> int:
    """Writes the output file from memory, or runs the compiler and remembers; returns its exit code."""
    if arguments.count(OUTPUT) != 1 or arguments[-1] == OUTPUT:
        return subprocess.run([compiler, *arguments], check=False).returncode
    output = Path(arguments[arguments.index(OUTPUT) + 1])
    kept = folder / f"{key_of(salt, arguments)}.js"
    if kept.is_file():
        output.write_bytes(kept.read_bytes())
        return 0
    finished = subprocess.run([compiler, *arguments], stderr=subprocess.PIPE, check=False)
    sys.stderr.buffer.write(finished.stderr)
    if finished.returncode == 0 and not finished.stderr.strip() and output.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(output.read_bytes())
        os.replace(temporary, kept)
    return finished.returncode


if __name__ == "__main__":
    sys.exit(compile_or_recall(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
