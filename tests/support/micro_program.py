"""Programs of the micro checkpoint's sizes with made-up shards: complete and valid, without any weight behind them."""

from __future__ import annotations

from dataclasses import replace

from gemma4web.program import ir
from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target
from gemma4web.program.methods import GraphOptions, k2_round, text_decoder

_S, _F = LayerType.SLIDING, LayerType.FULL
_ROPE = {_S: RopeSettings(theta=1e4), _F: RopeSettings(theta=1e6, partial=0.25)}
_TARGET = Target(
    vocab=64, hidden=32, query_heads=2, window=4, eps=1e-6, rope=_ROPE, prefix="model.", max_positions=256, ple_width=32,
    softcap=30.0,
    layers=tuple(Layer(index=index, type=type_, head_dim=32 if type_ is _F else 16, intermediate=32 if index < 3 else 64,
                       kv_heads=1, donor=donor) for index, (type_, donor) in enumerate([(_S, 0), (_S, 1), (_F, 2), (_S, 1), (_F, 2)])),
)
_ASSISTANT = Assistant(
    vocab=64, hidden=32, query_heads=2, window=4, eps=1e-6, rope=_ROPE, backbone=32, centroids=8, top_k=2,
    layers=tuple(Layer(index=index, type=type_, head_dim=32 if type_ is _F else 16, kv_heads=1, intermediate=32, donor=donor)
                 for index, (type_, donor) in enumerate([(_S, 1), (_F, 2)])),
)
_UNIFIED_TARGET = replace(_TARGET, ple_width=0, layers=tuple(
    replace(layer, intermediate=32, donor=layer.index, kv_heads=1 if layer.type is _F else 2,
            values_from_keys=layer.type is _F) for layer in _TARGET.layers))
_UNIFIED_ASSISTANT = replace(_ASSISTANT, centroids=0, top_k=0, layers=tuple(
    replace(layer, kv_heads=1 if layer.type is _F else 2, donor=4 if layer.type is _F else 3) for layer in _ASSISTANT.layers))


def _span(place: list[int], size: int) -> ir.Span:
    span = ir.Span(begin=place[0], bytes=size)
    place[0] += size
    return span


def _weights(graph: ir.Graph, shards: dict[ir.Role, int]) -> tuple[list[ir.Weight], dict[ir.Role, int]]:
    ends = {role: [64] for role in shards}
    placed: list[ir.Weight] = []
    for index, tensor in graph.weights():
        role = ir.Role.ASSISTANT if tensor.name.startswith("assistant.") else ir.Role.TARGET
        sizes = [tensor.elements // 2, tensor.dims[0] * tensor.scale_row_bytes] if tensor.dtype is ir.Dtype.Q4 else [tensor.elements * 4]
        spans = [ir.Span(shard=shards[role], begin=s.begin, bytes=s.bytes) for s in (_span(ends[role], n) for n in sizes)]
        placed.append(ir.Weight(tensor=index, values=spans[0], scales=spans[1] if len(spans) > 1 else None))
    return placed, {role: end[0] for role, end in ends.items()}


def micro_program(
    method: str, *, dtype: ir.Dtype = ir.Dtype.F32, query_positions: ir.QueryPositions = ir.QueryPositions.CONSTANT,
    all_logits: bool = False, prefill_rows: int = 4, unified: bool = False, group: int = 32,
    scale_dtype: ir.ScaleDtype = ir.ScaleDtype.F16,
) -> ir.Program:
    """Either method with prefill rows 4 and context 32; stop ids 1 and 3. ``unified``: in the form of the 12B model."""
    options = GraphOptions(linear_dtype=dtype, prefill_rows=prefill_rows, context=32, all_logits=all_logits,
                           query_positions=query_positions, group=group, scale_dtype=scale_dtype)
    target, assistant = (_UNIFIED_TARGET, _UNIFIED_ASSISTANT) if unified else (_TARGET, _ASSISTANT)
    return placed(text_decoder(target, options) if method == ir.TEXT_DECODER else k2_round(target, assistant, options))


def placed(graph: ir.Graph) -> ir.Program:
    """A graph with made-up shards, in which every weight has a place."""
    roles = [ir.Role.TARGET] if graph.method == ir.TEXT_DECODER else list(ir.Role)
    weights, ends = _weights(graph, {role: number for number, role in enumerate(roles)})
    shards = tuple(ir.Shard(file=f"{role.name.lower()}-00001-of-00001.safetensors", bytes=ends[role], sha256="ab" * 32,
                            role=role) for role in roles)
    return ir.Program(graph=graph, shards=shards, weights=tuple(weights), stop_ids=(1, 3), source_sha256="cd" * 32).counted()
