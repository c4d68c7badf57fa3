"""Unique scatters are made only where the graph and the ordering table prove them (O3, X9, X10, X11)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from micro_program import micro_program

from gemma4web.errors import ProgramError
from gemma4web.oracle import ops
from gemma4web.program import codec, ir
from gemma4web.program.certify import certify, chains, is_permutation
from gemma4web.program.check import check
from gemma4web.program.ir import Graph, Op, Program

VOCAB = 64


def _round() -> Graph:
    return micro_program(ir.K2_ROUND).graph


def _tables(graph: Graph, values: Any = None) -> dict[str, Any]:
    ordering = np.random.default_rng(5).permutation(VOCAB).astype(np.int32) if values is None else values
    return {graph.tensors[chain.table].name: ordering for chain in chains(graph, ir.Scatter)}


def _kinds(graph: Graph) -> list[type[ir.Kind]]:
    return [type(op.kind) for op in graph.ops if isinstance(op.kind, ir.Scatter | ir.ScatterUnique)]


def _certified() -> Program:
    program = micro_program(ir.K2_ROUND)
    return replace(program, graph=certify(program.graph, _tables(program.graph))).counted()


def _set(graph: Graph, number: int, op: Op) -> Graph:
    return replace(graph, ops=(*graph.ops[:number], op, *graph.ops[number + 1:]))


def _find(graph: Graph, kind: type[ir.Kind], which: int = 0) -> int:
    return [number for number, op in enumerate(graph.ops) if isinstance(op.kind, kind)][which]


def test_both_chains_are_certified_and_nothing_else_changes() -> None:
    graph, program = _round(), _certified()
    assert _kinds(program.graph) == [ir.ScatterUnique] * 2
    plain = [replace(op, kind=ir.Scatter()) if isinstance(op.kind, ir.ScatterUnique) else op for op in program.graph.ops]
    assert tuple(plain) == graph.ops
    assert program.census == ir.count(graph.ops)
    check(program)
    assert _kinds(codec.from_bytes(codec.to_bytes(program), name="p").graph) == [ir.ScatterUnique] * 2


def test_builders_make_no_unique_scatter() -> None:
    assert _kinds(_round()) == [ir.Scatter] * 2
    assert _kinds(micro_program(ir.TEXT_DECODER).graph) == []


@pytest.mark.parametrize("values", [
    np.zeros(VOCAB, np.int32), np.arange(VOCAB, dtype=np.int32) + 1, np.arange(VOCAB - 1, dtype=np.int32),
    np.where(np.arange(VOCAB) == 9, 8, np.arange(VOCAB)).astype(np.int32), np.arange(VOCAB, dtype=np.int32) - 1,
], ids=["zeros", "above the vocabulary", "one short", "one twice", "negative"])
def test_table_that_is_no_permutation(values: Any) -> None:
    """X11: the graph stays as it is."""
    graph = _round()
    assert certify(graph, _tables(graph, values)) is graph
    assert not is_permutation(values) or values.size != VOCAB


def test_unknown_table() -> None:
    graph = _round()
    assert certify(graph, {}) is graph


@pytest.mark.parametrize("change", ["template", "values", "graph input", "clusters"])
@pytest.mark.parametrize("which", [0, 1])
def test_chain_that_proves_nothing(change: str, which: int) -> None:
    """X9, X10: with one chain broken neither scatter is rewritten."""
    graph = _round()
    tables = _tables(graph)
    scatter, gather = _find(graph, ir.Scatter, which), _find(graph, ir.GatherRows, which)
    best = graph.ops[_find(graph, ir.TopK, which)]
    if change == "template":
        broken = _set(graph, scatter, replace(graph.ops[scatter], inputs=(best.inputs[0], *graph.ops[scatter].inputs[1:])))
    elif change == "values":
        broken = _set(graph, gather, replace(graph.ops[gather], inputs=(graph.ops[gather].inputs[0], best.outputs[0])))
    elif change == "graph input":
        broken = _set(graph, gather, replace(graph.ops[gather], inputs=(graph.ops[gather].inputs[0], graph.inputs[0])))
    else:
        broken = _set(graph, scatter, replace(
            graph.ops[scatter], inputs=(graph.ops[scatter].inputs[0], best.outputs[1], graph.ops[scatter].inputs[2])))
    assert certify(broken, tables) is broken


def test_third_scatter_of_any_kind() -> None:
    """X10: exactly two chains."""
    graph = _round()
    third = replace(graph, ops=(*graph.ops, graph.ops[_find(graph, ir.Scatter)]))
    assert certify(third, _tables(graph)) is third


def test_other_methods_are_left_alone() -> None:
    graph = replace(_round(), method=ir.TEXT_DECODER)
    assert certify(graph, _tables(graph)) is graph


@pytest.mark.parametrize("which", [0, 1])
def test_one_certified_chain_of_two_is_refused(which: int) -> None:
    program = _certified()
    number = _find(program.graph, ir.ScatterUnique, which)
    half = _set(program.graph, number, replace(program.graph.ops[number], kind=ir.Scatter()))
    with pytest.raises(ProgramError, match="1 ScatterUnique"):
        check(replace(program, graph=half).counted())


def test_unique_scatter_outside_a_chain_is_refused() -> None:
    """A program that claims more than its graph shows."""
    program = _certified()
    number = _find(program.graph, ir.GatherRows)
    op = program.graph.ops[number]
    copy = replace(program.graph.tensors[op.inputs[0]], storage=ir.Storage.INPUT, name="ids_of_a_user")
    tensors = (*program.graph.tensors, copy)
    graph = replace(_set(program.graph, number, replace(op, inputs=(len(tensors) - 1, op.inputs[1]))), tensors=tensors)
    assert len(chains(graph, ir.ScatterUnique)) == 1
    with pytest.raises(ProgramError):
        check(replace(program, graph=graph).counted())


def test_reference_refuses_equal_indices() -> None:
    template, source = np.zeros((1, 8)), np.arange(3.0)
    np.testing.assert_array_equal(ops.scatter_unique(template, [7, 8, 0], source), [[2, 0, 0, 0, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match="equal"):
        ops.scatter_unique(template, [7, 1, 7], source)
