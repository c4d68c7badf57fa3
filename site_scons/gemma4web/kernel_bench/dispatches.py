"""Dispatches of our kernels: which shader on which buffers, its parameters packed."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gemma4web.errors import KernelError
from gemma4web.kernel_bench.rows import Row
from gemma4web.kernels import Kernel

Params = Mapping[str, int | float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """A buffer of a contender's own, between its dispatches."""

    name: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Dispatch:
    """One dispatch. A binding that ``bindings`` does not name gets the row's buffer of its own name."""

    kernel: str
    params: Params
    bindings: Mapping[str, str | Scratch] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceFacts:
    """What the page's device offers; subgroup sizes are 0 where unknown."""

    features: frozenset[str]
    limits: Mapping[str, int | float]
    subgroup_min: int = 0
    subgroup_max: int = 0


Plan = Callable[[Row, DeviceFacts], list[Dispatch] | None]
"""The dispatches of a contender for a row; None where it does not apply."""


def pack_params(kernel: Kernel, params: Params) -> bytes:
    """The uniform buffer, a multiple of 16 bytes. Raises KernelError when names differ from the kernel's."""
    names = [item.name for item in kernel.params]
    if set(names) != set(params):
        raise KernelError(f"{kernel.name} has params {', '.join(names)}; its contender gives {', '.join(sorted(params))}")
    codes = {"u32": "I", "i32": "i", "f32": "f"}
    packed = struct.pack("<" + "".join(codes[item.type] for item in kernel.params), *(params[name] for name in names))
    return packed + bytes(-len(packed) % 16)
