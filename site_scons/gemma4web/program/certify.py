"""Which scatters of a round have unique indices, proven from where the indices come from (X9 to X11).

TopK gives no index twice, so the rows that GatherRows takes by these are different rows of its table; when the table is a
permutation of 0..size-1, no value stands in two of them. A template that is a Fill says that every place which no index
names holds one value. Only then may the scatter be one that looks for no duplicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4web.program import ir
from gemma4web.program.ir import Dtype, Graph, Storage


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


def certify(graph: Graph, tables: Mapping[str, npt.NDArray[Any]]) -> Graph:
    """The graph with its two scatters certified, or the same graph when one of them cannot be.

    ``tables`` holds the values of the integer weights by name, as they are exported.
    """
    found = chains(graph, ir.Scatter)
    proven = [chain for chain in found if (name := graph.tensors[chain.table].name) in tables
              and tables[name].size == graph.tensors[chain.table].elements and is_permutation(tables[name])]
    scatters = sum(isinstance(op.kind, ir.Scatter) for op in graph.ops)
    if graph.method != ir.K2_ROUND or not len(proven) == scatters == ir.DRAFTS:
        return graph
    ops = list(graph.ops)
    for chain in proven:
        ops[chain.scatter] = replace(ops[chain.scatter], kind=ir.ScatterUnique())
    return replace(graph, ops=tuple(ops))
