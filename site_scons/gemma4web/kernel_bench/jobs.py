"""What the page is told of a row: JSON for the structure, bytes by name beside it.

The page knows nothing of kernels or operators: it gets shader texts, bindings, grids, models and buffer names.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.errors import KernelError
from gemma4web.kernel_bench.cases import Array, Case, Role
from gemma4web.kernel_bench.contenders import CONTENDERS, Contender, Result, obstacle
from gemma4web.kernel_bench.dispatches import DeviceFacts, Dispatch, Scratch, pack_params
from gemma4web.kernel_bench.peers import Peer, Port
from gemma4web.kernel_bench.rows import Row
from gemma4web.kernels import Kernel, fold_grid, group_count
from gemma4web.kernels.parse import BindingKind

ROTATION_BYTES: Final = 256 << 20
"""On a GPU the copies of what a call reads are together larger than any cache."""
MOST_COPIES: Final = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """One of our contenders with its dispatches for a row."""

    contender: Contender
    dispatches: tuple[Dispatch, ...]
    tolerance: float
    results: Mapping[str, Result]


def entrants_of(row: Row, kernels: Mapping[str, Kernel], facts: DeviceFacts,
                contenders: Sequence[Contender] = CONTENDERS) -> tuple[list[Entrant], dict[str, str]]:
    """Our contenders that can run here, and why the others that are meant for this row cannot."""
    found: list[Entrant] = []
    left_out: dict[str, str] = {}
    for contender in contenders:
        dispatches = contender.plan(row, facts)
        if dispatches is None:
            continue
        if reason := obstacle(dispatches, kernels, facts):
            left_out[contender.name] = reason
            continue
        own = max(kernels[item.kernel].header.tolerance for item in dispatches)
        found.append(Entrant(contender=contender, dispatches=tuple(dispatches), results=contender.results(row),
                             tolerance=own if contender.tolerance is None else contender.tolerance))
    return found, left_out


def copies_of(case: Case, *, software: bool) -> int:
    """How many copies of the rotated buffers a run goes through: 1 on a software adapter, which has no cache to defeat."""
    variants = ("_f16", "_f32")
    read = sum(buffer.data.nbytes for name, buffer in case.buffers.items() if buffer.rotated and not name.endswith(variants))
    return 1 if software or read == 0 else min(MOST_COPIES, -(-ROTATION_BYTES // read))


def prepare_job(case: Case, entrants: Sequence[Entrant], peers: Sequence[Peer], kernels: Mapping[str, Kernel], *,
                copies: int) -> tuple[dict[str, Any], dict[str, memoryview]]:
    """The job and its bytes by name. Only buffers that somebody uses are sent. Raises KernelError."""
    payloads: dict[str, memoryview] = {}
    ours = [_ours(entrant, kernels, case) for entrant in entrants]
    theirs: list[dict[str, Any]] = []
    for number, peer in enumerate(peers):
        payloads[f"model-{number}"] = memoryview(peer.model)
        theirs.append({"name": peer.name, "model": f"model-{number}", "feeds": [_port(port) for port in peer.feeds],
                       "fetches": [_port(port) for port in peer.fetches], "results": _results(peer.results)})
    used = {buffer for entry in ours for step in entry["steps"] for buffer in step["buffers"] if buffer is not None}
    used |= {port["buffer"] for entry in theirs for port in (*entry["feeds"], *entry["fetches"])}
    buffers: list[dict[str, Any]] = []
    for name in sorted(used & set(case.buffers)):
        buffer = case.buffers[name]
        size = buffer.data.nbytes + -buffer.data.nbytes % 4
        if buffer.role is not Role.OUTPUT:
            payloads[name] = _bytes(buffer.data)
        buffers.append({"name": name, "size": size, "role": str(buffer.role), "rotated": buffer.rotated})
    scratch = {binding.name: binding.size_bytes for entrant in entrants for item in entrant.dispatches
               for binding in item.bindings.values() if isinstance(binding, Scratch)}
    buffers += [{"name": name, "size": size, "role": str(Role.OUTPUT), "rotated": False}
                for name, size in sorted(scratch.items())]
    return {"kind": "prepare", "buffers": buffers, "copies": copies, "ours": ours, "peers": theirs}, payloads


def _ours(entrant: Entrant, kernels: Mapping[str, Kernel], case: Case) -> dict[str, Any]:
    return {"name": entrant.contender.name, "steps": [_step(item, kernels[item.kernel], case) for item in entrant.dispatches],
            "results": _results(entrant.results)}


def _step(item: Dispatch, kernel: Kernel, case: Case) -> dict[str, Any]:
    """``buffers`` has one entry a binding, None for the parameters."""
    buffers: list[str | None] = []
    for binding in kernel.interface.bindings:
        if binding.kind is BindingKind.UNIFORM:
            buffers.append(None)
            continue
        place = item.bindings.get(binding.name, binding.name)
        if isinstance(place, str) and place not in case.buffers:
            raise KernelError(f"{kernel.name} binds {binding.name!r} to {place!r}; the row has {', '.join(case.buffers)}",
                              advice="name one of these in the contender's `bindings`")
        buffers.append(place if isinstance(place, str) else place.name)
    groups = group_count(kernel, item.params)
    return {"kernel": kernel.name, "wgsl": kernel.text, "kinds": [str(binding.kind) for binding in kernel.interface.bindings],
            "buffers": buffers, "grid": fold_grid(groups), "params": base64.b64encode(pack_params(kernel, item.params)).decode()}


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "buffer": port.buffer, "dtype": port.dtype, "dims": port.dims}


def _results(results: Mapping[str, Result]) -> dict[str, str]:
    return {name: result.buffer for name, result in results.items()}


def _bytes(data: Array) -> memoryview:
    """A whole number of words, without a copy where it is one already."""
    flat: npt.NDArray[np.uint8] = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    padding = np.zeros(-flat.size % 4, np.uint8)
    return (flat if padding.size == 0 else np.concatenate([flat, padding])).data


def read_results(results: Mapping[str, Result], found: Mapping[str, bytes], case: Case) -> dict[str, Array]:
    """What a contender wrote, by the result's name, flat."""
    return {name: np.frombuffer(found[name], result.dtype)[:case.buffers[result.buffer].data.size]
            for name, result in results.items()}
