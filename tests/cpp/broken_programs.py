"""Programs that break one rule each, and what the loader must say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from gemma4web.program import certify, ir
from gemma4web.program.ir import (
    ABSENT,
    Dtype,
    Op,
    Phase,
    Program,
    Property,
    Role,
    Rows,
    ScaleDtype,
    Storage,
    Tensor,
)

Change = Callable[[Program], Program]


@dataclass(frozen=True, kw_only=True, slots=True)
class Broken:
    """``says``: parts of the loader's message."""

    name: str
    change: Change
    says: tuple[str, ...]
    methods: tuple[str, ...] = (ir.TEXT_DECODER, ir.K2_ROUND)


def _graph(**fields: Any) -> Change:
    return lambda program: replace(program, graph=replace(program.graph, **fields))


def _certificate(property_: ir.Property, **fields: str) -> Change:
    """Another claim in the place of one of the certificate."""
    return lambda program: replace(program, certificate=tuple(
        replace(proof, **fields) if proof.property is property_ else proof for proof in program.certificate))


def _program(**fields: Any) -> Change:
    return lambda program: replace(program, **fields)


def find(program: Program, kind: type[ir.Kind], which: int = 0, role: Role | None = None) -> int:
    """The index of the n-th op of a kind."""
    return [number for number, op in enumerate(program.graph.ops)
            if isinstance(op.kind, kind) and role in (None, op.role)][which]


def set_op(program: Program, number: int, **fields: Any) -> Program:
    ops = list(program.graph.ops)
    ops[number] = replace(ops[number], **fields)
    return replace(program, graph=replace(program.graph, ops=tuple(ops)))


def uncertified(program: Program) -> Program:
    """The program with a plain Scatter for every ScatterUnique, and no claim of one."""
    for number, op in enumerate(program.graph.ops):
        if isinstance(op.kind, ir.ScatterUnique):
            program = set_op(program, number, kind=ir.Scatter())
    kept = tuple(proof for proof in program.certificate if proof.property is not ir.Property.UNIQUE_SCATTER)
    return replace(program, certificate=certify.renewed(kept, program.graph))


def subtracting(program: Program) -> Program:
    """The round with a difference of its donor length and itself, before all else."""
    graph, length = program.graph, program.graph.inputs[3]
    tensor = Tensor(name="difference", dtype=Dtype.I32, storage=Storage.ACTIVATION, dims=(1,))
    op = Op(kind=ir.Subtract(), role=Role.ASSISTANT, phase=Phase.ROUND, inputs=(length, length), outputs=(len(graph.tensors),))
    return replace(program, graph=replace(graph, tensors=(*graph.tensors, tensor), ops=(op, *graph.ops))).counted()


def set_tensor(program: Program, index: int, **fields: Any) -> Program:
    tensors = list(program.graph.tensors)
    tensors[index] = replace(tensors[index], **fields)
    return replace(program, graph=replace(program.graph, tensors=tuple(tensors)))


def _named(program: Program, name: str) -> int:
    return next(index for index, tensor in enumerate(program.graph.tensors) if tensor.name == name)


def _tensor(which: str, /, **fields: Any) -> Change:
    return lambda program: set_tensor(program, _named(program, which), **fields)


def _kind(kind: type[ir.Kind], which: int = 0, role: Role | None = None, **fields: Any) -> Change:
    """Other attributes for the n-th op of a kind."""

    def change(program: Program) -> Program:
        number = find(program, kind, which, role)
        return set_op(program, number, kind=replace(program.graph.ops[number].kind, **fields))

    return change


def _input(kind: type[ir.Kind], position: int, tensor: str | int, which: int = 0, role: Role | None = None) -> Change:
    """Another tensor at one input of the n-th op of a kind."""

    def change(program: Program) -> Program:
        number = find(program, kind, which, role)
        inputs = list(program.graph.ops[number].inputs)
        inputs[position] = tensor if isinstance(tensor, int) else _named(program, tensor)
        return set_op(program, number, inputs=tuple(inputs))

    return change


def _move(kind: type[ir.Kind], to: int) -> Change:
    """The first op of a kind stands at another place."""

    def change(program: Program) -> Program:
        ops = list(program.graph.ops)
        ops.insert(to, ops.pop(find(program, kind)))
        return replace(program, graph=replace(program.graph, ops=tuple(ops)))

    return change


def _without(kind: type[ir.Kind], which: int = 0) -> Change:
    def change(program: Program) -> Program:
        ops = list(program.graph.ops)
        del ops[find(program, kind, which)]
        return replace(program, graph=replace(program.graph, ops=tuple(ops))).counted()

    return change


def _weight(number: int, **fields: Any) -> Change:
    def change(program: Program) -> Program:
        weights = list(program.weights)
        weights[number] = replace(weights[number], **fields)
        return replace(program, weights=tuple(weights))

    return change


def _span(number: int, **fields: int) -> Change:
    def change(program: Program) -> Program:
        return _weight(number, values=replace(program.weights[number].values, **fields))(program)

    return change


def _shard(**fields: Any) -> Change:
    return lambda program: replace(program, shards=(replace(program.shards[0], **fields), *program.shards[1:]))


def _overlapping(program: Program) -> Program:
    first = program.weights[0]
    twin = next(number for number, weight in enumerate(program.weights)
                if number and weight.values.bytes >= 8 and weight.values.shard == first.values.shard)
    begin = first.values.begin + first.values.bytes - 4
    last = program.shards[first.values.shard].bytes - program.weights[twin].values.bytes
    return _span(twin, begin=min(begin, last))(program)


def _swapped(field: str) -> Change:
    def change(program: Program) -> Program:
        first, second, *rest = getattr(program.graph, field)
        return _graph(**{field: (second, first, *rest)})(program)

    return change


def _shorter(field: str) -> Change:
    return lambda program: _graph(**{field: getattr(program.graph, field)[:-1]})(program)


def _census(**fields: int) -> Change:
    def change(program: Program) -> Program:
        return replace(program, census=replace(program.census, **{
            name: getattr(program.census, name) + by for name, by in fields.items()}))

    return change


def _ring(by: int, sliding: bool) -> Change:
    """A cache (and its donor view) shorter by some rows."""

    def change(program: Program) -> Program:
        number = next(n for n, op in enumerate(program.graph.ops) if isinstance(op.kind, ir.Attention)
                      and op.role is Role.TARGET and bool(op.kind.window) is sliding)
        cache = program.graph.ops[number].inputs[1]
        for index, tensor in enumerate(program.graph.tensors):
            views = [op for op in program.graph.ops if isinstance(op.kind, ir.DonorView) and op.outputs[0] == index]
            if index == cache or any(op.inputs[0] == cache for op in views):
                along = 2 if tensor.storage is Storage.VIEW else 1
                dims = tuple(dim - by if axis == along else dim for axis, dim in enumerate(tensor.dims))
                program = set_tensor(program, index, dims=dims)
        values = program.graph.ops[number].inputs[2]
        if program.graph.tensors[values].dims != program.graph.tensors[cache].dims:
            program = set_tensor(program, values, dims=program.graph.tensors[cache].dims)
            for index, op in ((op.outputs[0], op) for op in program.graph.ops if isinstance(op.kind, ir.DonorView)):
                if op.inputs[0] == values:
                    _, rows, heads, width = program.graph.tensors[cache].dims
                    program = set_tensor(program, index, dims=(1, heads, rows, width))
        return program

    return change


def _tail_rows(rows: int) -> Change:
    """Every tensor of tail rows is made for another number of them."""

    def change(program: Program) -> Program:
        return _graph(tensors=tuple(
            replace(tensor, dims=(rows, *tensor.dims[1:])) if tensor.rows is Rows.TAIL else tensor
            for tensor in program.graph.tensors))(program)

    return change


def _layout(program: Program) -> Program:
    """A cache in batch-head-sequence order."""
    cache = program.graph.ops[find(program, ir.CacheWrite)].outputs[0]
    _, rows, heads, width = program.graph.tensors[cache].dims
    return set_tensor(program, cache, dims=(1, heads * 2, rows, width))


def _three_drafts(program: Program) -> Program:
    """A third draft argmax over the logits of the second."""
    number = find(program, ir.Argmax, 1, Role.ASSISTANT)
    op = program.graph.ops[number]
    extra = Tensor(name="draft_2", dtype=Dtype.I32, storage=Storage.ACTIVATION, dims=(1,))
    ops = list(program.graph.ops)
    ops.insert(number + 1, replace(op, outputs=(len(program.graph.tensors),)))
    return _graph(ops=tuple(ops), tensors=(*program.graph.tensors, extra))(program).counted()


def _table(kind: type[ir.Kind], position: int, dims: tuple[int, ...]) -> Change:
    """An integer weight at one input of the first op of a kind."""
    table = Tensor(name="table", dtype=Dtype.I32, storage=Storage.WEIGHT, dims=dims)
    return lambda program: _with_operand(program, find(program, kind), position, table, False)


_K2: Final = (ir.K2_ROUND,)
_PLAIN: Final = (ir.TEXT_DECODER,)
_NAN, _INF = float("nan"), float("inf")

BROKEN: Final[tuple[Broken, ...]] = (
    # header
    Broken(name="method empty", change=_graph(method=""), says=("method",)),
    Broken(name="method unknown", change=_graph(method="k3_round"), says=("k3_round",)),
    Broken(name="vocab zero", change=_graph(vocab=0), says=("vocab is 0",)),
    Broken(name="context zero", change=_graph(context=0), says=("context is 0",)),
    Broken(name="context huge", change=_graph(context=2**32 - 1), says=("context is 4294967295",)),
    Broken(name="prefill rows zero", change=_graph(prefill_rows=0), says=("prefill_rows is 0",)),
    Broken(name="prefill rows other", change=_graph(prefill_rows=7), says=("ids",)),
    Broken(name="stop id outside", change=_program(stop_ids=(64,)), says=("stop id 64", "64")),
    Broken(name="stop id negative", change=_program(stop_ids=(-1,)), says=("stop id -1",)),
    Broken(name="source hash short", change=_program(source_sha256="ab" * 31), says=("source_sha256",)),
    Broken(name="source hash upper case", change=_program(source_sha256="AB" * 32), says=("source_sha256",)),
    # X2, X3
    Broken(name="inputs swapped", change=_swapped("inputs"), says=("input 0", "positions", "wanted ids")),
    Broken(name="outputs swapped", change=_swapped("outputs"), says=("output 0", "target_greedy", "wanted candidates"),
           methods=_K2),
    Broken(name="input missing", change=_shorter("inputs"), says=("inputs, wanted",)),
    Broken(name="probe missing", change=_shorter("outputs"), says=("4 outputs, wanted 5",), methods=_K2),
    Broken(name="ids f32", change=_tensor("ids", dtype=Dtype.F32), says=("ids", "f32", "i32")),
    Broken(name="ids too wide", change=_tensor("ids", dims=(1, 9)), says=("ids", "9")),
    Broken(name="flag of two", change=_tensor("round_flag", dims=(2,)), says=("round_flag",), methods=_K2),
    Broken(name="probe i32", change=_tensor("state_probe", dtype=Dtype.I32), says=("state_probe", "f32"), methods=_K2),
    Broken(name="candidates of three", change=_tensor("candidates", dims=(1, 3)), says=("candidates", "[1,2]"),
           methods=_K2),
    Broken(name="input index out of range", change=_graph(inputs=(10**6, 1)), says=("1000000",)),
    Broken(name="stray input", change=lambda program: replace(program, graph=replace(program.graph, tensors=(
        *program.graph.tensors, Tensor(name="more", dtype=Dtype.I32, storage=Storage.INPUT, dims=(1,))))),
           says=("inputs",)),
    # tensors
    Broken(name="name empty", change=_tensor("embedded", name=""), says=("bad name",)),
    Broken(name="name with a quote", change=_tensor("embedded", name='a"b'), says=("bad name",)),
    Broken(name="name twice", change=_tensor("embedded", name="hidden"), says=("two tensors are called hidden",)),
    Broken(name="no dims", change=_tensor("embedded", dims=()), says=("embedded", "no dimensions")),
    Broken(name="zero dim", change=_tensor("embedded", dims=(0, 32)), says=("embedded", "dimension of 0")),
    Broken(name="five dims", change=_tensor("embedded", dims=(1, 1, 1, 1, 1), rows=Rows.FIXED),
           says=("embedded", "too many")),
    Broken(name="overflowing dims", change=_tensor("embedded", dims=(2**32 - 1, 2**32 - 1)),
           says=("embedded", "more than")),
    Broken(name="wrapping dims", change=_tensor("hidden", rows=Rows.FIXED, dims=(2**16, 2**16, 2**16, 2**16)),
           says=("hidden", "more than")),
    Broken(name="groups of 48", change=_tensor("model.norm.weight", group=48), says=("model.norm.weight", "groups of 48")),
    Broken(name="groups of f32", change=_tensor("model.norm.weight", group=64), says=("is f32 and says how its scales",)),
    Broken(name="scales of i32", change=_tensor("ids", scale_dtype=ScaleDtype.F32), says=("ids", "how its scales")),
    Broken(name="q4 activation", change=_tensor("embedded", dtype=Dtype.Q4), says=("embedded", "q4")),
    Broken(name="rows of a weight", change=_tensor("model.norm.weight", rows=Rows.PASS),
           says=("model.norm.weight", "rows")),
    Broken(name="rows of one tensor", change=_tensor("embedded", dims=(5, 32)), says=("Pass<=5",)),
    Broken(name="rows of all tail tensors", change=_tail_rows(2), says=("tensor ", "Tail<=2", "wanted", "rows")),
    # weights and shards
    Broken(name="weight too short", change=_span(0, bytes=4), says=("4 bytes in its shard", "wanted")),
    Broken(name="weight beyond the file", change=_span(0, begin=2**40), says=("not inside",)),
    Broken(name="weight offset wraps", change=_span(0, begin=2**64 - 4), says=("not inside",)),
    Broken(name="weight in the header", change=_span(0, begin=0), says=("not inside",)),
    Broken(name="shard unknown", change=_span(0, shard=9), says=("shard 9",)),
    Broken(name="weights overlap", change=_overlapping, says=("overlap",)),
    Broken(name="weight twice", change=lambda program: replace(program, weights=(*program.weights, program.weights[0])),
           says=("two places",)),
    Broken(name="weight of no bytes", change=_span(0, bytes=0), says=("0 bytes in its shard", "whole rows of 128")),
    Broken(name="weight of too few rows", change=_span(0, bytes=128), says=("1 rows in its shards, wanted 64",)),
    Broken(name="weight of too many rows", change=_span(0, bytes=65 * 128), says=("65 rows in its shards, wanted 64",)),
    Broken(name="weight missing", change=lambda program: replace(program, weights=program.weights[1:]),
           says=("no place",)),
    Broken(name="weight of an activation",
           change=lambda program: _weight(0, tensor=_named(program, "embedded"))(program),
           says=("embedded", "no weight")),
    Broken(name="weight index out of range", change=_weight(0, tensor=2**31), says=("2147483648",)),
    Broken(name="shard name climbs", change=_shard(file="../target.safetensors"), says=("plain name",)),
    Broken(name="shard name absolute", change=_shard(file="/etc/passwd"), says=("plain name",)),
    Broken(name="shard name empty", change=_shard(file=""), says=("plain name",)),
    Broken(name="shard hash short", change=_shard(sha256="0" * 63), says=("sha256",)),
    Broken(name="shard of three bytes", change=_shard(bytes=3), says=("3 bytes",)),
    Broken(name="shard of the wrong model", change=_shard(role=Role.ASSISTANT), says=("assistant", "text_decoder"),
           methods=_PLAIN),
    Broken(name="shard roles", change=_shard(role=Role.ASSISTANT), says=("other model's shard",), methods=_K2),
    Broken(name="shard twice", change=lambda program: replace(program, shards=(*program.shards, program.shards[0])),
           says=("listed twice",)),
    # data flow
    Broken(name="reads before it is written", change=_move(ir.Softcap, 1), says=("before op",), methods=_PLAIN),
    Broken(name="never written", change=_without(ir.Softcap), says=("which no op writes",)),
    Broken(name="written twice", change=lambda program: set_op(
        program, find(program, ir.Linear, 1, Role.TARGET), outputs=(
        program.graph.ops[find(program, ir.Linear, 0, Role.TARGET)].outputs)), says=("already",)),
    Broken(name="writes a weight", change=lambda program: set_op(program, find(program, ir.Softcap), outputs=(
        _named(program, "model.norm.weight"),)), says=("may not write", "model.norm.weight")),
    Broken(name="writes an input", change=lambda program: set_op(program, find(program, ir.Softcap), outputs=(
        _named(program, "ids"),)), says=("may not write", "ids")),
    Broken(name="writes a cache", change=lambda program: set_op(program, find(program, ir.Softcap), outputs=(
        program.graph.ops[find(program, ir.CacheWrite)].outputs)), says=("may not write", "cache")),
    Broken(name="reads what it writes", change=lambda program: set_op(program, find(program, ir.Softcap), inputs=(
        program.graph.ops[find(program, ir.Softcap)].outputs)), says=("reads and writes",)),
    Broken(name="phase without its role", change=lambda program: set_op(program, find(program, ir.Softcap),
                                                                         phase=Phase.ROUND), says=("phase",)),
    Broken(name="draft after the pass", change=_move(ir.Concat, 10**6), says=("behind an op of the target",),
           methods=_K2),
    Broken(name="target reads a draft", change=_input(ir.Argmax, 0, "draft_logits_1", role=Role.TARGET),
           says=("only when the round flag is 1",), methods=_K2),
    Broken(name="view read by another op", change=lambda program: _input(ir.Concat, 1, program.graph.ops[
        find(program, ir.DonorView)].outputs[0])(program), says=("donor view",), methods=_K2),
    # X4, X5, ring capacity
    Broken(name="cache layout", change=_layout, says=("dims",)),
    Broken(name="sliding ring one row short", change=_ring(1, True), says=("holds", "wanted at least")),
    Broken(name="full cache one row short", change=_ring(1, False), says=("holds", "wanted at least")),
    Broken(name="view of another window", change=_kind(ir.DonorView, window=3), says=("window of donor view",),
           methods=_K2),
    Broken(name="view of another length", change=_input(ir.DonorView, 1, "round_flag"),
           says=("different donor lengths",),
           methods=_K2),
    Broken(name="window of another size", change=_kind(ir.Attention, role=Role.TARGET, window=3),
           says=("window is 3",)),
    Broken(name="causal attention of a draft",
           change=_kind(ir.Attention, role=Role.ASSISTANT, visibility=ir.Visibility.CAUSAL),
           says=("op ", "Attention"), methods=_K2),
    # X7, X8
    Broken(name="query position recorded wrongly", change=_graph(query_positions=ir.QueryPositions.PROGRESSIVE),
           says=("P + 0, wanted P + 1", "progressive"), methods=_K2),
    Broken(name="query position from the flag", change=_input(ir.Rope, 1, "round_flag", role=Role.ASSISTANT),
           says=("donor_length",), methods=_K2),
    Broken(name="scale zero", change=_graph(embedding_scale=0.0), says=("embedding_scale is 0",)),
    Broken(name="scale negative", change=_graph(embedding_scale=-1.5), says=("embedding_scale is -1.5",)),
    Broken(name="scale NaN", change=_graph(embedding_scale=_NAN), says=("embedding_scale is NaN",)),
    Broken(name="scale infinite", change=_graph(embedding_scale=_INF), says=("embedding_scale is infinity",)),
    Broken(name="first draft scale", change=_kind(ir.Embedding, 0, Role.ASSISTANT, scale=1.0),
           says=("draft embedding scale is 1",),
           methods=_K2),
    Broken(name="second draft scale", change=_kind(ir.Embedding, 1, Role.ASSISTANT, scale=1.0),
           says=("draft embedding scale is 1",),
           methods=_K2),
    Broken(name="target scale", change=_graph(embedding_scale=2.0), says=("embedding_scale 2",)),
    # the round's wiring
    Broken(name="second draft embeds the pending token", change=_input(ir.Embedding, 0, "ids", 1, Role.ASSISTANT),
           says=("draft 1 embeds ids, wanted draft_0",), methods=_K2),
    Broken(name="drafts swapped in the pass", change=_input(ir.PassRows, 3, "draft_1"), says=("input 3 is draft_1",),
           methods=_K2),
    Broken(name="accept of another draft", change=_input(ir.Accept, 2, "draft_0"), says=("input 2 is draft_0",),
           methods=_K2),
    Broken(name="pass reads its inputs", change=_input(ir.Embedding, 0, "ids", role=Role.TARGET),
           says=("reads ids itself",),
           methods=_K2),
    Broken(name="three drafts", change=_three_drafts, says=("3 draft ops Argmax, wanted 2",), methods=_K2),
    Broken(name="state from another tensor", change=_input(ir.Concat, 1, "draft.0.embedded"),
           says=("does not start from the state",),
           methods=_K2),
    # X9, X10
    Broken(name="certificate of no digest", change=_certificate(Property.SINGLE_COMPUTE_PASS, sha256="A" * 64),
           says=("certificate of SingleComputePass", "sha256")),
    Broken(name="certificate of another subject", change=_certificate(Property.SINGLE_COMPUTE_PASS, subject="logits"),
           says=("certificate of SingleComputePass", "its subject is logits, wanted graph")),
    Broken(name="certificate of no subject", change=_certificate(Property.SINGLE_COMPUTE_PASS, subject=""),
           says=("certificate of SingleComputePass", "not a name")),
    Broken(name="certificate twice", change=lambda program: replace(
        program, certificate=(*program.certificate, *program.certificate)), says=("stands twice",)),
    Broken(name="unique scatter without its proof", change=lambda program: replace(program, certificate=()),
           says=("ScatterUnique", "certified is no table"), methods=_K2),
    Broken(name="unique scatter by another table", change=_certificate(Property.UNIQUE_SCATTER, subject="ids"),
           says=("ScatterUnique", "certified is ids"), methods=_K2),
    Broken(name="proof of a unique scatter that is not there", change=lambda program: replace(
        uncertified(program), certificate=program.certificate), says=("has no ScatterUnique",), methods=_K2),
    Broken(name="unique scatter into no fill", change=_input(ir.ScatterUnique, 0, "draft_logits_0", 1),
           says=("ScatterUnique", "draft_logits_0 does not come from Fill"), methods=_K2),
    Broken(name="unique scatter of clusters from anywhere", change=_table(ir.GatherRows, 1, (1, 2)),
           says=("ScatterUnique", "table does not come from the indices of TopK"), methods=_K2),
    Broken(name="unique scatter of another table", change=_table(ir.GatherRows, 0, (7, 8)),
           says=("ScatterUnique", "a weight of as many elements"), methods=_K2),
    Broken(name="unique scatter of indices from anywhere", change=_table(ir.ScatterUnique, 1, (1, 16)),
           says=("ScatterUnique", "table does not come from GatherRows"), methods=_K2),
    Broken(name="one certified scatter", change=lambda program: set_op(
        program, find(program, ir.ScatterUnique), kind=ir.Scatter()), says=("1 ops ScatterUnique, wanted none or 2",),
           methods=_K2),
    # X13
    Broken(name="census argmax", change=_census(argmax=1), says=("census", "argmax")),
    Broken(name="census ops", change=_census(ops=-1), says=("census", "ops")),
    Broken(name="census caches", change=_census(cache_writes=1), says=("census", "cache_writes")),
    Broken(name="census attention", change=_census(attention_target=-1, attention_assistant=1),
           says=("census", "attention_target")),
    Broken(name="census scatter", change=_census(scatter=1), says=("census", "scatter")),
    Broken(name="census top-k", change=_census(top_k=1), says=("census", "top_k")),
    # attributes
    Broken(name="eps NaN", change=_kind(ir.RmsNorm, role=Role.TARGET, eps=_NAN), says=("eps is NaN",)),
    Broken(name="norm width", change=_kind(ir.RmsNorm, role=Role.TARGET, width=7), says=("does not divide",)),
    Broken(name="norm width zero", change=_kind(ir.RmsNorm, role=Role.TARGET, width=0), says=("is 0",)),
    Broken(name="head_dim odd", change=_kind(ir.Rope, role=Role.TARGET, head_dim=1), says=("head_dim is 1",)),
    Broken(name="head_dim zero", change=_kind(ir.Attention, role=Role.TARGET, head_dim=0), says=("head_dim is 0",)),
    Broken(name="too many pairs", change=_kind(ir.Rope, role=Role.TARGET, rotated_pairs=2**31),
           says=("rotated_pairs",)),
    Broken(name="denominator zero", change=_kind(ir.Rope, role=Role.TARGET, denominator=0), says=("denominator is 0",)),
    Broken(name="theta zero", change=_kind(ir.Rope, role=Role.TARGET, theta=0.0), says=("theta is 0",)),
    Broken(name="cap zero", change=_kind(ir.Softcap, cap=0.0), says=("cap is 0",)),
    Broken(name="slice beyond", change=_kind(ir.GeluMul, role=Role.TARGET, offset=2**32 - 1), says=("slice",)),
    Broken(name="k zero", change=_kind(ir.TopK, k=0), says=("k is 0",), methods=_K2),
    Broken(name="k above n", change=_kind(ir.TopK, k=9), says=("k is 9", "at most 8"), methods=_K2),
    Broken(name="offset NaN", change=_kind(ir.Fill, offset=_NAN), says=("offset is NaN",), methods=_K2),
)


def _spoiled(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Tensors that no op may take in place of this one."""
    yield "dtype", replace(tensor, dtype=Dtype.I32 if tensor.dtype is not Dtype.I32 else Dtype.F32)
    yield "wider", replace(tensor, dims=(*tensor.dims[:-1], tensor.dims[-1] + 1))
    yield "rank", replace(tensor, dims=(*tensor.dims, 2))


def _with_operand(program: Program, number: int, position: int, tensor: Tensor, output: bool) -> Program:
    """One operand of one op is ``tensor`` instead; as an input it is a weight at the end of the first shard, so that
    nothing but the op can object."""
    op, index = program.graph.ops[number], len(program.graph.tensors)
    field = list(op.outputs if output else op.inputs)
    field[position] = index
    program = replace(program, graph=replace(program.graph, tensors=(*program.graph.tensors, tensor)))
    if not output:
        first, *others = program.shards
        span = ir.Span(shard=0, begin=first.bytes, bytes=4 * tensor.elements)
        program = replace(program, weights=(*program.weights, ir.Weight(tensor=index, values=span)),
                          shards=(replace(first, bytes=first.bytes + span.bytes), *others))
    return set_op(program, number, **{"outputs" if output else "inputs": tuple(field)})


_ANY_WIDTH: Final = frozenset({"Amin input 0 wider", "TopK input 0 wider", "GeluMul input 1 wider"})
"""What an op may take: a row of any width, or one that is wider than its slice."""


def wrong_operands(program: Program) -> Iterator[tuple[str, Program]]:
    """V4: for every kind of op and every operand, a tensor of a wrong dtype, width or rank, and a wrong number of
    operands. The loader's message must name an op.
    """
    seen: set[str] = set()
    for number, op in enumerate(program.graph.ops):
        if op.name in seen:
            continue
        seen.add(op.name)
        beyond = len(program.graph.tensors)
        yield f"{op.name} one input less", set_op(program, number, inputs=op.inputs[:-1])
        yield f"{op.name} one input more", set_op(program, number, inputs=(*op.inputs, op.inputs[0]))
        yield f"{op.name} no output", set_op(program, number, outputs=())
        yield f"{op.name} input out of range", set_op(program, number, inputs=(beyond, *op.inputs[1:]))
        yield f"{op.name} input below -1", set_op(program, number, inputs=(-2, *op.inputs[1:]))
        yield f"{op.name} input absent", set_op(program, number, inputs=(ABSENT, *op.inputs[1:]))
        yield f"{op.name} output out of range", set_op(program, number, outputs=(beyond, *op.outputs[1:]))
        yield f"{op.name} output below 0", set_op(program, number, outputs=(ABSENT, *op.outputs[1:]))
        for name, broken in _operands(program, number, op):
            if name not in _ANY_WIDTH:
                yield name, broken


def _operands(program: Program, number: int, op: Op) -> Iterator[tuple[str, Program]]:
    for side, indices in (("input", op.inputs), ("output", op.outputs)):
        output = side == "output"
        for position, index in enumerate(indices):
            if index == ABSENT:
                continue
            for what, tensor in _spoiled(program.graph.tensors[index]):
                if len(tensor.dims) > 4 or (output and tensor.rows is not Rows.FIXED and len(tensor.dims) > 2):
                    continue  # refused as a tensor, before any op is looked at
                tensor = replace(tensor, name=f"spoiled.{what}")
                if not output:
                    tensor = replace(tensor, storage=Storage.WEIGHT, rows=Rows.FIXED, retain=False)
                yield f"{op.name} {side} {position} {what}", _with_operand(program, number, position, tensor, output)
