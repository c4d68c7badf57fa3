"""What an export proves of its programs, and the certificate that says so (X9 to X11, R11).

Unique scatters: TopK gives no index twice, so the rows that GatherRows takes by these are different rows of its table;
when the table is a permutation of 0..size-1, no value stands in two of them. A template that is a Fill says that every
place which no index names holds one value. Only then may the scatter be one that looks for no duplicates.

A single compute pass: WebGPU makes each dispatch of a pass wait for what the earlier ones wrote, so that passes of their
own change nothing where all of a program is dispatches, and every op writes its own outputs alone, once, before they are read.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.program import ir
from gemma4web.program.ir import ABSENT, Dtype, Graph, Op, Phase, Proof, Property, Storage

GRAPH: Final = "graph"
"""The subject of a proof that looked at the whole graph."""
_MUTATES: Final[dict[type[ir.Kind], tuple[int, ...]]] = {ir.CacheWrite: (0,), ir.SeedWrite: (0,)}
"""Outputs that keep their contents from pass to pass, by position; every other output is made anew."""
_WAITS: Final[dict[type[ir.Kind], tuple[int, ...]]] = {ir.PassRows: (3, 4), ir.Accept: (1, 2)}
"""Inputs that are bound in every pass, and read in rounds only."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """TopK -> GatherRows -> scatter into a Fill: the scatter's number among the ops, and the tensor of the table."""

    scatter: int
    table: int


def chains(graph: Graph, kind: type[ir.Kind]) -> tuple[Chain, ...]:
    """Every op of ``kind``, Scatter or ScatterUnique, whose indices are whole rows of a table of the vocabulary's size,
    picked by a TopK, and whose template is filled. Looks at the graph alone, not at the table's values."""
    producer = {index: op for op in graph.ops for index in op.outputs}
    found = []
    for number, op in enumerate(graph.ops):
        if not isinstance(op.kind, kind) or len(op.inputs) != 3:
            continue
        template, gather = producer.get(op.inputs[0]), producer.get(op.inputs[1])
        if template is None or gather is None or not isinstance(template.kind, ir.Fill):
            continue
        if not isinstance(gather.kind, ir.GatherRows):
            continue
        table, best = gather.inputs[0], producer.get(gather.inputs[1])
        if best is None or not isinstance(best.kind, ir.TopK) or best.outputs[1] != gather.inputs[1]:
            continue
        tensor = graph.tensors[table]
        if (tensor.storage, tensor.dtype, tensor.elements) == (Storage.WEIGHT, Dtype.I32, graph.vocab):
            found.append(Chain(scatter=number, table=table))
    return tuple(found)


def is_permutation(table: npt.NDArray[Any]) -> bool:
    """Whether the table holds every number of 0..size-1 once."""
    return bool(np.array_equal(np.sort(table, axis=None), np.arange(table.size)))


def table_sha256(table: npt.NDArray[Any]) -> str:
    """Of the values as a shard holds them: little-endian i32, row by row."""
    return hashlib.sha256(np.ascontiguousarray(table, "<i4").tobytes()).hexdigest()


def graph_sha256(graph: Graph) -> str:
    """Of every tensor and op in their order with all attributes, as JSON; numbers are what a program can store of them."""
    def stored(value: Any) -> Any:
        if isinstance(value, float):
            return struct.unpack("<f", struct.pack("<f", value))[0]
        if isinstance(value, dict):
            return {key: stored(entry) for key, entry in value.items()}
        return [stored(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    document = stored({**asdict(graph), "kinds": [op.name for op in graph.ops]})
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _Memory:
    """The graph's memory while a pass goes by: what each op may touch, in their order."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._written: set[int] = set()
        self._base = list(range(len(graph.tensors)))
        """By tensor, whose memory it is: a view has that of its cache."""

    def allows(self, op: Op) -> bool:
        """Whether an op in a pass of its own and in a common one do the same; takes note of what it writes."""
        if isinstance(op.kind, ir.DonorView):
            self._base[op.outputs[0]] = self._base[op.inputs[0]]
            return True
        inputs = [(position, index) for position, index in enumerate(op.inputs) if index != ABSENT]
        reads, writes = {self._base[index] for _, index in inputs}, {self._base[index] for index in op.outputs}
        allowed = (all(self._is_there(op, position, index) for position, index in inputs)
                   and all(self._may_be_written(op, position, index) for position, index in enumerate(op.outputs))
                   and len(writes) == len(op.outputs) and not writes & (reads | self._written))
        self._written |= writes
        return allowed

    def _may_be_written(self, op: Op, position: int, index: int) -> bool:
        keeps = position in _MUTATES.get(type(op.kind), ())
        return self._graph.tensors[index].storage in ((Storage.CACHE,) if keeps else (Storage.ACTIVATION, Storage.OUTPUT))

    def _is_there(self, op: Op, position: int, index: int) -> bool:
        """Whether an input holds what the op wants: drafts want the caches as the last pass left them."""
        base = self._base[index]
        storage = self._graph.tensors[base].storage
        if storage is Storage.CACHE and op.phase is Phase.ROUND:
            return base not in self._written
        return (storage in (Storage.WEIGHT, Storage.INPUT) or base in self._written
                or position in _WAITS.get(type(op.kind), ()))


def single_compute_pass(graph: Graph) -> Proof | None:
    """The proof that all dispatches of a pass of this graph may share one compute pass, or None where that is not so.

    Every op is one of the schema, which are dispatches alone, or a view. It writes its declared outputs alone, which no
    other op writes and which it does not read; caches only where that is what it is for. What it reads is there already.
    """
    memory = _Memory(graph)
    if not all(type(op.kind) in ir.KINDS and memory.allows(op) for op in graph.ops):
        return None
    return Proof(property=Property.SINGLE_COMPUTE_PASS, subject=GRAPH, sha256=graph_sha256(graph))


def certify(graph: Graph, tables: Mapping[str, npt.NDArray[Any]]) -> tuple[Graph, tuple[Proof, ...]]:
    """The graph, with its two scatters certified where both can be, and what was proven of it.

    ``tables`` holds the values of the integer weights by name, as they are exported.
    """
    graph, proofs = _with_unique_scatters(graph, tables)
    single = single_compute_pass(graph)
    return graph, proofs if single is None else (*proofs, single)


def _with_unique_scatters(graph: Graph, tables: Mapping[str, npt.NDArray[Any]]) -> tuple[Graph, tuple[Proof, ...]]:
    found = chains(graph, ir.Scatter)
    proven = [chain for chain in found if (name := graph.tensors[chain.table].name) in tables
              and tables[name].size == graph.tensors[chain.table].elements and is_permutation(tables[name])]
    scatters = sum(isinstance(op.kind, ir.Scatter) for op in graph.ops)
    names = {graph.tensors[chain.table].name for chain in proven}
    if graph.method != ir.K2_ROUND or not len(proven) == scatters == ir.DRAFTS or len(names) != 1:
        return graph, ()
    ops = list(graph.ops)
    for chain in proven:
        ops[chain.scatter] = replace(ops[chain.scatter], kind=ir.ScatterUnique())
    name = names.pop()
    proof = Proof(property=Property.UNIQUE_SCATTER, subject=name, sha256=table_sha256(tables[name]))
    return replace(graph, ops=tuple(ops)), (proof,)


def renewed(certificate: tuple[Proof, ...], graph: Graph) -> tuple[Proof, ...]:
    """The certificate of a graph that was changed: what it said of the whole graph is proven again, or left out."""
    proofs = (single_compute_pass(graph) if proof.subject == GRAPH else proof for proof in certificate)
    return tuple(proof for proof in proofs if proof is not None)


def in_words(proof: Proof) -> str:
    """One line of a certificate for a person."""
    if proof.property is Property.UNIQUE_SCATTER:
        return f"unique scatters: {proof.subject} is a permutation, so no index stands twice; its sha256 is {proof.sha256}"
    return f"single compute pass: every op writes its own outputs alone, before they are read; the graph's sha256 is {proof.sha256}"
