"""Dispatches of our kernels: which shader on which buffers, its parameters packed, its workgroups counted and folded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gemma4web.errors import KernelError
from gemma4web.kernels import Kernel

Params = Mapping[str, int | float]
GROUP_LIMIT: Final = 65535
_THREADS: Final = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """A buffer of a contender's own, between its dispatches."""

    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """One dispatch. A binding that ``bindings`` does not name gets the row's buffer of its own name.

    ``groups``: workgroups before folding; None counts them by the kernel's rule (`group_count`).
    """

    kernel: str
    params: Params
    bindings: Mapping[str, str | Scratch] = field(default_factory=dict)
    groups: int | None = None


# The `dispatch` lines of the kernels that contenders use: elements, one a thread, or whole workgroups.
_ELEMENTS: Final[Mapping[str, Callable[[Mapping[str, int]], int]]] = {
    "linear_q4": lambda p: p["rows"] * p["n"],
    "cache_write": lambda p: p["rows"] * p["width"],
    "topk": lambda p: p["n"],
    "fill": lambda p: p["count"],
    "scatter": lambda p: p["count"],
}
_WORKGROUPS: Final[Mapping[str, Callable[[Mapping[str, int]], int]]] = {
    "rms_norm": lambda p: p["rows"],
    "attention": lambda p: p["rows"] * p["q_heads"],
}


def group_count(kernel: str, params: Params) -> int:
    """Workgroups of one dispatch. Raises KernelError for a kernel without a rule here."""
    sizes = {name: int(value) for name, value in params.items()}
    if kernel in _WORKGROUPS:
        return _WORKGROUPS[kernel](sizes)
    if kernel in _ELEMENTS:
        return -(-_ELEMENTS[kernel](sizes) // _THREADS)
    raise KernelError(f"no rule counts the workgroups of {kernel}",
                      advice="add it to kernel_bench/dispatches.py, or give its contender `groups`")


def fold_grid(groups: int, limit: int = GROUP_LIMIT) -> tuple[int, int, int]:
    """At least ``groups`` workgroups with no dimension above ``limit``, as include/grid.wgsl unfolds them."""
    x = min(groups, limit)
    y = min(-(-groups // x), limit)
    z = -(-groups // (x * y))
    if z > limit:
        raise KernelError(f"{groups} workgroups do not fold under {limit}")
    return x, y, z


def pack_params(kernel: Kernel, params: Params) -> bytes:
    """The uniform buffer, a multiple of 16 bytes. Raises KernelError when names differ from the kernel's."""
    names = [item.name for item in kernel.params]
    if set(names) != set(params):
        raise KernelError(f"{kernel.name} has params {', '.join(names)}; its contender gives {', '.join(sorted(params))}")
    codes = {"u32": "I", "i32": "i", "f32": "f"}
    packed = struct.pack("<" + "".join(codes[item.type] for item in kernel.params), *(params[name] for name in names))
    return packed + bytes(-len(packed) % 16)
