"""The contracts of a program: structure, data flow, weights, and what each method promises. Codes name the contract."""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from gemma4web.errors import ProgramError
from gemma4web.program import certify, ir
from gemma4web.program.ir import (
    ABSENT,
    Dtype,
    Graph,
    Op,
    Phase,
    Program,
    Property,
    QueryPositions,
    Role,
    Rows,
    ScaleDtype,
    Storage,
    Tensor,
)
from gemma4web.program.shapes import check_op

ASSISTANT_PREFIX: Final = "assistant."
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_MAX_ELEMENTS: Final = 1 << 40

Signature = tuple[tuple[str, Dtype, tuple[int, ...]], ...]


def _inputs_of(graph: Graph) -> Signature:
    rows = (1, graph.prefill_rows)
    plain: Signature = (("ids", Dtype.I32, rows), ("positions", Dtype.I32, rows))
    if graph.method == ir.TEXT_DECODER:
        return plain
    return (*plain, ("round_flag", Dtype.I32, (1,)), ("donor_length", Dtype.I32, (1,)))


def _outputs_of(graph: Graph) -> Signature:
    if graph.method == ir.TEXT_DECODER:
        return (("next_token", Dtype.I32, (1, 1)),)
    return (("candidates", Dtype.I32, (1, 2)), ("target_greedy", Dtype.I32, (1, 3)), ("match_count", Dtype.I32, (1, 1)),
            ("bonus", Dtype.I32, (1, 1)), ("state_probe", Dtype.F32, (1, 1)))


def _signature(graph: Graph, what: str, indices: tuple[int, ...], wanted: Signature, storage: Storage) -> None:
    if any(not 0 <= index < len(graph.tensors) for index in indices):
        raise ProgramError(f"{what}s {indices} name tensors that do not exist")
    tensors = [graph.tensors[index] for index in indices]
    found = tuple((tensor.name, tensor.dtype, tensor.dims) for tensor in tensors)
    if found != wanted or any(tensor.storage is not storage or tensor.rows is not Rows.FIXED for tensor in tensors):
        def show(signature: Signature) -> str:
            return ", ".join(f"{name} {dtype.name.lower()}{list(dims)}" for name, dtype, dims in signature)
        raise ProgramError(f"{what}s are ({show(found)}), wanted ({show(wanted)})")
    if sum(tensor.storage is storage for tensor in graph.tensors) != len(indices):
        raise ProgramError(f"a tensor has the storage of an {what} and is none")


def _check_header(program: Program) -> None:
    graph = program.graph
    if graph.method not in (ir.TEXT_DECODER, ir.K2_ROUND):  # X1
        raise ProgramError(f"method {graph.method!r}, wanted {ir.TEXT_DECODER} or {ir.K2_ROUND}")
    for field in ("vocab", "hidden", "context", "prefill_rows", "window"):
        if getattr(graph, field) < 1:
            raise ProgramError(f"{field} is {getattr(graph, field)}, wanted at least 1")
    if not math.isfinite(graph.embedding_scale) or graph.embedding_scale <= 0:  # X8
        raise ProgramError(f"embedding scale is {graph.embedding_scale}, wanted a finite number > 0")
    if any(not 0 <= token < graph.vocab for token in program.stop_ids):
        raise ProgramError(f"stop ids {program.stop_ids} reach beyond the vocabulary of {graph.vocab}")
    if not _SHA256.fullmatch(program.source_sha256):
        raise ProgramError(f"source hash {program.source_sha256!r} is no SHA-256")
    counted = ir.count(graph.ops)
    if counted != program.census:  # X13
        raise ProgramError(f"census {program.census}, counted {counted}")


def _check_tensors(graph: Graph) -> None:
    seen: set[str] = set()
    for tensor in graph.tensors:
        if not tensor.name or tensor.name in seen:
            raise ProgramError(f"tensor name {tensor.name!r} is empty or stands twice")
        seen.add(tensor.name)
        if not tensor.dims or any(dim < 1 for dim in tensor.dims) or tensor.elements > _MAX_ELEMENTS:
            raise ProgramError(f"tensor {tensor.name} has the shape {list(tensor.dims)}")
        if tensor.rows is not Rows.FIXED and tensor.storage is not Storage.ACTIVATION:
            raise ProgramError(f"{tensor.name} has a variable row count and is no activation")
        greatest = {Rows.PASS: _pass_rows(graph), Rows.TAIL: 1 if graph.method == ir.TEXT_DECODER else ir.VERIFY_ROWS}
        if tensor.dims[0] != greatest.get(tensor.rows, tensor.dims[0]):
            raise ProgramError(f"{tensor.name} has {tensor.dims[0]} rows, wanted {greatest[tensor.rows]}")
        if tensor.storage is not Storage.WEIGHT and tensor.dtype is Dtype.Q4:
            raise ProgramError(f"{tensor.name} is q4 and no weight")
        if tensor.group not in ir.Q4_GROUPS:
            raise ProgramError(f"{tensor.name} has groups of {tensor.group}, wanted one of {ir.Q4_GROUPS}")
        if tensor.dtype is not Dtype.Q4 and (tensor.group, tensor.scale_dtype) != (ir.Q4_GROUPS[0], ScaleDtype.F16):
            raise ProgramError(f"{tensor.name} is {tensor.dtype.name.lower()} and says how its scales are stored")
        if tensor.storage is Storage.CACHE and (len(tensor.dims) != 4 or tensor.dims[0] != 1):  # X4
            raise ProgramError(f"cache {tensor.name} is {list(tensor.dims)}, wanted [1, S, heads, head_dim]")


def _pass_rows(graph: Graph) -> int:
    return graph.prefill_rows if graph.method == ir.TEXT_DECODER else max(graph.prefill_rows, ir.VERIFY_ROWS)


_OUTPUT_STORAGE: Final[dict[type[ir.Kind], tuple[Storage, ...]]] = {
    ir.CacheWrite: (Storage.CACHE,), ir.SeedWrite: (Storage.CACHE, Storage.OUTPUT), ir.DonorView: (Storage.VIEW,),
}


def _may_wait(op: Op, position: int) -> bool:
    """Drafts are read by two ops of every pass, which ignore them when the flag is 0."""
    return (isinstance(op.kind, ir.PassRows) and position in (3, 4)) or (
        isinstance(op.kind, ir.Accept) and position in (1, 2))


def _check_flow(graph: Graph) -> None:
    """Every activation, view and output is written exactly once, before it is read, and in a phase that includes the
    reader's."""
    written: dict[int, Phase] = {}
    for number, op in enumerate(graph.ops):
        check_op(graph, number)
        where = f"op {number} ({op.name})"
        if graph.method == ir.TEXT_DECODER and (op.role, op.phase) != (Role.TARGET, Phase.ALWAYS):
            raise ProgramError(f"{where} belongs to the assistant or to a round, in {graph.method}")
        for position, index in enumerate(op.inputs):
            if index == ABSENT:
                continue
            tensor = graph.tensors[index]
            if tensor.storage in (Storage.ACTIVATION, Storage.VIEW, Storage.OUTPUT):
                phase = written.get(index)
                if phase is None or (phase is Phase.ROUND and op.phase is Phase.ALWAYS and not _may_wait(op, position)):
                    raise ProgramError(f"{where} reads {tensor.name}, which no earlier op of its phase wrote")
        plain = (Storage.ACTIVATION, Storage.OUTPUT)
        for position, index in enumerate(op.outputs):
            tensor, only = graph.tensors[index], _OUTPUT_STORAGE.get(type(op.kind))
            if tensor.storage not in ((only[position],) if only else plain):
                raise ProgramError(f"{where} writes {tensor.name}, a {tensor.storage.name.lower()}")
            if index in written:
                raise ProgramError(f"{where} writes {tensor.name} a second time")
            written[index] = op.phase
    for index, tensor in enumerate(graph.tensors):
        if tensor.storage not in (Storage.WEIGHT, Storage.INPUT) and index not in written:
            raise ProgramError(f"nothing writes {tensor.name}")
    if any(written[index] is not Phase.ALWAYS for index in graph.outputs):
        raise ProgramError("an output is written in rounds only")


def _check_shards(program: Program) -> None:
    seen: set[str] = set()
    for shard in program.shards:
        if "/" in shard.file or "\\" in shard.file or shard.file in ("", ".", "..") or shard.file in seen:
            raise ProgramError(f"shard file {shard.file!r} is no plain name or stands twice")
        seen.add(shard.file)
        if not _SHA256.fullmatch(shard.sha256):
            raise ProgramError(f"shard {shard.file}: hash {shard.sha256!r} is no SHA-256")
        if program.graph.method == ir.TEXT_DECODER and shard.role is not Role.TARGET:
            raise ProgramError(f"shard {shard.file} belongs to the assistant, in {ir.TEXT_DECODER}")


def _spans(weight: ir.Weight, tensor: Tensor) -> list[tuple[ir.Span, int, str]]:
    """Every span of a weight with the bytes of one row."""
    if tensor.dtype is not Dtype.Q4:
        if weight.scales is not None:
            raise ProgramError(f"{tensor.name} is {tensor.dtype.name.lower()} and has scales")
        return [(weight.values, tensor.elements // tensor.dims[0] * 4, "values")]
    if weight.scales is None or len(tensor.dims) != 2 or tensor.dims[1] % tensor.group:
        raise ProgramError(f"{tensor.name} {list(tensor.dims)} is q4: wanted scales, and columns in groups of {tensor.group}")
    return [(weight.values, tensor.dims[1] // 2, "values"), (weight.scales, tensor.scale_row_bytes, "scales")]


def _rows(weight: ir.Weight, tensor: Tensor, first: int, program: Program) -> int:
    """The number of rows, from ``first`` on, that one place of a weight holds."""
    counts = set()
    for span, row, what in _spans(weight, tensor):
        if span.bytes % row or not span.bytes or span.begin % 2 or (what == "values" and span.begin % 4):
            raise ProgramError(f"{what} of {tensor.name}: {span.bytes} bytes at {span.begin}, wanted rows of {row}, aligned")
        if first * row % 4:
            raise ProgramError(f"{what} of {tensor.name} are split at row {first}, {first * row} bytes in: wanted a multiple of 4")
        if span.shard >= len(program.shards) or span.begin + span.bytes > program.shards[span.shard].bytes:
            raise ProgramError(f"{what} of {tensor.name} lie beyond the end of their shard")
        if (program.shards[span.shard].role is Role.ASSISTANT) != tensor.name.startswith(ASSISTANT_PREFIX):
            raise ProgramError(f"{tensor.name} lies in a shard of the other model")
        counts.add(span.bytes // row)
    if len(counts) > 1:
        raise ProgramError(f"{tensor.name} has values of {' and scales of '.join(map(str, counts))} rows in one place")
    return counts.pop()


def _check_weights(program: Program) -> None:
    graph, rows, placed = program.graph, dict[int, int](), list[tuple[int, int, int, str]]()
    for weight in program.weights:
        if not 0 <= weight.tensor < len(graph.tensors):
            raise ProgramError(f"weight of tensor {weight.tensor}, which does not exist")
        tensor = graph.tensors[weight.tensor]
        if tensor.storage is not Storage.WEIGHT:
            raise ProgramError(f"{tensor.name} has bytes in a shard and is no weight")
        first = rows.get(weight.tensor, 0)
        if first == tensor.dims[0]:
            raise ProgramError(f"{tensor.name} has two places")
        rows[weight.tensor] = first + _rows(weight, tensor, first, program)
        placed += [(span.shard, span.begin, span.begin + span.bytes, tensor.name) for span, _, _ in _spans(weight, tensor)]
    for index, tensor in graph.weights():
        if index not in rows:
            raise ProgramError(f"weight {tensor.name} has no place in a shard")
        if rows[index] != tensor.dims[0]:
            raise ProgramError(f"weight {tensor.name}: {rows[index]} rows in its shards, wanted {tensor.dims[0]}")
    placed.sort()
    for (shard, _, end, name), (other, begin, _, after) in itertools.pairwise(placed):
        if shard == other and begin < end:
            raise ProgramError(f"{name} and {after} overlap in {program.shards[shard].file}")


Owner = tuple[int, int, int]
"""Key cache, value cache, and window (0: full) of a layer that owns its caches."""


def _owners(graph: Graph) -> list[Owner]:
    """Cache pairs in the order of their first use, each read with one window and of the capacity that this needs."""
    owners: list[Owner] = []
    windows: dict[tuple[int, int], int] = {}
    caches: list[int] = []
    for number, op in enumerate(graph.ops):
        if isinstance(op.kind, ir.CacheWrite):
            caches.append(op.outputs[0])
        if not isinstance(op.kind, ir.Attention) or op.kind.visibility is not ir.Visibility.CAUSAL:
            continue
        pair, window = (op.inputs[1], op.inputs[2]), op.kind.window
        if not set(pair) <= set(caches):
            raise ProgramError(f"op {number}: attention before its keys and values are written")
        if windows.setdefault(pair, window) != window:
            raise ProgramError(f"{graph.tensors[pair[0]].name} is read with the windows {windows[pair]} and {window}")
        if (*pair, window) not in owners:
            owners.append((*pair, window))
        if window not in (0, graph.window):
            raise ProgramError(f"attention with the window {window}, wanted 0 or {graph.window}")
        rows = window - 1 + max(graph.prefill_rows, ir.VERIFY_ROWS) if window else graph.context + ir.DRAFTS
        for index in pair:
            if graph.tensors[index].dims[1] != rows:
                raise ProgramError(f"cache {graph.tensors[index].name} holds {graph.tensors[index].dims[1]} rows, "
                                   f"wanted {rows}")
    if caches != [index for key, value, _ in owners for index in (key, value)]:
        raise ProgramError("cache writes and the caches that attention reads do not match in pairs")
    return owners


def _check_donors(graph: Graph, owners: list[Owner]) -> None:
    """X5: the assistant reads the last cache pair of each kind, through views of the sequence dimension."""
    source = {op.outputs[0]: (op.inputs[0], op.inputs[1], op.kind.window) for op in graph.ops
              if isinstance(op.kind, ir.DonorView)}
    last = {window: (key, value) for key, value, window in owners}
    length = graph.inputs[3]
    for number, op in enumerate(graph.ops):
        if not isinstance(op.kind, ir.Attention) or op.kind.visibility is not ir.Visibility.DONOR:
            continue
        (key, key_length, key_window), (value, value_length, value_window) = source[op.inputs[1]], source[op.inputs[2]]
        if (key, value) != last.get(op.kind.window) or not key_window == value_window == op.kind.window:
            raise ProgramError(f"op {number}: the donor caches are not the target's last with the window "
                               f"{op.kind.window}")
        if not key_length == value_length == op.inputs[3] == length:
            raise ProgramError(f"op {number}: the donor length is not the program's input")
        if op.role is not Role.ASSISTANT:
            raise ProgramError(f"op {number}: donor attention outside the assistant")


def _draft_steps(graph: Graph) -> list[list[Op]]:
    """The assistant's ops, divided at the argmax that ends each draft step."""
    steps: list[list[Op]] = [[]]
    for op in graph.ops:
        if op.role is Role.ASSISTANT:
            if op.phase is not Phase.ROUND:
                raise ProgramError(f"the assistant's {op.name} runs in every pass, wanted in rounds only")
            steps[-1].append(op)
            if isinstance(op.kind, ir.Argmax):
                steps.append([])
    if steps.pop() or len(steps) != ir.DRAFTS:
        raise ProgramError(f"{len(steps)} complete draft steps, wanted {ir.DRAFTS}")
    return steps


def _check_query_positions(graph: Graph, step: list[Op], number: int) -> None:
    """X7: step ``number`` queries at P, or at P + number when progressive."""
    length = graph.inputs[3]
    wanted = number if graph.query_positions is QueryPositions.PROGRESSIVE else 0
    shifted = {op.outputs[0]: op.kind.value for op in step
               if isinstance(op.kind, ir.AddScalar) and op.inputs[0] == length}
    for op in step:
        if isinstance(op.kind, ir.Rope):
            shift = 0 if op.inputs[1] == length else shifted.get(op.inputs[1])
            if shift != wanted:
                raise ProgramError(f"draft step {number + 1} queries at P + {shift}, wanted P + {wanted} "
                                   f"({graph.query_positions.name.lower()})")


def _check_draft_embedding(graph: Graph, step: list[Op], number: int, table: int) -> None:
    """X8: each draft step embeds its token with the target's table and scale."""
    found = [op for op in step if isinstance(op.kind, ir.Embedding)]
    scales = [op.kind.scale for op in found if isinstance(op.kind, ir.Embedding)]
    if len(found) != 1 or found[0].inputs[1] != table or scales != [graph.embedding_scale]:
        raise ProgramError(f"draft step {number + 1} embeds with the scales {scales}, wanted one embedding by the "
                           f"target's table with {graph.embedding_scale}")


def _check_chain(graph: Graph, step: list[Op], number: int) -> None:
    """X10: one TopK -> ordering -> scores -> least -> template -> scatter -> argmax chain a draft step."""
    producer = {index: op for op in step for index in op.outputs}

    def origin(index: int, *kinds: type[ir.Kind]) -> Op:
        op = producer.get(index)
        if op is None or not isinstance(op.kind, kinds):
            raise ProgramError(f"draft step {number + 1}: {graph.tensors[index].name} does not come from "
                               f"{kinds[0].__name__}")
        return op

    scatter = origin(step[-1].inputs[0], ir.Scatter, ir.ScatterUnique)
    candidates, scores = scatter.inputs[1], scatter.inputs[2]
    least = origin(origin(scatter.inputs[0], ir.Fill).inputs[0], ir.Amin)
    gathered = origin(scores, ir.GatherLinear)
    best = origin(origin(candidates, ir.GatherRows).inputs[1], ir.TopK)
    centroids = origin(best.inputs[0], ir.Linear)
    if least.inputs[0] != scores or gathered.inputs[2] != candidates or gathered.inputs[0] != centroids.inputs[0]:
        raise ProgramError(f"draft step {number + 1}: the candidate chain mixes tensors of two chains")
    if origin(candidates, ir.GatherRows).inputs[1] != best.outputs[1]:
        raise ProgramError(f"draft step {number + 1}: clusters are picked by values, wanted by indices")


_CENTROID_OPS: Final = (ir.TopK, ir.Scatter, ir.ScatterUnique, ir.GatherRows, ir.GatherLinear, ir.Amin, ir.Fill)


def _check_dense_heads(graph: Graph, steps: list[list[Op]]) -> None:
    """X10: each draft is the argmax of one Linear of its own step, all steps by one weight of the assistant, and nothing of
    a centroid head is left."""
    for op in graph.ops:
        if isinstance(op.kind, _CENTROID_OPS):
            raise ProgramError(f"{op.name} in a program whose draft head is dense")
    heads: set[int] = set()
    for number, step in enumerate(steps):
        scores = [op for op in step if isinstance(op.kind, ir.Linear) and op.outputs[0] == step[-1].inputs[0]]
        if not scores:
            raise ProgramError(f"draft step {number + 1}: {graph.tensors[step[-1].inputs[0]].name} does not come from Linear")
        heads.add(scores[0].inputs[1])
    names = [graph.tensors[head].name for head in sorted(heads)]
    if len(heads) > 1 or not names[0].startswith(ASSISTANT_PREFIX):
        raise ProgramError(f"drafts are scored by {' and '.join(names)}, wanted one weight of the assistant")


def _check_round(graph: Graph, owners: list[Owner]) -> None:
    _check_donors(graph, owners)
    embeddings = [op for op in graph.ops if isinstance(op.kind, ir.Embedding) and op.role is Role.TARGET]
    table = embeddings[0].inputs[1] if embeddings else ABSENT
    steps = _draft_steps(graph)
    for number, step in enumerate(steps):
        _check_query_positions(graph, step, number)
        _check_draft_embedding(graph, step, number, table)
        if graph.draft_head is ir.DraftHead.CENTROIDS:
            _check_chain(graph, step, number)
    if graph.draft_head is ir.DraftHead.DENSE:
        _check_dense_heads(graph, steps)
    certified = certify.chains(graph, ir.ScatterUnique)  # X9, X10
    unique = sum(isinstance(op.kind, ir.ScatterUnique) for op in graph.ops)
    if unique not in (0, ir.DRAFTS) or len(certified) != unique:
        raise ProgramError(f"{unique} ScatterUnique, {len(certified)} of them at the end of a certified chain, wanted "
                           f"none or {ir.DRAFTS}")
    drafts = tuple(step[-1].outputs[0] for step in steps)
    for kind, wanted in ((ir.PassRows, (*graph.inputs[:3], *drafts)), (ir.Accept, (graph.inputs[2], *drafts)),
                         (ir.SeedWrite, graph.inputs[2:3])):
        found = [op for op in graph.ops if isinstance(op.kind, kind)]
        if len(found) != 1 or found[0].inputs[: len(wanted)] != wanted:
            raise ProgramError(f"{len(found)} {kind.__name__}, wanted one, of the flag and both drafts")


def _check_certificate(program: Program) -> None:
    """Every claim is one that the graph bears out, and a ScatterUnique does not stand without its own (X9, R11)."""
    claims = {proof.property: proof for proof in program.certificate}
    if len(claims) != len(program.certificate):
        raise ProgramError("a property stands twice in the certificate")
    for proof in program.certificate:
        if not _SHA256.fullmatch(proof.sha256):
            raise ProgramError(f"certificate of {proof.property.name.lower()}: hash {proof.sha256!r} is no SHA-256")
    graph = program.graph
    unique = claims.get(Property.UNIQUE_SCATTER)
    tables = {graph.tensors[chain.table].name for chain in certify.chains(graph, ir.ScatterUnique)}
    if tables != ({unique.subject} if unique else set()):
        raise ProgramError(f"unique scatters by the tables {sorted(tables)}, certified is "
                           f"{unique.subject if unique else 'none'}")
    single = claims.get(Property.SINGLE_COMPUTE_PASS)
    if single is not None and single != certify.single_compute_pass(graph):
        raise ProgramError("the certificate of a single compute pass is not of this graph")


def check(program: Program, *, name: str = "program") -> None:
    """Checks everything. Raises ProgramError with ``name``, what was found and what was wanted."""
    graph = program.graph
    try:
        _check_header(program)
        _signature(graph, "input", graph.inputs, _inputs_of(graph), Storage.INPUT)  # X2
        _signature(graph, "output", graph.outputs, _outputs_of(graph), Storage.OUTPUT)  # X3
        _check_tensors(graph)
        _check_flow(graph)
        _check_shards(program)
        _check_weights(program)
        owners = _owners(graph)
        only_rounds = (*_CENTROID_OPS, ir.PassRows, ir.Accept, ir.SeedWrite)
        if graph.method == ir.K2_ROUND:
            _check_round(graph, owners)
        elif any(isinstance(op.kind, only_rounds) for op in graph.ops):
            raise ProgramError(f"{ir.TEXT_DECODER} holds ops of speculative rounds")
        elif graph.draft_head is not ir.DraftHead.CENTROIDS:
            raise ProgramError(f"draft head of {ir.TEXT_DECODER} is {graph.draft_head.name.lower()}, and it makes no drafts")
        _check_certificate(program)
    except ProgramError as error:
        raise ProgramError(f"{name}: {error.args[0]}", advice=error.advice or "export the model again") from None
