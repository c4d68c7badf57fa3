"""Kernel codegen: WGSL files -> kernels.h, kernels.cc and kernels.lock.json, in the steps parse -> expand -> render -> lock."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4web.files import dump_json, write_atomic
from gemma4web.kernels.dispatch import fold_grid, group_count
from gemma4web.kernels.expand import Kernel, dependencies, expand, expand_all
from gemma4web.kernels.lock import check_lock, make_lock
from gemma4web.kernels.render import render_header, render_source

__all__ = ["Generated", "Kernel", "check_lock", "dependencies", "expand", "expand_all", "fold_grid", "generate",
           "group_count", "write_generated"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generated:
    """``header`` is the text of kernels.h, ``source`` that of kernels.cc, ``lock`` the document of kernels.lock.json."""

    header: str
    source: str
    lock: dict[str, Any]


def generate(kernel_dir: Path) -> Generated:
    """Everything made from the ``*.wgsl`` files of a folder and its includes. Raises KernelError; writes nothing."""
    kernels = expand_all(kernel_dir)
    return Generated(header=render_header(kernels), source=render_source(kernels), lock=make_lock(kernels))


def write_generated(generated: Generated, *, header_path: Path, source_path: Path, lock_path: Path | None = None) -> None:
    """Writes all files or none: when one cannot be written or is interrupted, those before it are put back.

    Without ``lock_path`` the lock is left as it stands. A file that already holds its text is not touched.
    """
    texts = {header_path: generated.header, source_path: generated.source}
    if lock_path is not None:
        texts[lock_path] = dump_json(generated.lock)
    before = {path: path.read_bytes() if path.is_file() else None for path in texts}
    try:
        for path, text in texts.items():
            if before[path] != text.encode():
                write_atomic(path, text)
    except BaseException:
        for path, old in before.items():
            if old is None:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
            elif not path.is_file() or path.read_bytes() != old:
                write_atomic(path, old)
        raise
