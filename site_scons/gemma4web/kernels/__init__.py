"""Kernel codegen: WGSL files -> kernels.h and kernels.lock.json, in the steps parse -> expand -> render -> lock."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4web.files import dump_json, write_atomic
from gemma4web.kernels.expand import Kernel, dependencies, expand, expand_all
from gemma4web.kernels.lock import check_lock, make_lock
from gemma4web.kernels.render import render_header

__all__ = ["Generated", "Kernel", "check_lock", "dependencies", "expand", "expand_all", "generate", "write_generated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """``header`` is the text of kernels.h, ``lock`` the document of kernels.lock.json."""

    header: str
    lock: dict[str, Any]


def generate(kernel_dir: Path) -> Generated:
    """Everything made from the ``*.wgsl`` files of a folder and its includes. Raises KernelError; writes nothing."""
    kernels = expand_all(kernel_dir)
    return Generated(header=render_header(kernels), lock=make_lock(kernels))


def write_generated(generated: Generated, *, header_path: Path, lock_path: Path) -> None:
    """Writes both files or neither: when a write fails or is interrupted, both get back what they held."""
    before = {path: path.read_bytes() if path.is_file() else None for path in (header_path, lock_path)}
    try:
        write_atomic(header_path, generated.header)
        write_atomic(lock_path, dump_json(generated.lock))
    except BaseException:
        for path, content in before.items():
            _put_back(path, content)
        raise


def _put_back(path: Path, content: bytes | None) -> None:
    if content is None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    elif not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)
