"""Programs with one deliberate mistake, for tests that must notice it. Names are those of ``oracle.faults.Fault``.

Most mutants are consistent programs that pass every check and compute something else; REFUSED lists those that break a
contract, so that a loader must refuse them. Faults of a kernel or of the weights' bytes have no program form.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from gemma4web.errors import UsageError
from gemma4web.program import certify, ir
from gemma4web.program.ir import ABSENT, Graph, Op, Program, Role, Storage, Tensor


def _with_ops(graph: Graph, change: Callable[[Op], Op]) -> Graph:
    return replace(graph, ops=tuple(map(change, graph.ops)))


def _drop(program: Program, ops: set[int], tensors: dict[int, int]) -> Program:
    """Without these ops and tensors; readers and writers of a dropped tensor take its replacement instead."""
    graph = program.graph
    kept = [index for index in range(len(graph.tensors)) if index not in tensors]
    number = {old: new for new, old in enumerate(kept)} | {ABSENT: ABSENT}

    def moved(indices: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[tensors.get(index, index)] for index in indices)

    return replace(
        program, weights=tuple(replace(weight, tensor=number[weight.tensor]) for weight in program.weights),
        graph=replace(
            graph, tensors=tuple(graph.tensors[index] for index in kept), inputs=moved(graph.inputs),
            outputs=moved(graph.outputs),
            ops=tuple(replace(op, inputs=moved(op.inputs), outputs=moved(op.outputs))
                      for index, op in enumerate(graph.ops) if index not in ops),
        ),
    )


def _bypass(program: Program, which: Callable[[Op], bool]) -> Program:
    """Without these ops: whoever read their output reads their first input."""
    dropped = {number: op for number, op in enumerate(program.graph.ops) if which(op)}
    return _drop(program, set(dropped), {op.outputs[0]: op.inputs[0] for op in dropped.values()})


def _rope_denominator(program: Program) -> Program:
    def change(op: Op) -> Op:
        kind = op.kind
        if isinstance(kind, ir.Rope) and kind.rotated_pairs < kind.head_dim // 2:
            return replace(op, kind=replace(kind, denominator=2 * kind.rotated_pairs))
        return op

    return replace(program, graph=_with_ops(program.graph, change))


def _rope_missing_on_full(program: Program) -> Program:
    return _bypass(program, lambda op: isinstance(op.kind, ir.Rope) and op.kind.rotated_pairs < op.kind.head_dim // 2)


def _rings(graph: Graph) -> set[int]:
    """Caches that sliding attention reads."""
    found: set[int] = set()
    for op in graph.ops:
        if isinstance(op.kind, ir.Attention) and op.kind.window:
            found |= set(op.inputs[1:3])
        elif isinstance(op.kind, ir.DonorView) and op.kind.window:
            found.add(op.inputs[0])
    return found


def _resized(graph: Graph, by: int) -> tuple[Tensor, ...]:
    """Tensors with the sliding caches and their views longer by ``by`` rows."""
    rings = _rings(graph)

    def change(index: int, tensor: Tensor) -> Tensor:
        if index not in rings:
            return tensor
        along = 2 if tensor.storage is Storage.VIEW else 1
        dims = tuple(dim + by if axis == along else dim for axis, dim in enumerate(tensor.dims))
        return replace(tensor, dims=dims)

    return tuple(change(index, tensor) for index, tensor in enumerate(graph.tensors))


def _window(by: int) -> Callable[[Program], Program]:
    def change(op: Op) -> Op:
        if isinstance(op.kind, ir.Attention | ir.DonorView) and op.kind.window:
            return replace(op, kind=replace(op.kind, window=op.kind.window + by))
        return op

    def mutate_(program: Program) -> Program:
        graph = replace(program.graph, tensors=_resized(program.graph, by), window=program.graph.window + by)
        return replace(program, graph=_with_ops(graph, change))

    return mutate_


def _no_v_norm(program: Program) -> Program:
    values = {op.inputs[0] for op in program.graph.ops if isinstance(op.kind, ir.CacheWrite)}
    return _bypass(program, lambda op: isinstance(op.kind, ir.RmsNorm) and op.outputs[0] in values)


def _change_values_from_keys(change: Callable[[Op, Op], Op]) -> Callable[[Program], Program]:
    """Changes the norm of values that are made from keys, given that and the norm of the keys."""

    def mutate_(program: Program) -> Program:
        norms = [op for op in program.graph.ops if isinstance(op.kind, ir.RmsNorm)]
        keys = {op.inputs[0]: op for op in norms if op.inputs[1] != ABSENT}
        changed = {op.outputs[0]: change(op, keys[op.inputs[0]]) for op in norms if op.inputs[1] == ABSENT and op.inputs[0] in keys}
        return replace(program, graph=_with_ops(program.graph, lambda op: changed.get(op.outputs[0], op)))

    return mutate_


def _after_k_norm(values: Op, keys: Op) -> Op:
    return replace(values, inputs=(keys.outputs[0], *values.inputs[1:]))


def _with_k_norm_weight(values: Op, keys: Op) -> Op:
    return replace(values, inputs=(values.inputs[0], keys.inputs[1], *values.inputs[2:]))


def _first_full_donor(program: Program) -> Program:
    pairs = [op.inputs[1:3] for op in program.graph.ops
             if isinstance(op.kind, ir.Attention) and op.kind.visibility is ir.Visibility.CAUSAL and not op.kind.window]
    first = dict(zip(pairs[-1], pairs[0], strict=True))

    def change(op: Op) -> Op:
        view = isinstance(op.kind, ir.DonorView) and not op.kind.window
        return replace(op, inputs=(first[op.inputs[0]], *op.inputs[1:])) if view else op

    return replace(program, graph=_with_ops(program.graph, change))


def _no_softcap(program: Program) -> Program:
    number, op = next((n, op) for n, op in enumerate(program.graph.ops) if isinstance(op.kind, ir.Softcap))
    return _drop(program, {number}, {op.inputs[0]: op.outputs[0]})


def _ple_scale(program: Program) -> Program:
    def change(op: Op) -> Op:
        if isinstance(op.kind, ir.Embedding) and program.graph.tensors[op.inputs[1]].dims[1] != program.graph.hidden:
            return replace(op, kind=ir.Embedding(scale=1.0))
        return op

    return replace(program, graph=_with_ops(program.graph, change))


def _wrong_donor(program: Program) -> Program:
    """Sliding layers after the last owner read the owner before it."""
    pairs: list[tuple[int, int]] = []
    ops: list[Op] = []
    written: set[int] = set()
    for op in program.graph.ops:
        if isinstance(op.kind, ir.CacheWrite):
            written.add(op.outputs[0])
        if isinstance(op.kind, ir.Attention) and op.kind.window and op.kind.visibility is ir.Visibility.CAUSAL:
            pair = op.inputs[1], op.inputs[2]
            if pair in pairs:
                op = replace(op, inputs=(op.inputs[0], *pairs[-2], op.inputs[3]))
            else:
                pairs.append(pair)
        ops.append(op)
    return replace(program, graph=replace(program.graph, ops=tuple(ops)))


def _draft_2_embedding_scale(program: Program) -> Program:
    ops = list(program.graph.ops)
    last = max(n for n, op in enumerate(ops) if isinstance(op.kind, ir.Embedding) and op.role is Role.ASSISTANT)
    ops[last] = replace(ops[last], kind=ir.Embedding(scale=1.0))
    return replace(program, graph=replace(program.graph, ops=tuple(ops)))


def _query_position_plus_one(program: Program) -> Program:
    graph = program.graph
    length, shifted = graph.inputs[3], len(graph.tensors)
    tensor = Tensor(name="shifted_position", dtype=ir.Dtype.I32, storage=Storage.ACTIVATION, dims=(1,))
    first = next(n for n, op in enumerate(graph.ops) if op.role is Role.ASSISTANT)
    add = Op(kind=ir.AddScalar(value=1), role=Role.ASSISTANT, phase=ir.Phase.ROUND, inputs=(length,),
             outputs=(shifted,))

    def change(op: Op) -> Op:
        moves = op.role is Role.ASSISTANT and isinstance(op.kind, ir.Rope) and op.inputs[1] == length
        return replace(op, inputs=(op.inputs[0], shifted)) if moves else op

    ops = [change(op) for op in graph.ops]
    ops.insert(first, add)
    return replace(program, graph=replace(graph, ops=tuple(ops), tensors=(*graph.tensors, tensor)))


def _ring_one_row_short(program: Program) -> Program:
    return replace(program, graph=replace(program.graph, tensors=_resized(program.graph, -1)))


def _embedding_scale(scale: float) -> Callable[[Program], Program]:
    return lambda program: replace(program, graph=replace(program.graph, embedding_scale=scale))


MUTANTS: Final[dict[str, Callable[[Program], Program]]] = {
    "rope_denominator": _rope_denominator, "rope_missing_on_full": _rope_missing_on_full,
    "window_plus_one": _window(1), "window_minus_one": _window(-1), "no_v_norm": _no_v_norm, "no_softcap": _no_softcap,
    "ple_scale": _ple_scale, "wrong_donor": _wrong_donor, "draft_2_embedding_scale": _draft_2_embedding_scale,
    "query_position_plus_one": _query_position_plus_one, "ring_one_row_short": _ring_one_row_short,
    "values_after_k_norm": _change_values_from_keys(_after_k_norm),
    "values_with_k_norm_weight": _change_values_from_keys(_with_k_norm_weight), "first_full_donor": _first_full_donor,
    "embedding_scale_zero": _embedding_scale(0.0), "embedding_scale_nan": _embedding_scale(float("nan")),
}

ROUND_ONLY: Final = frozenset({"draft_2_embedding_scale", "query_position_plus_one", "first_full_donor"})
"""Mutants of ``k2_round`` alone; ``text_decoder`` has nothing to change."""

UNIFIED_ONLY: Final = frozenset({"values_after_k_norm", "values_with_k_norm_weight", "first_full_donor"})
"""Mutants of models whose values are made from keys and in which several full layers have a cache."""

REFUSED: Final = frozenset({"draft_2_embedding_scale", "query_position_plus_one", "first_full_donor", "ring_one_row_short",
                            "embedding_scale_zero", "embedding_scale_nan"})
"""Mutants that break a contract (X5, X7, X8, ring capacity)."""


def mutate(program: Program, name: str) -> Program:
    """The program with one mistake, a census and a certificate that fit it, unchecked. Raises UsageError for an unknown name."""
    if name not in MUTANTS:
        raise UsageError(f"no program mutant {name!r}", advice=f"one of {', '.join(MUTANTS)}")
    if name in ROUND_ONLY and program.graph.method != ir.K2_ROUND:
        raise UsageError(f"{name} is a mutant of {ir.K2_ROUND}, not of {program.graph.method}")
    changed = MUTANTS[name](program).counted()
    return replace(changed, certificate=certify.renewed(changed.certificate, changed.graph))
