"""What is proven of programs, and what the certificate says: unique scatters (O3, X9, X10, X11), a single pass (R11)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from micro_program import micro_program

from gemma4web.errors import ProgramError
from gemma4web.oracle import ops
from gemma4web.program import codec, ir
from gemma4web.program.certify import (
    certify,
    chains,
    graph_sha256,
    is_permutation,
    renewed,
    single_compute_pass,
    table_sha256,
)
from gemma4web.program.check import check
from gemma4web.program.ir import ABSENT, Graph, Op, Program, Proof, Property

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
    graph, certificate = certify(program.graph, _tables(program.graph))
    return replace(program, graph=graph, certificate=certificate).counted()


def _renewed(program: Program, graph: Graph) -> Program:
    return replace(program, graph=graph, certificate=renewed(program.certificate, graph)).counted()


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
    assert certify(graph, _tables(graph, values))[0] is graph
    assert not is_permutation(values) or values.size != VOCAB


def test_unknown_table() -> None:
    graph = _round()
    assert certify(graph, {})[0] is graph


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
    assert certify(broken, tables)[0] is broken


def test_third_scatter_of_any_kind() -> None:
    """X10: exactly two chains."""
    graph = _round()
    third = replace(graph, ops=(*graph.ops, graph.ops[_find(graph, ir.Scatter)]))
    assert certify(third, _tables(graph))[0] is third


def test_other_methods_are_left_alone() -> None:
    graph = replace(_round(), method=ir.TEXT_DECODER)
    assert certify(graph, _tables(graph))[0] is graph


@pytest.mark.parametrize("which", [0, 1])
def test_one_certified_chain_of_two_is_refused(which: int) -> None:
    program = _certified()
    number = _find(program.graph, ir.ScatterUnique, which)
    half = _set(program.graph, number, replace(program.graph.ops[number], kind=ir.Scatter()))
    with pytest.raises(ProgramError, match="1 ScatterUnique"):
        check(_renewed(program, half))


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
        check(_renewed(program, graph))


def test_reference_refuses_equal_indices() -> None:
    template, source = np.zeros((1, 8)), np.arange(3.0)
    np.testing.assert_array_equal(ops.scatter_unique(template, [7, 8, 0], source), [[2, 0, 0, 0, 0, 0, 0, 0]])
    with pytest.raises(ValueError, match="equal"):
        ops.scatter_unique(template, [7, 1, 7], source)


def _proof(program: Program, property_: Property) -> Proof:
    return next(proof for proof in program.certificate if proof.property is property_)


def test_the_certificate_names_its_subjects_and_their_digests() -> None:
    program = _certified()
    table = _tables(micro_program(ir.K2_ROUND).graph).popitem()
    assert _proof(program, Property.UNIQUE_SCATTER) == Proof(
        property=Property.UNIQUE_SCATTER, subject=table[0], sha256=table_sha256(table[1]))
    assert _proof(program, Property.SINGLE_COMPUTE_PASS).sha256 == graph_sha256(program.graph)
    read = codec.from_bytes(codec.to_bytes(program))
    assert read.certificate == program.certificate and graph_sha256(read.graph) == graph_sha256(program.graph)


@pytest.mark.parametrize("method", [ir.TEXT_DECODER, ir.K2_ROUND])
@pytest.mark.parametrize("all_logits", [False, True])
def test_every_method_runs_in_one_pass(method: str, all_logits: bool) -> None:
    """R11: certified is what a builder makes, whatever its options."""
    graph = micro_program(method, all_logits=all_logits, query_positions=ir.QueryPositions.PROGRESSIVE).graph
    assert certify(graph, {})[1] == (single_compute_pass(graph),) != (None,)


def _reads_its_output(graph: Graph) -> Graph:
    number = _find(graph, ir.RmsNorm, 1)
    op = graph.ops[number]
    return _set(graph, number, replace(op, inputs=(op.outputs[0], *op.inputs[1:])))


def _writes_twice(graph: Graph) -> Graph:
    """What another op wrote is written over."""
    first, number = _find(graph, ir.RmsNorm), _find(graph, ir.RmsNorm, 1)
    return _set(graph, number, replace(graph.ops[number], outputs=graph.ops[first].outputs))


def _writes_a_weight(graph: Graph) -> Graph:
    number = _find(graph, ir.RmsNorm)
    op = graph.ops[number]
    return _set(graph, number, replace(op, outputs=(op.inputs[1],), inputs=(op.inputs[0], ABSENT, *op.inputs[2:])))


def _writes_a_cache_undeclared(graph: Graph) -> Graph:
    """The op that fills a cache becomes one that promises to write nothing but its output."""
    number = _find(graph, ir.CacheWrite)
    return _set(graph, number, replace(graph.ops[number], kind=ir.Concat()))


def _reads_before_it_is_written(graph: Graph) -> Graph:
    number = _find(graph, ir.CacheWrite)
    op = graph.ops[number]
    return replace(graph, ops=(*graph.ops[:number], *graph.ops[number + 1:], op))


def _draft_reads_a_new_cache(graph: Graph) -> Graph:
    """Drafts behind the target's pass would read rows of it."""
    drafts = tuple(op for op in graph.ops if op.phase is ir.Phase.ROUND)
    return replace(graph, ops=tuple(op for op in graph.ops if op.phase is ir.Phase.ALWAYS) + drafts)


_VIOLATIONS = [_reads_its_output, _writes_twice, _writes_a_weight, _writes_a_cache_undeclared, _reads_before_it_is_written,
               _draft_reads_a_new_cache]


@pytest.mark.parametrize("violate", _VIOLATIONS)
def test_graph_that_proves_no_single_pass(violate: Callable[[Graph], Graph]) -> None:
    """R11: no proof, and the graph stays as it is; a certificate of the sound graph does not do for it."""
    graph = violate(_round())
    assert single_compute_pass(graph) is None
    assert certify(graph, {}) == (graph, ())
    claim = Proof(property=Property.SINGLE_COMPUTE_PASS, subject="graph", sha256=graph_sha256(graph))
    assert renewed((claim,), graph) == ()


def test_view_has_the_memory_of_its_cache() -> None:
    """An op that writes the cache whose view it reads."""
    graph = _round()
    number = next(number for number, op in enumerate(graph.ops)
                  if isinstance(op.kind, ir.Attention) and op.phase is ir.Phase.ROUND)
    op = graph.ops[number]
    view = next(other for other in graph.ops if isinstance(other.kind, ir.DonorView) and other.outputs[0] == op.inputs[1])
    writes = replace(op, kind=ir.CacheWrite(), outputs=(view.inputs[0],))
    assert single_compute_pass(_set(graph, number, writes)) is None


@pytest.mark.parametrize(("forge", "says"), [
    (lambda proofs: (proofs[1],), "unique scatters by the tables"),
    (lambda proofs: (replace(proofs[0], subject="logits"), proofs[1]), "certified is logits"),
    (lambda proofs: (proofs[0], replace(proofs[1], sha256="0" * 64)), "not of this graph"),
    (lambda proofs: (proofs[0], replace(proofs[1], subject="every graph")), "not of this graph"),
    (lambda proofs: (proofs[0], replace(proofs[1], sha256="soon")), "no SHA-256"),
    (lambda proofs: (*proofs, proofs[1]), "stands twice"),
], ids=["no scatter proof", "another table", "another graph", "another subject", "no digest", "twice"])
def test_forged_certificate_is_refused(forge: Callable[[tuple[Proof, ...]], tuple[Proof, ...]], says: str) -> None:
    """X9, X20, R11: what a certificate claims is proven again on reading."""
    program = _certified()
    data = codec.to_bytes(replace(program, certificate=forge(program.certificate)))
    with pytest.raises(ProgramError, match=says):
        codec.from_bytes(data)


def test_scatter_claim_of_a_program_without_one_is_refused() -> None:
    program = replace(micro_program(ir.TEXT_DECODER), certificate=(_certified().certificate[0],))
    with pytest.raises(ProgramError, match="unique scatters"):
        check(program)
