"""Each contract refuses a program that breaks it and nothing else: every case is a valid program with one change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from micro_program import micro_program

from gemma4web.errors import ProgramError
from gemma4web.program import ir, shapes
from gemma4web.program.check import check
from gemma4web.program.ir import Graph, Op, Program, Tensor

PLAIN, ROUND = ir.TEXT_DECODER, ir.K2_ROUND


@pytest.mark.parametrize("method", [PLAIN, ROUND])
@pytest.mark.parametrize("dtype", [ir.Dtype.F32, ir.Dtype.Q4])
@pytest.mark.parametrize("query", list(ir.QueryPositions))
@pytest.mark.parametrize("all_logits", [False, True])
@pytest.mark.parametrize("prefill_rows", [1, 2, 3, 4])
def test_built_programs_pass(method: str, dtype: ir.Dtype, query: ir.QueryPositions, all_logits: bool,
                             prefill_rows: int) -> None:
    check(micro_program(method, dtype=dtype, query_positions=query, all_logits=all_logits, prefill_rows=prefill_rows))


@pytest.mark.parametrize("method", [PLAIN, ROUND])
@pytest.mark.parametrize("dtype", [ir.Dtype.F32, ir.Dtype.Q4])
def test_programs_of_the_larger_models_form_pass(method: str, dtype: ir.Dtype) -> None:
    check(micro_program(method, dtype=dtype, unified=True))


def _rescored(program: Program, step: int, table: str) -> Program:
    """A draft scored by another table."""
    graph, names = program.graph, [tensor.name for tensor in program.graph.tensors]
    index = next(number for number, op in enumerate(graph.ops) if names[op.outputs[0]] == f"draft_logits_{step}")
    ops = list(graph.ops)
    ops[index] = replace(ops[index], inputs=(ops[index].inputs[0], names.index(table)))
    return replace(program, graph=replace(graph, ops=tuple(ops)))


DENSE, CENTROIDS = ir.DraftHead.DENSE, ir.DraftHead.CENTROIDS


@pytest.mark.parametrize(("unified", "change", "message"), [
    (True, lambda program: _graph(program, draft_head=CENTROIDS), "draft_logits_0 does not come from Scatter"),
    (False, lambda program: _graph(program, draft_head=DENSE), "TopK in a program whose draft head is dense"),
    (True, lambda program: _rescored(program, 0, "model.embed_tokens.weight"), "drafts are scored by .* and .*, wanted one"),
    (True, lambda program: _rescored(_rescored(program, 0, "model.embed_tokens.weight"), 1, "model.embed_tokens.weight"),
     "drafts are scored by model.embed_tokens.weight, wanted one weight of the assistant"),
])
def test_draft_heads(unified: bool, change: Callable[[Program], Program], message: str) -> None:
    """X10: what a program says of its head is so, and both drafts are scored by the assistant's one table."""
    with pytest.raises(ProgramError, match=message):
        check(change(micro_program(ROUND, unified=unified)))


def test_plain_program_has_no_draft_head() -> None:
    with pytest.raises(ProgramError, match="draft head of text_decoder is dense"):
        check(_graph(micro_program(PLAIN, unified=True), draft_head=DENSE))


def _graph(program: Program, **change: Any) -> Program:
    return replace(program, graph=replace(program.graph, **change)).counted()


def _ops(change: Callable[[Graph, list[Op]], None]) -> Callable[[Program], Program]:
    def apply(program: Program) -> Program:
        ops = list(program.graph.ops)
        change(program.graph, ops)
        return _graph(program, ops=tuple(ops))

    return apply


def _nth(ops: list[Op], kind: type[ir.Kind], number: int = 0) -> int:
    return [index for index, op in enumerate(ops) if isinstance(op.kind, kind)][number]


def _edit(kind: type[ir.Kind], number: int = 0, **change: Any) -> Callable[[Program], Program]:
    """Changes fields of one op; ``kind__x`` reaches into its attributes."""
    def apply(graph: Graph, ops: list[Op]) -> None:
        index = _nth(ops, kind, number)
        attributes = {name[6:]: value for name, value in change.items() if name.startswith("kind__")}
        fields = {name: value for name, value in change.items() if not name.startswith("kind__")}
        ops[index] = replace(ops[index], kind=replace(ops[index].kind, **attributes), **fields)

    return _ops(apply)


def _input(kind: type[ir.Kind], number: int, position: int, tensor: str) -> Callable[[Program], Program]:
    """Feeds another tensor to one input."""
    def apply(graph: Graph, ops: list[Op]) -> None:
        index = _nth(ops, kind, number)
        inputs = list(ops[index].inputs)
        inputs[position] = [t.name for t in graph.tensors].index(tensor)
        ops[index] = replace(ops[index], inputs=tuple(inputs))

    return _ops(apply)


def _tensor(name: str, /, **change: Any) -> Callable[[Program], Program]:
    return lambda program: _graph(program, tensors=tuple(
        replace(tensor, **change) if tensor.name == name else tensor for tensor in program.graph.tensors))


def _swap(field: str, a: int, b: int) -> Callable[[Program], Program]:
    def apply(program: Program) -> Program:
        items = list(getattr(program.graph, field))
        items[a], items[b] = items[b], items[a]
        return _graph(program, **{field: tuple(items)})

    return apply


def _drop_op(kind: type[ir.Kind], number: int = 0) -> Callable[[Program], Program]:
    return _ops(lambda graph, ops: ops.__delitem__(_nth(ops, kind, number)))


def _repeat_op(kind: type[ir.Kind]) -> Callable[[Program], Program]:
    return _ops(lambda graph, ops: ops.append(ops[_nth(ops, kind)]))


def _header(**change: Any) -> Callable[[Program], Program]:
    return lambda program: replace(program, **change)


def _shard(**change: Any) -> Callable[[Program], Program]:
    return lambda program: replace(program, shards=(replace(program.shards[0], **change), *program.shards[1:]))


def _weight(change: Callable[[list[ir.Weight]], None]) -> Callable[[Program], Program]:
    def apply(program: Program) -> Program:
        weights = list(program.weights)
        change(weights)
        return replace(program, weights=tuple(weights))

    return apply


def _span(weights: list[ir.Weight], **change: Any) -> None:
    weights[0] = replace(weights[0], values=replace(weights[0].values, **change))


CASES: list[tuple[str, str, Callable[[Program], Program], str]] = [
    # X1: method names
    ("X1", PLAIN, lambda p: _graph(p, method="forward"), "method 'forward', wanted text_decoder or k2_round"),
    ("X1", PLAIN, lambda p: _graph(p, method=ROUND), "inputs are"),
    ("X1", ROUND, lambda p: _graph(p, method=PLAIN), "wanted 1|inputs are"),
    # X2: inputs
    ("X2", ROUND, _swap("inputs", 0, 1), r"inputs are \(positions .*wanted \(ids"),
    ("X2", ROUND, _swap("inputs", 2, 3), r"inputs are .*donor_length i32\[1\], round_flag"),
    ("X2", ROUND, _tensor("ids", dtype=ir.Dtype.F32), r"ids f32\[1, 4\]"),
    ("X2", ROUND, _tensor("positions", dims=(1, 5)), r"positions i32\[1, 5\]"),
    ("X2", ROUND, _tensor("round_flag", dims=(1, 1)), r"round_flag i32\[1, 1\]"),
    ("X2", ROUND, lambda p: _graph(p, inputs=p.graph.inputs[:3]), "inputs are"),
    ("X2", PLAIN, lambda p: _graph(p, inputs=(*p.graph.inputs, 999)), "name tensors that do not exist"),
    # X3: outputs
    ("X3", ROUND, _swap("outputs", 0, 1), "outputs are"),
    ("X3", ROUND, _swap("outputs", 2, 3), "outputs are"),
    ("X3", ROUND, lambda p: _graph(p, outputs=p.graph.outputs[:4]), "outputs are"),
    ("X3", ROUND, _tensor("state_probe", dtype=ir.Dtype.I32), r"state_probe i32\[1, 1\]"),
    ("X3", PLAIN, _drop_op(ir.CopyLast), "nothing writes next_token"),
    # X4: cache layout and capacity
    ("X4", PLAIN, _tensor("cache.0.k", dims=(7, 1, 16)), r"cache cache.0.k is \[7, 1, 16\], wanted \[1, S, heads"),
    ("X4", PLAIN, _tensor("cache.0.k", dims=(1, 1, 7, 16)), "CacheWrite"),
    ("X4", PLAIN, _tensor("cache.0.v", dims=(1, 6, 1, 16)), "keys and values of one shape"),
    ("X4", PLAIN, lambda p: _tensor("cache.0.v", dims=(1, 6, 1, 16))(_tensor("cache.0.k", dims=(1, 6, 1, 16))(p)),
     "cache cache.0.k holds 6 rows, wanted 7"),
    ("X4", PLAIN, lambda p: _tensor("cache.2.v", dims=(1, 33, 1, 32))(_tensor("cache.2.k", dims=(1, 33, 1, 32))(p)),
     "cache cache.2.k holds 33 rows, wanted 34"),
    ("X4", PLAIN, _drop_op(ir.CacheWrite), "attention before its keys|nothing writes cache"),
    # X5: donors
    ("X5", ROUND, _tensor("donor.1.k", dims=(1, 7, 1, 16)), r"a view \[1, heads, S, d\]"),
    ("X5", ROUND, lambda p: _input(ir.DonorView, 1, 0, "cache.0.v")(_input(ir.DonorView, 0, 0, "cache.0.k")(p)),
     "the donor caches are not the target's last with the window 4"),
    ("X5", ROUND, lambda p: _input(ir.DonorView, 1, 0, "cache.1.k")(_input(ir.DonorView, 0, 0, "cache.1.v")(p)),
     "the donor caches are not the target's last"),
    ("X5", ROUND, _edit(ir.DonorView, 0, kind__window=3), "the donor caches are not"),
    ("X5", ROUND, _edit(ir.Attention, 0, kind__window=0), "the donor caches are not"),
    ("X5", ROUND, _input(ir.Attention, 0, 3, "round_flag"), "the donor length is not the program's input"),
    ("X5", ROUND, _edit(ir.Attention, 0, kind__visibility=ir.Visibility.CAUSAL), "wanted caches"),
    ("window", PLAIN, _edit(ir.Attention, 0, kind__window=5), "window 5, wanted 0 or 4|with the windows"),
    # X7: query positions
    ("X7", ROUND, lambda p: _graph(p, query_positions=ir.QueryPositions.PROGRESSIVE),
     r"draft step 2 queries at P \+ 0, wanted P \+ 1 \(progressive\)"),
    ("X7", ROUND, _input(ir.Rope, 0, 1, "round_flag"), r"draft step 1 queries at P \+ None, wanted P \+ 0 \(constant\)"),
    # X8: embedding scale
    ("X8", ROUND, _edit(ir.Embedding, 1, kind__scale=1.0), r"draft step 2 embeds with the scales \[1.0\]"),
    ("X8", ROUND, _edit(ir.Embedding, 0, kind__scale=1.0), r"draft step 1 embeds with the scales \[1.0\]"),
    ("X8", ROUND, _edit(ir.Embedding, 1, kind__scale=0.0), "finite attributes"),
    *[("X8", method, lambda p, s=scale: _graph(p, embedding_scale=s), "embedding scale is .*, wanted a finite number > 0")
      for method in (PLAIN, ROUND) for scale in (0.0, -1.0, float("nan"), float("inf"))],
    # X10: candidate chains
    ("X10", ROUND, _input(ir.Scatter, 1, 1, "draft.0.candidates"), "mixes tensors of two chains|does not come from"),
    ("X10", ROUND, _input(ir.GatherRows, 0, 1, "draft_0"), "no earlier op|one table row"),
    ("X10", ROUND, _edit(ir.Argmax, 0, role=ir.Role.TARGET), "complete draft steps, wanted 2|no earlier"),
    ("X10", ROUND, _repeat_op(ir.TopK), "a second time"),
    # X13: census
    ("X13", ROUND, _header(census=ir.count(())), "census .*, counted"),
    # roles and phases
    ("O8", PLAIN, _edit(ir.Linear, 0, role=ir.Role.ASSISTANT), "belongs to the assistant or to a round"),
    ("O8", PLAIN, _edit(ir.Linear, 0, phase=ir.Phase.ROUND), "belongs to the assistant or to a round"),
    ("O8", PLAIN, _shard(role=ir.Role.ASSISTANT), "belongs to the assistant, in text_decoder"),
    ("phase", ROUND, _edit(ir.Linear, 0, phase=ir.Phase.ALWAYS), "which no earlier op of its phase wrote"),
    ("phase", ROUND, _edit(ir.Accept, 0, phase=ir.Phase.ROUND), "no earlier op of its phase|in rounds only"),
    # data flow
    ("flow", PLAIN, _swap("ops", 0, 3), "which no earlier op of its phase wrote"),
    ("flow", PLAIN, _repeat_op(ir.Softcap), "writes logits a second time"),
    ("flow", PLAIN, _drop_op(ir.PleCombine), "no earlier op"),
    ("flow", PLAIN, _edit(ir.Linear, 0, outputs=(0,)), "writes ids|f32"),
    ("flow", PLAIN, _edit(ir.Linear, 0, inputs=(999, 1)), "tensor 999 does not exist"),
    ("flow", PLAIN, _edit(ir.Linear, 0, inputs=(-1, 1)), "tensor -1 does not exist"),
    ("flow", PLAIN, _edit(ir.Linear, 0, inputs=(1,)), "1 inputs and 1 outputs, wanted 2 and 1"),
    # shapes and attributes
    ("shape", PLAIN, _tensor("layer.0.q", dims=(4, 33)), "layer.0.q"),
    ("shape", PLAIN, _tensor("layer.0.q", dims=(5, 32)), "layer.0.q has 5 rows, wanted 4"),
    ("shape", PLAIN, _tensor("layer.0.q", dims=(0, 32)), r"has the shape \[0, 32\]"),
    ("shape", PLAIN, _tensor("layer.0.q", rows=ir.Rows.FIXED), "equal rows"),
    ("shape", PLAIN, _tensor("layer.0.q", dtype=ir.Dtype.Q4), "is q4 and no weight"),
    ("shape", PLAIN, _tensor("layer.0.q", name="layer.0.k"), "stands twice"),
    ("shape", PLAIN, _edit(ir.Rope, 0, kind__rotated_pairs=9), "1..8 rotated pairs"),
    ("shape", PLAIN, _edit(ir.Rope, 0, kind__denominator=0), "a denominator"),
    ("shape", PLAIN, _edit(ir.Rope, 0, kind__theta=float("nan")), "finite attributes"),
    ("shape", PLAIN, _edit(ir.RmsNorm, 0, kind__width=5), "a multiple of 5 columns"),
    ("shape", PLAIN, _edit(ir.RmsNorm, 0, kind__eps=0.0), "finite attributes"),
    ("shape", PLAIN, _edit(ir.GeluMul, 1, kind__offset=1 << 20), "columns 1048576"),
    ("shape", PLAIN, _edit(ir.Softcap, 0, kind__cap=0.0), "finite attributes"),
    ("shape", ROUND, _edit(ir.TopK, 0, kind__k=9), r"\[1, n >= 9\]"),
    ("shape", PLAIN, _edit(ir.Attention, 0, kind__head_dim=0), "heads of 0"),
    ("scales", PLAIN, _tensor("layer.0.q", group=48), "layer.0.q has groups of 48, wanted one of"),
    ("scales", PLAIN, _tensor("layer.0.q", group=64), "layer.0.q is f32 and says how its scales are stored"),
    ("scales", PLAIN, _tensor("ids", scale_dtype=ir.ScaleDtype.F32), "ids is i32 and says how its scales are stored"),
    # header
    ("header", PLAIN, lambda p: _graph(p, vocab=0), "vocab is 0, wanted at least 1"),
    ("header", PLAIN, _header(stop_ids=(64,)), "stop ids .* reach beyond the vocabulary of 64"),
    ("header", PLAIN, _header(source_sha256="xyz"), "is no SHA-256"),
    # shards and weights
    ("shard", PLAIN, _shard(file="../w"), "no plain name"),
    ("shard", PLAIN, _shard(sha256="0"), "is no SHA-256"),
    ("shard", PLAIN, _shard(bytes=100), "lie beyond the end of their shard"),
    ("shard", ROUND, lambda p: replace(p, shards=(p.shards[0], p.shards[0])), "stands twice"),
    ("weight", PLAIN, _weight(lambda w: w.pop()), "has no place in a shard"),
    ("weight", PLAIN, _weight(lambda w: w.append(w[0])), "has two places"),
    ("weight", PLAIN, _weight(lambda w: w.append(replace(w[0], tensor=0))), "ids has bytes in a shard"),
    ("weight", PLAIN, _weight(lambda w: _span(w, bytes=w[0].values.bytes - 4)), "wanted"),
    ("weight", PLAIN, _weight(lambda w: _span(w, bytes=0)), "0 bytes at .*, wanted rows of"),
    ("weight", PLAIN, _weight(lambda w: _span(w, bytes=128)), "1 rows in its shards, wanted 64"),
    ("weight", PLAIN, _weight(lambda w: _span(w, begin=66)), "aligned"),
    ("weight", PLAIN, _weight(lambda w: _span(w, begin=w[1].values.begin)), "overlap in"),
    ("weight", PLAIN, _weight(lambda w: _span(w, shard=1)), "lie beyond the end"),
    ("weight", ROUND, _weight(lambda w: _span(w, shard=1 - w[0].values.shard)), "beyond the end|other model"),
    ("weight", PLAIN, _weight(lambda w: w.__setitem__(0, replace(w[0], scales=ir.Span(bytes=2)))), "has scales"),
]


@pytest.mark.parametrize(("code", "method", "change", "message"), CASES,
                         ids=[f"{index}-{code}-{method}" for index, (code, method, *_) in enumerate(CASES)])
def test_contract(code: str, method: str, change: Callable[[Program], Program], message: str) -> None:
    """X1 to X5, X7, X8, X10, X13 and the structure under them."""
    program = micro_program(method)
    changed = change(program)
    assert changed != program
    with pytest.raises(ProgramError, match=message):
        check(changed, name="p")


def test_q4_weights_need_scales_and_whole_groups() -> None:
    program = micro_program(PLAIN, dtype=ir.Dtype.Q4)
    packed = next(n for n, weight in enumerate(program.weights) if weight.scales)
    weights = list(program.weights)
    weights[packed] = replace(weights[packed], scales=None)
    with pytest.raises(ProgramError, match="is q4: wanted scales"):
        check(replace(program, weights=tuple(weights)))
    name = program.graph.tensors[weights[packed].tensor].name
    with pytest.raises(ProgramError, match=f"{name} .*columns in groups of 64"):
        check(_tensor(name, group=64)(program))
    with pytest.raises(ProgramError, match=f"scales of {name}|has values of .* and scales of"):
        check(_tensor(name, scale_dtype=ir.ScaleDtype.F32)(program))


FIXED, PASS = ir.Rows.FIXED, ir.Rows.PASS


@pytest.mark.parametrize(("a", "b", "out", "right"), [
    (((5,), FIXED), ((5,), FIXED), ((5,), FIXED), True), (((2, 7), FIXED), ((1,), FIXED), ((2, 7), FIXED), True),
    (((4,), PASS), ((1,), FIXED), ((4,), PASS), True), (((4,), PASS), ((4,), PASS), ((4,), PASS), True),
    (((5,), FIXED), ((4,), FIXED), ((5,), FIXED), False), (((1,), FIXED), ((5,), FIXED), ((5,), FIXED), False),
    (((4,), PASS), ((4,), FIXED), ((4,), PASS), False), (((5,), FIXED), ((5,), FIXED), ((1, 5), FIXED), False)])
def test_what_may_be_subtracted(a: tuple[Any, Any], b: tuple[Any, Any], out: tuple[Any, Any], right: bool) -> None:
    """O5: integers of one shape and one kind of rows, or one integer from all."""
    tensors = tuple(Tensor(name=name, dtype=ir.Dtype.I32, storage=ir.Storage.ACTIVATION, rows=rows, dims=dims)
                    for name, (dims, rows) in (("a", a), ("b", b), ("out", out)))
    op = Op(kind=ir.Subtract(), role=ir.Role.TARGET, phase=ir.Phase.ALWAYS, inputs=(0, 1), outputs=(2,))
    graph = replace(micro_program(PLAIN).graph, tensors=tensors, ops=(op,))
    if right:
        shapes.check_op(graph, 0)
        for wrong in range(3):
            spoiled = (*tensors[:wrong], replace(tensors[wrong], dtype=ir.Dtype.F32), *tensors[wrong + 1:])
            with pytest.raises(ProgramError, match="Subtract.*wanted i32"):
                shapes.check_op(replace(graph, tensors=spoiled), 0)
    else:
        with pytest.raises(ProgramError, match="equal shapes, or one integer to subtract"):
            shapes.check_op(graph, 0)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_number_of_draft_steps(steps: int) -> None:
    """X10: exactly two chains; 0, 1 and 3 are refused."""
    program = micro_program(ROUND)
    assistant = [op for op in program.graph.ops if op.role is ir.Role.ASSISTANT]
    ends = [index for index, op in enumerate(assistant) if isinstance(op.kind, ir.Argmax)]
    rest = [op for op in program.graph.ops if op.role is ir.Role.TARGET]
    tensors = list(program.graph.tensors)
    kept = assistant if steps == 3 else assistant[: ends[steps - 1] + 1] if steps else assistant[:4]
    if steps == 3:  # a third step: the second one again with tensors of its own
        number = {}
        for op in assistant[ends[0] + 1 :]:
            for index in op.outputs:
                number[index] = len(tensors)
                tensors.append(replace(tensors[index], name=f"third.{tensors[index].name}"))
        kept = kept + [replace(op, inputs=tuple(number.get(i, i) for i in op.inputs),
                               outputs=tuple(number[i] for i in op.outputs)) for op in assistant[ends[0] + 1 :]]
    changed = _graph(program, ops=(*kept, *rest), tensors=tuple(tensors))
    with pytest.raises(ProgramError, match=f"{steps} complete draft steps, wanted 2|no earlier op|nothing writes"):
        check(changed)


def test_messages_name_the_file_and_a_remedy() -> None:
    with pytest.raises(ProgramError) as caught:
        check(_graph(micro_program(PLAIN), vocab=0), name="x.g4p")
    assert str(caught.value).startswith("x.g4p: vocab is 0") and "remedy:" in str(caught.value)


def test_unused_tensor_is_found() -> None:
    program = micro_program(PLAIN)
    extra = Tensor(name="stray", dtype=ir.Dtype.F32, storage=ir.Storage.ACTIVATION, dims=(1, 1))
    with pytest.raises(ProgramError, match="nothing writes stray"):
        check(_graph(program, tensors=(*program.graph.tensors, extra)))
