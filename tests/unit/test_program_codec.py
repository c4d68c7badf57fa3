"""The file form of a program: a round trip is exact, and no bytes make the reader fail other than with ProgramError."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from micro_program import micro_program

from gemma4web.errors import ProgramError
from gemma4web.program import codec, ir
from gemma4web.program.generated import program_generated as generated


@pytest.mark.parametrize("method", [ir.TEXT_DECODER, ir.K2_ROUND])
@pytest.mark.parametrize("dtype", [ir.Dtype.F32, ir.Dtype.Q4])
def test_round_trip(method: str, dtype: ir.Dtype) -> None:
    """Every field survives; floats become f32 once and stay so; equal programs give equal bytes."""
    program = micro_program(method, dtype=dtype)
    data = codec.to_bytes(program)
    again = codec.from_bytes(data)
    assert codec.to_bytes(again) == data == codec.to_bytes(program)
    assert again.graph.tensors == program.graph.tensors
    assert (again.weights, again.shards, again.stop_ids, again.census) == (
        program.weights, program.shards, program.stop_ids, program.census)
    for before, after in zip(program.graph.ops, again.graph.ops, strict=True):
        assert (before.name, before.role, before.phase, before.inputs, before.outputs) == (
            after.name, after.role, after.phase, after.inputs, after.outputs)
        assert dataclasses.astuple(after.kind) == pytest.approx(dataclasses.astuple(before.kind), rel=1e-7)


@pytest.mark.parametrize("group", ir.Q4_GROUPS)
@pytest.mark.parametrize("scale_dtype", list(ir.ScaleDtype))
def test_groups_and_scales_are_kept(group: int, scale_dtype: ir.ScaleDtype) -> None:
    """The usual ones take no bytes: programs from before there were others are read as what they are."""
    program = micro_program(ir.K2_ROUND, dtype=ir.Dtype.Q4, group=group, scale_dtype=scale_dtype)
    data = codec.to_bytes(program)
    again = codec.from_bytes(data).graph.tensors
    assert again == program.graph.tensors
    assert {tensor.group for tensor in again} == ({32} if group == 32 else {32, 64})  # no matrix has 128 columns
    assert {tensor.scale_dtype for tensor in again if tensor.dtype is ir.Dtype.Q4} == {scale_dtype}
    usual = len(codec.to_bytes(micro_program(ir.K2_ROUND, dtype=ir.Dtype.Q4)))
    assert (len(data) == usual) == ((group, scale_dtype) == (32, ir.ScaleDtype.F16))


@pytest.mark.parametrize("query", list(ir.QueryPositions))
def test_header_fields(query: ir.QueryPositions) -> None:
    """X7: the query positions are recorded; so is everything else that the runtime needs before any weight."""
    program = micro_program(ir.K2_ROUND, query_positions=query)
    graph = codec.from_bytes(codec.to_bytes(program)).graph
    assert graph.query_positions is query
    assert (graph.vocab, graph.hidden, graph.context, graph.prefill_rows, graph.window) == (64, 32, 32, 4, 4)
    assert graph.embedding_scale == pytest.approx(32**0.5)


def test_identifier_and_schema() -> None:
    data = bytearray(codec.to_bytes(micro_program(ir.TEXT_DECODER)))
    data[4:8] = b"XXXX"
    with pytest.raises(ProgramError, match="file identifier b'XXXX', wanted b'G4WP'"):
        codec.from_bytes(bytes(data))


@pytest.mark.parametrize("data", [b"", b"G4WP", b"\0" * 64, b"\4\0\0\0G4WP", b"\xff\xff\xff\xffG4WP" + b"\0" * 64])
def test_bytes_that_are_no_program(data: bytes) -> None:
    with pytest.raises(ProgramError):
        codec.from_bytes(data)


def test_truncations() -> None:
    data = codec.to_bytes(micro_program(ir.K2_ROUND))
    for length in sorted(random.Random(1).sample(range(len(data)), 60)):
        with pytest.raises(ProgramError):
            codec.from_bytes(data[:length])


def test_flipped_bits() -> None:
    """A flip is either noticed or gives another program that passes every check; nothing else may happen. Flips in names,
    constants and hashes can pass: the model receipt holds the file's hash for those."""
    data, random_ = codec.to_bytes(micro_program(ir.K2_ROUND)), random.Random(2)
    noticed = 0
    for _ in range(250):
        flipped = bytearray(data)
        flipped[random_.randrange(len(data))] ^= 1 << random_.randrange(8)
        try:
            codec.from_bytes(bytes(flipped))
        except ProgramError:
            noticed += 1
    assert noticed > 100


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot be read"):
        codec.read(tmp_path / "absent.g4p")


def test_oversized_file_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.g4p"
    with path.open("wb") as stream:
        stream.truncate(codec.MAX_BYTES + 1)
    with pytest.raises(ProgramError, match="has at most"):
        codec.read(path)


@pytest.mark.parametrize("value", [-2**31, -1, 0, 2**31 - 1])
def test_scalar_of_an_addition_is_kept(value: int) -> None:
    """O5: every int32, so that a subtraction is the addition of the wrapped negative."""
    assert _with_scalar(value) == value


@pytest.mark.parametrize("value", [-2**31 - 1, 2**31])
def test_scalar_beyond_int32_is_no_program(value: int) -> None:
    with pytest.raises(TypeError, match="bad number"):
        _with_scalar(value)


def _with_scalar(value: int) -> int:
    program = micro_program(ir.K2_ROUND, query_positions=ir.QueryPositions.PROGRESSIVE)
    ops = [dataclasses.replace(op, kind=ir.AddScalar(value=value)) if isinstance(op.kind, ir.AddScalar) else op
           for op in program.graph.ops]
    changed = codec.to_bytes(dataclasses.replace(program, graph=dataclasses.replace(program.graph, ops=tuple(ops))))
    root = generated.Program.GetRootAs(changed)
    found = [op for op in generated.ProgramT.InitFromObj(root).ops if op.kindType == ir.KINDS.index(ir.AddScalar) + 1]
    assert len(found) == 1
    return int(found[0].kind.value)
