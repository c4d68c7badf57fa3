"""Weight shards: safetensors files written as a stream, hashed on the way, equal bytes for equal input.

A shard holds tensors of one role. A tensor that is larger than a shard lies in several, in ranges of its rows. Values
come first and the odd-sized f16 scales last, so that all values begin at multiples of four bytes. Memory in use is one
block of rows and the scales of one shard.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from gemma4web.errors import CheckpointError
from gemma4web.export.tensors import Tensors
from gemma4web.program import certify
from gemma4web.program.decoder import ASSISTANT_PREFIX
from gemma4web.program.ir import Dtype, Role, ScaleDtype, Shard, Span, Tensor

MAX_SHARD_BYTES: Final = 90_000_000
"""Static hosts refuse larger files."""
SCALE_SUFFIX: Final = ".scale"
_BLOCK_BYTES: Final = 16 << 20
_FRAME: Final = 64
"""Upper bound of a shard file's bytes beyond its items: length word, metadata, padding."""
_HEADER_RESERVE: Final = 256
"""Upper bound of one tensor's header entry beyond its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One tensor of a shard file: its name there, safetensors dtype and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """Rows ``first .. last`` of a program tensor and their one (f32, i32) or two (q4: values, scales) parts."""

    tensor: Tensor
    first: int
    last: int
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def header_bytes(self) -> int:
        return sum(len(json.dumps(part.name)) + _HEADER_RESERVE for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardPlan:
    file: str
    role: Role
    items: tuple[Item, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A shard on disk with its items and the span of every part by name; ``Span.shard`` is for the program to fill in."""

    shard: Shard
    items: tuple[Item, ...]
    spans: dict[str, Span]


class Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


def item_of(tensor: Tensor, rows: tuple[int, int] | None = None) -> Item:
    """The stored form of a weight, or of the rows ``first .. last`` of it. Raises CheckpointError when it cannot be packed."""
    first, last = rows or (0, tensor.dims[0])
    name = tensor.name if rows is None else f"{tensor.name}[{first}:{last}]"
    dims = (last - first, *tensor.dims[1:])
    if tensor.dtype is not Dtype.Q4:
        part = Part(name=name, dtype="F32" if tensor.dtype is Dtype.F32 else "I32", shape=dims, bytes=math.prod(dims) * 4)
        return Item(tensor=tensor, first=first, last=last, parts=(part,))
    count, columns = dims
    if columns % tensor.group:
        raise CheckpointError(f"{tensor.name}: {columns} columns are no multiple of {tensor.group}, which q4 needs",
                              advice="export with --weights f32")
    values = Part(name=name, dtype="U8", shape=(count, columns // 2), bytes=count * columns // 2)
    scales = Part(name=name + SCALE_SUFFIX, dtype=tensor.scale_dtype.name, shape=(count, columns // tensor.group),
                  bytes=count * tensor.scale_row_bytes)
    return Item(tensor=tensor, first=first, last=last, parts=(values, scales))


def _needed(item: Item) -> int:
    return item.bytes + item.header_bytes


def _split(tensor: Tensor, room: int) -> list[Item]:
    """A weight as one item of at most ``room`` bytes, or as the fewest even ranges of its rows that fit.

    A range has an even number of rows: its bytes in either buffer on the GPU begin at a multiple of four then.
    """
    whole = item_of(tensor)
    if _needed(whole) <= room:
        return [whole]
    rows = tensor.dims[0]
    pair = item_of(tensor, (rows - min(2, rows), rows))  # the row numbers with most digits
    if _needed(pair) > room:
        raise CheckpointError(f"{tensor.name} needs {pair.bytes} bytes for {pair.last - pair.first} rows, a shard holds {room}",
                              advice="raise --max-shard-bytes, or export with --weights q4")
    most = 2 * ((room - pair.header_bytes) // pair.bytes)
    pieces = -(-rows // most)
    step = -(-rows // (2 * pieces)) * 2
    return [item_of(tensor, (first, min(first + step, rows))) for first in range(0, rows, step)]


def role_of(tensor: Tensor) -> Role:
    return Role.ASSISTANT if tensor.name.startswith(ASSISTANT_PREFIX) else Role.TARGET


def plan(tensors: list[Tensor], *, max_bytes: int = MAX_SHARD_BYTES) -> list[ShardPlan]:
    """Distributes weights over shards in their given order, target first; splits those that are larger than a shard.

    Raises CheckpointError when two rows of one are.
    """
    plans: list[ShardPlan] = []
    for role in Role:
        groups: list[list[Item]] = []
        used = 0
        for item in (item for tensor in tensors if role_of(tensor) is role for item in _split(tensor, max_bytes - _FRAME)):
            if not groups or used + _needed(item) > max_bytes:
                groups.append([])
                used = _FRAME
            groups[-1].append(item)
            used += _needed(item)
        plans += [ShardPlan(file=f"{role.name.lower()}-{number:05}-of-{len(groups):05}.safetensors", role=role,
                            items=tuple(group)) for number, group in enumerate(groups, 1)]
    return plans


def _ordered_parts(shard: ShardPlan) -> list[Part]:
    parts = [part for item in shard.items for part in item.parts]
    return sorted(parts, key=lambda part: (part.dtype == "F16", part.bytes % 4))


def _header(parts: list[Part]) -> tuple[bytes, dict[str, Span]]:
    """The length word and header of a shard file, and the absolute span of every part."""
    table: dict[str, object] = {"__metadata__": {"format": "gemma4web"}}
    offset = 0
    for part in parts:
        table[part.name] = {"dtype": part.dtype, "shape": part.shape, "data_offsets": [offset, offset + part.bytes]}
        offset += part.bytes
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    begin = 8 + len(text)
    spans = {}
    for part in parts:
        spans[part.name] = Span(begin=begin, bytes=part.bytes)
        begin += part.bytes
    return len(text).to_bytes(8, "little") + text, spans


def _blocks(item: Item) -> Iterator[slice]:
    step = max(1, _BLOCK_BYTES // (4 * item.tensor.width))
    return (slice(first, min(first + step, item.last)) for first in range(item.first, item.last, step))


def checkpoint_name(tensor: Tensor) -> str:
    """The tensor's name in its own checkpoint."""
    return tensor.name.removeprefix(ASSISTANT_PREFIX)


def token_ordering(checkpoint: Tensors, tensor: Tensor) -> npt.NDArray[np.int32]:
    """i32 of the tensor's shape. Raises CheckpointError when it is no permutation of 0..size-1 (X11)."""
    ordering = checkpoint.integers(checkpoint_name(tensor), tensor.dims)
    if not certify.is_permutation(ordering):
        name = checkpoint.spelled(checkpoint_name(tensor))
        raise CheckpointError(f"{checkpoint.path}: {name} is no permutation of 0..{ordering.size - 1}",
                              advice="the checkpoint is damaged: fetch it again")
    return ordering.astype("<i4")


def _values(item: Item, checkpoint: Tensors, scales: dict[str, list[bytes]]) -> Iterator[bytes]:
    """The bytes of an item's first part in blocks; the scales of a q4 item are put into ``scales``."""
    tensor, name = item.tensor, checkpoint_name(item.tensor)
    if tensor.dtype is Dtype.I32:
        yield token_ordering(checkpoint, tensor)[item.first : item.last].tobytes()
        return
    for rows in _blocks(item):
        if tensor.dtype is Dtype.F32:
            yield checkpoint.float_rows(name, tensor.dims, rows).astype("<f4", copy=False).tobytes()
        else:
            values, block_scales = checkpoint.q4_rows(name, (tensor.dims[0], tensor.width), rows, label=tensor.name,
                                                      group=tensor.group, scale_dtype=tensor.scale_dtype)
            stored = "<f2" if tensor.scale_dtype is ScaleDtype.F16 else "<f4"
            scales.setdefault(item.parts[1].name, []).append(block_scales.astype(stored, copy=False).tobytes())
            yield values.tobytes()


def write(shard: ShardPlan, checkpoint: Tensors, sink: Sink, advance: Callable[[int], None]) -> WrittenShard:
    """Writes one shard file to ``sink``; ``advance`` is told of every block's bytes. Raises CheckpointError."""
    parts = _ordered_parts(shard)
    header, spans = _header(parts)
    digest, total = hashlib.sha256(), 0
    items = {item.parts[0].name: item for item in shard.items}
    scales: dict[str, list[bytes]] = {}

    def stream() -> Iterator[bytes]:
        yield header
        for part in parts:
            if part.name in items:
                yield from _values(items[part.name], checkpoint, scales)
            else:
                yield from scales.pop(part.name)

    for block in stream():
        digest.update(block)
        sink.write(block)
        total += len(block)
        advance(len(block))
    wanted = len(header) + sum(part.bytes for part in parts)
    if total != wanted:
        raise AssertionError(f"{shard.file}: wrote {total} bytes, planned {wanted}")
    return WrittenShard(shard=Shard(file=shard.file, bytes=total, sha256=digest.hexdigest(), role=shard.role),
                        items=shard.items, spans=spans)


def planned_bytes(shard: ShardPlan) -> int:
    """Size of the shard file."""
    parts = _ordered_parts(shard)
    return len(_header(parts)[0]) + sum(part.bytes for part in parts)
