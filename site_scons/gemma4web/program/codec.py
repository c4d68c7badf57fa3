"""Program <-> FlatBuffer bytes, through the generated object classes. What a program means is checked in ``check``."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import flatbuffers

from gemma4web.errors import ProgramError
from gemma4web.program import check, ir
from gemma4web.program.generated import program_generated as generated

IDENTIFIER: Final = b"G4WP"
MAX_BYTES: Final = 64 << 20
"""No program of this schema comes near it; a larger file is refused before it is read."""

_BROKEN: Final = (struct.error, IndexError, ValueError, TypeError, OverflowError, AttributeError, KeyError, MemoryError)
_T = TypeVar("_T")


def _camel(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(part.capitalize() for part in tail)


def _pack_fields(source: Any, target: Any) -> Any:
    """Copies every scalar, string and tuple-of-integers field of a dataclass to the generated object."""
    for field in dataclasses.fields(source):
        value = getattr(source, field.name)
        setattr(target, _camel(field.name), list(value) if isinstance(value, tuple) else value)
    return target


def _pack_op(op: ir.Op) -> Any:
    packed = generated.OpT()
    packed.kindType = ir.KINDS.index(type(op.kind)) + 1
    packed.kind = _pack_fields(op.kind, getattr(generated, op.name + "T")())
    packed.role, packed.phase = int(op.role), int(op.phase)
    packed.inputs, packed.outputs = list(op.inputs), list(op.outputs)
    return packed


def _pack_weight(weight: ir.Weight) -> Any:
    packed = generated.WeightT()
    packed.tensor = weight.tensor
    packed.values = _pack_fields(weight.values, generated.SpanT())
    packed.scales = None if weight.scales is None else _pack_fields(weight.scales, generated.SpanT())
    return packed


def to_bytes(program: ir.Program) -> bytes:
    """The FlatBuffer of a program; equal programs give equal bytes. Nothing is checked here."""
    graph = program.graph
    root = generated.ProgramT()
    root.schema = ir.SCHEMA
    for name in ("method", "vocab", "hidden", "context", "prefill_rows", "window", "embedding_scale"):
        setattr(root, _camel(name), getattr(graph, name))
    root.queryPositions, root.draftHead = int(graph.query_positions), int(graph.draft_head)
    root.tensors = [_pack_fields(tensor, generated.TensorT()) for tensor in graph.tensors]
    root.ops = [_pack_op(op) for op in graph.ops]
    root.inputs, root.outputs = list(graph.inputs), list(graph.outputs)
    root.shards = [_pack_fields(shard, generated.ShardT()) for shard in program.shards]
    root.weights = [_pack_weight(weight) for weight in program.weights]
    root.stopIds = list(program.stop_ids)
    root.census = _pack_fields(program.census, generated.CensusT())
    root.sourceSha256 = program.source_sha256
    root.certificate = [_pack_fields(proof, generated.ProofT()) for proof in program.certificate] or None
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(root.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def _text(value: Any) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(value)


def _unpack_fields(kind: Callable[..., _T], source: Any, **given: Any) -> _T:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if field.name in given:
            continue
        value = getattr(source, _camel(field.name))
        values[field.name] = _text(value) if field.type == "str" else value
    return kind(**values, **given)


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)


def _unpack_tensor(source: Any) -> ir.Tensor:
    return ir.Tensor(
        name=_text(source.name), dtype=ir.Dtype(source.dtype), storage=ir.Storage(source.storage),
        rows=ir.Rows(source.rows), dims=_integers(source.dims), retain=bool(source.retain),
        group=source.group, scale_dtype=ir.ScaleDtype(source.scaleDtype),
    )


def _unpack_op(source: Any) -> ir.Op:
    if not 1 <= source.kindType <= len(ir.KINDS):
        raise ValueError(f"op kind {source.kindType} is not in the schema")
    kind = ir.KINDS[source.kindType - 1]
    enums = {"visibility": ir.Visibility(source.kind.visibility)} if kind is ir.Attention else {}
    return ir.Op(
        kind=_unpack_fields(kind, source.kind, **enums), role=ir.Role(source.role), phase=ir.Phase(source.phase),
        inputs=_integers(source.inputs), outputs=_integers(source.outputs),
    )


def _unpack_weight(source: Any) -> ir.Weight:
    scales = None if source.scales is None else _unpack_fields(ir.Span, source.scales)
    return ir.Weight(tensor=source.tensor, values=_unpack_fields(ir.Span, source.values), scales=scales)


def _unpack(root: Any) -> ir.Program:
    if root.schema != ir.SCHEMA:
        raise ProgramError(f"program schema {root.schema}, wanted {ir.SCHEMA}", advice="export the model again")
    graph = ir.Graph(
        method=_text(root.method), tensors=tuple(map(_unpack_tensor, root.tensors)),
        ops=tuple(map(_unpack_op, root.ops)), inputs=_integers(root.inputs), outputs=_integers(root.outputs),
        vocab=root.vocab, hidden=root.hidden, context=root.context, prefill_rows=root.prefillRows, window=root.window,
        embedding_scale=root.embeddingScale, query_positions=ir.QueryPositions(root.queryPositions),
        draft_head=ir.DraftHead(root.draftHead),
    )
    return ir.Program(
        graph=graph,
        shards=tuple(_unpack_fields(ir.Shard, shard, role=ir.Role(shard.role)) for shard in root.shards),
        weights=tuple(map(_unpack_weight, root.weights)),
        stop_ids=() if root.stopIds is None else _integers(root.stopIds),
        source_sha256=_text(root.sourceSha256), census=_unpack_fields(ir.Census, root.census),
        certificate=tuple(_unpack_fields(ir.Proof, proof, property=ir.Property(proof.property))
                          for proof in root.certificate or ()),
    )


def from_bytes(data: bytes, *, name: str = "program") -> ir.Program:
    """Reads a FlatBuffer and checks every contract of a program.

    Raises ProgramError naming ``name`` and what is wrong; never another exception, whatever the bytes.
    """
    if len(data) > MAX_BYTES:
        raise ProgramError(f"{name}: {len(data)} bytes, a program has at most {MAX_BYTES}")
    if data[4:8] != IDENTIFIER:
        raise ProgramError(f"{name}: file identifier {data[4:8]!r}, wanted {IDENTIFIER!r}",
                           advice="name a .g4p file written by `python -m gemma4web export`")
    try:
        program = _unpack(generated.ProgramT.InitFromPackedBuf(bytearray(data), 0))
    except ProgramError as error:
        raise ProgramError(f"{name}: {error.args[0]}", advice=error.advice) from None
    except _BROKEN as error:
        raise ProgramError(f"{name}: malformed FlatBuffer: {error}", advice="export the model again") from None
    check.check(program, name=name)
    return program


def read(path: Path) -> ir.Program:
    """Reads and checks one program file. Raises ProgramError."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ProgramError(f"{path}: {size} bytes, a program has at most {MAX_BYTES}")
        data = path.read_bytes()
    except OSError as error:
        raise ProgramError(f"{path} cannot be read: {error.strerror}") from None
    return from_bytes(data, name=str(path))
