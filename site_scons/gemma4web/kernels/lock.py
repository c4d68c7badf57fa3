"""kernels.lock.json: one entry a kernel, so that a review shows which shader texts changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import KernelError, RecordError
from gemma4web.files import load_json, sha256_bytes
from gemma4web.kernels.expand import Kernel, expand_all

LOCK_SCHEMA: Final = 1
_ADVICE: Final = "look at the shader changes, then run `scons kernels-lock` and commit kernels.lock.json"


def make_lock(kernels: Sequence[Kernel]) -> dict[str, Any]:
    """name -> sha256 of the expanded text, workgroup, bindings, features, params."""
    return {"schema": LOCK_SCHEMA, "kernels": {kernel.name: _entry(kernel) for kernel in kernels}}


def _entry(kernel: Kernel) -> dict[str, Any]:
    # Blank lines and trailing spaces are where comments stood: a reworded comment is no changed shader.
    lines = (line.rstrip() for line in kernel.text.splitlines())
    text = "\n".join(line for line in lines if line) + "\n"
    return {
        "sha256": sha256_bytes(text.encode()),
        "workgroup": list(kernel.interface.workgroup),
        "workgroup_bytes": kernel.workgroup_bytes,
        "bindings": [f"{binding.name}: {binding.kind} {binding.type}" for binding in kernel.interface.bindings],
        "features": list(kernel.features),
        "params": [f"{field.name}: {field.type}" for field in kernel.params],
    }


def lock_problems(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Sentences on the difference of two locks: missing, changed (which keys), orphaned entries."""
    sources, entries = wanted["kernels"], found.get("kernels")
    if not isinstance(entries, dict):
        return ["the lock has no `kernels` table"]
    problems = [f"missing: {name} has no entry" for name in sorted(sources.keys() - entries.keys())]
    for name in sorted(sources.keys() & entries.keys()):
        entry = entries[name]
        if not isinstance(entry, dict):
            problems.append(f"changed: {name} is no table")
            continue
        keys = sorted(key for key in sources[name].keys() | entry.keys() if sources[name].get(key) != entry.get(key))
        if keys:
            problems.append(f"changed: {name} ({', '.join(keys)})")
    problems += [f"orphaned: {name} has no kernel file" for name in sorted(entries.keys() - sources.keys())]
    return problems


def check_lock(kernel_dir: Path, lock_path: Path) -> None:
    """Raises KernelError listing every missing, changed and orphaned entry, or saying that the lock is unreadable."""
    wanted = make_lock(expand_all(kernel_dir))
    try:
        found = load_json(lock_path, schema=LOCK_SCHEMA)
    except RecordError as error:
        raise KernelError(str(error), advice=_ADVICE) from None
    if problems := lock_problems(wanted, found):
        raise KernelError(f"{lock_path} differs from {kernel_dir}:\n  " + "\n  ".join(problems), advice=_ADVICE)
