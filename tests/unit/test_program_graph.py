"""Graphs at the sizes of the released models: census, donors, caches and signatures. No weights are needed for that."""

from __future__ import annotations

import math

import pytest
from larger_models import M12B, M31B

from gemma4web.program import ir
from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target
from gemma4web.program.methods import GraphOptions, k2_round, text_decoder

ROPE = {LayerType.SLIDING: RopeSettings(theta=1e4), LayerType.FULL: RopeSettings(theta=1e6, partial=0.25)}
OPTIONS = GraphOptions(linear_dtype=ir.Dtype.Q4, prefill_rows=512, context=8960)


def _models(count: int, period: int, shared: int, hidden: int, kv_heads: int) -> tuple[Target, Assistant]:
    types = [LayerType.FULL if index % period == period - 1 else LayerType.SLIDING for index in range(count)]
    last = {type_: index for index, type_ in enumerate(types[: count - shared])}
    layers = tuple(
        Layer(index=index, type=type_, head_dim=512 if type_ is LayerType.FULL else 256,
              kv_heads=kv_heads, intermediate=6144 if index < count - shared else 12288, donor=index if index < count - shared else last[type_])
        for index, type_ in enumerate(types)
    )
    target = Target(vocab=262144, hidden=hidden, query_heads=8, window=512, eps=1e-6, layers=layers,
                    rope=ROPE, prefix="model.language_model.", max_positions=131072, ple_width=256, softcap=30.0)
    small = [LayerType.SLIDING] * 3 + [LayerType.FULL]
    assistant = Assistant(
        vocab=262144, hidden=256, query_heads=4, window=512, eps=1e-6, rope=ROPE, backbone=hidden,
        centroids=2048, top_k=32,
        layers=tuple(Layer(index=index, type=type_, head_dim=512 if type_ is LayerType.FULL else 256, intermediate=2048,
                           kv_heads=kv_heads, donor=last[type_]) for index, type_ in enumerate(small)))
    return target, assistant


E2B = _models(35, 5, 20, 1536, 1)
E4B = _models(42, 6, 18, 2560, 2)


def test_census_of_e2b() -> None:
    """X12, X13: argmax 3, scatter 2, top-k 2, attention 35 + 8 = 43, cache writes 31."""
    census = ir.count(k2_round(*E2B, OPTIONS).ops)
    assert (census.argmax, census.scatter, census.top_k) == (3, 2, 2)
    assert (census.attention_target, census.attention_assistant, census.cache_writes) == (35, 8, 31)


def test_census_of_e4b() -> None:
    census = ir.count(k2_round(*E4B, OPTIONS).ops)
    assert (census.attention_target, census.attention_assistant, census.cache_writes) == (42, 8, 49)


@pytest.mark.parametrize(("models", "layers"), [(M12B, 48), (M31B, 60)])
def test_census_of_larger_models(models: tuple[Target, Assistant], layers: int) -> None:
    """X13: a dense head has no top-k and no scatter; every layer writes its cache, and the seed is one more."""
    graph = k2_round(*models, OPTIONS)
    census = ir.count(graph.ops)
    assert (census.argmax, census.scatter, census.top_k) == (3, 0, 0) and graph.draft_head is ir.DraftHead.DENSE
    assert (census.attention_target, census.attention_assistant, census.cache_writes) == (layers, 8, 2 * layers + 1)
    assert text_decoder(models[0], OPTIONS).draft_head is ir.DraftHead.CENTROIDS


@pytest.mark.parametrize(("models", "sliding", "full"), [(M12B, 8, 1), (M31B, 16, 4)])
def test_layers_of_larger_models(models: tuple[Target, Assistant], sliding: int, full: int) -> None:
    """Caches have the KV heads of their layer; values of full layers are the keys' product, before the keys' norm."""
    graph = text_decoder(models[0], OPTIONS)
    caches = {tensor.name: tensor.dims for tensor in graph.tensors if tensor.storage is ir.Storage.CACHE}
    assert caches["cache.4.k"] == caches["cache.4.v"] == (1, 1535, sliding, 256)
    assert caches["cache.5.k"] == caches["cache.5.v"] == (1, 8962, full, 512)
    producer = {graph.tensors[op.outputs[0]].name: op for op in graph.ops}
    sources = [graph.tensors[producer[f"layer.{layer}.v_normed"].inputs[0]].name for layer in (4, 5)]
    assert sources == ["layer.4.v", "layer.5.k"] and producer["layer.5.v_normed"].inputs[1] == ir.ABSENT
    assert "model.language_model.layers.5.self_attn.v_proj.weight" not in {tensor.name for tensor in graph.tensors}


def test_plain_census_of_e2b() -> None:
    census = ir.count(text_decoder(E2B[0], OPTIONS).ops)
    assert (census.argmax, census.scatter, census.top_k, census.attention_assistant) == (1, 0, 0, 0)
    assert (census.attention_target, census.cache_writes) == (35, 30)


@pytest.mark.parametrize(("models", "sliding", "full"), [(E2B, 13, 14), (E4B, 22, 23), (M12B, 46, 47), (M31B, 58, 59)])
def test_donor_layers(models: tuple[Target, Assistant], sliding: int, full: int) -> None:
    """X5: the drafts read the last owners of each kind; shared layers read the same ones."""
    graph = k2_round(*models, OPTIONS)
    views = {graph.tensors[op.inputs[0]].name for op in graph.ops if isinstance(op.kind, ir.DonorView)}
    assert views == {f"cache.{layer}.{part}" for layer in (sliding, full) for part in "kv"}
    last = [op for op in graph.ops if isinstance(op.kind, ir.Attention) and op.role is ir.Role.TARGET][-1]
    assert graph.tensors[last.inputs[1]].name == f"cache.{full}.k"


def test_caches_of_e2b() -> None:
    """X4: [1, S, heads, head_dim]; rings of 511 + 512 rows, full caches of 8960 + 2, fifteen layers, one seed."""
    graph = k2_round(*E2B, OPTIONS)
    caches = {tensor.name: tensor.dims for tensor in graph.tensors if tensor.storage is ir.Storage.CACHE}
    assert caches["cache.13.k"] == (1, 1023, 1, 256) and caches["cache.14.v"] == (1, 8962, 1, 512)
    assert caches["seed"] == (1, 1, 1, 1536) and len(caches) == 31


def test_signatures() -> None:
    """X2, X3: names, order, dtypes and shapes."""
    graph = k2_round(*E2B, OPTIONS)
    inputs = [(graph.tensors[i].name, graph.tensors[i].dims) for i in graph.inputs]
    outputs = [(graph.tensors[i].name, graph.tensors[i].dtype.name, graph.tensors[i].dims) for i in graph.outputs]
    assert inputs == [("ids", (1, 512)), ("positions", (1, 512)), ("round_flag", (1,)), ("donor_length", (1,))]
    assert outputs == [("candidates", "I32", (1, 2)), ("target_greedy", "I32", (1, 3)), ("match_count", "I32", (1, 1)),
                       ("bonus", "I32", (1, 1)), ("state_probe", "F32", (1, 1))]


def test_plain_graph_does_not_know_the_assistant() -> None:
    """X21, O8: no assistant tensor, no candidate op, nothing of a round."""
    graph = text_decoder(E2B[0], OPTIONS)
    assert not any("assistant" in tensor.name or "draft" in tensor.name for tensor in graph.tensors)
    assert {op.phase for op in graph.ops} == {ir.Phase.ALWAYS} and {op.role for op in graph.ops} == {ir.Role.TARGET}


def test_prefill_shortcut() -> None:
    """Layers 15.. of E2B run on tail rows only, and on all rows when all logits are wanted."""
    graph = text_decoder(E2B[0], OPTIONS)
    rows = {tensor.name: tensor.rows for tensor in graph.tensors}
    assert rows["layer.14.out"] is ir.Rows.PASS and rows["layer.15.q"] is ir.Rows.TAIL and rows["logits"] is ir.Rows.TAIL
    everything = text_decoder(E2B[0], GraphOptions(linear_dtype=ir.Dtype.Q4, prefill_rows=512, context=8960, all_logits=True))
    assert ir.Rows.TAIL not in {tensor.rows for tensor in everything.tensors}


def test_rope_of_e2b() -> None:
    """Full layers: 64 of 256 pairs, exponents over the whole head of 512."""
    kinds = {op.kind for op in text_decoder(E2B[0], OPTIONS).ops if isinstance(op.kind, ir.Rope)}
    assert kinds == {ir.Rope(head_dim=256, rotated_pairs=128, denominator=256, theta=1e4),
                     ir.Rope(head_dim=512, rotated_pairs=64, denominator=512, theta=1e6)}


def test_embedding_scales() -> None:
    """X8: sqrt(hidden) on the target's rows and on both drafts; per-layer rows times sqrt(256) = 16."""
    graph = k2_round(*E2B, OPTIONS)
    scales = [(op.role.name, op.kind.scale) for op in graph.ops if isinstance(op.kind, ir.Embedding)]
    root = math.sqrt(1536)
    assert scales == [("ASSISTANT", root), ("ASSISTANT", root), ("TARGET", root), ("TARGET", 16.0)]
    assert graph.embedding_scale == root


def test_model_without_shared_layers_or_per_layer_embeddings() -> None:
    layers = tuple(Layer(index=i, type=LayerType.FULL if i else LayerType.SLIDING, head_dim=256, kv_heads=1, intermediate=64,
                         donor=i) for i in range(2))
    target = Target(vocab=64, hidden=32, query_heads=2, window=8, eps=1e-6, layers=layers, rope=ROPE,
                    prefix="model.", max_positions=64, ple_width=0, softcap=None)
    graph = text_decoder(target, GraphOptions(linear_dtype=ir.Dtype.F32, prefill_rows=4, context=64))
    tails = [op for op in graph.ops if isinstance(op.kind, ir.TailRows)]
    assert len(tails) == 1 and graph.tensors[tails[0].outputs[0]].name == "tail_x"
    assert not any(isinstance(op.kind, ir.Softcap | ir.PleCombine) for op in graph.ops)
    assert [tensor.name for tensor in graph.tensors if tensor.retain] == ["hidden", "logits"]
