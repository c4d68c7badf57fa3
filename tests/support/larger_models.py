"""Sizes of the 12B and 31B models with their assistants, for graphs and plans that need no weights.

Every layer has a cache, values of full layers are made from their keys, there are no per-layer embeddings, the head of
the assistant is dense. 12B's assistant is not published in full: it has 31B's sizes here.
"""

from __future__ import annotations

from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target

_ROPE = {LayerType.SLIDING: RopeSettings(theta=1e4), LayerType.FULL: RopeSettings(theta=1e6, partial=0.25)}


def _layers(types: list[LayerType], donors: list[int], kv_heads: dict[LayerType, int], intermediate: int, *,
            target: bool) -> tuple[Layer, ...]:
    return tuple(Layer(index=index, type=type_, head_dim=512 if type_ is LayerType.FULL else 256, kv_heads=kv_heads[type_],
                       intermediate=intermediate, donor=donor, values_from_keys=target and type_ is LayerType.FULL)
                 for index, (type_, donor) in enumerate(zip(types, donors, strict=True)))


def _models(count: int, hidden: int, query_heads: int, sliding: int, full: int) -> tuple[Target, Assistant]:
    types = [LayerType.FULL if index % 6 == 5 else LayerType.SLIDING for index in range(count)]
    kv_heads = {LayerType.SLIDING: sliding, LayerType.FULL: full}
    target = Target(vocab=262144, hidden=hidden, query_heads=query_heads, window=1024, eps=1e-6, rope=_ROPE,
                    layers=_layers(types, list(range(count)), kv_heads, 4 * hidden, target=True),
                    prefix="model.language_model.", max_positions=262144, ple_width=0, softcap=30.0)
    small = _layers([LayerType.SLIDING] * 3 + [LayerType.FULL], [count - 2] * 3 + [count - 1], kv_heads, 8192, target=False)
    return target, Assistant(vocab=262144, hidden=1024, query_heads=query_heads, window=1024, eps=1e-6, rope=_ROPE,
                             layers=small, backbone=hidden, centroids=0, top_k=0)


M12B = _models(48, 3840, 16, 8, 1)
M31B = _models(60, 5376, 32, 16, 4)
