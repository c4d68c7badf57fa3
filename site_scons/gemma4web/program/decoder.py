"""Graphs of the target and of one draft step of the assistant. Formulas: the Gemma 4 decoder and its drafter."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4web.program import ir
from gemma4web.program.architecture import Assistant, Decoder, Layer, Target
from gemma4web.program.builder import GraphBuilder
from gemma4web.program.ir import ABSENT, Rows, Visibility

ASSISTANT_PREFIX = "assistant."
"""Assistant tensors carry their checkpoint's names behind this prefix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Caches:
    """Cache tensors of the layers that own one: layer index -> (keys, values)."""

    of_layer: dict[int, tuple[int, int]]


def add_caches(g: GraphBuilder, target: Target, *, context: int, pass_rows: int) -> Caches:
    """Sliding rings of window - 1 + pass_rows rows, full caches of context + 2.

    With a shorter ring the last rows of a pass would overwrite keys that its first rows still read; a full cache holds
    the two drafts of a round that starts at the last position.
    """
    caches: dict[int, tuple[int, int]] = {}
    for layer in target.layers:
        if layer.owns_cache:
            window = target.window_of(layer)
            rows = window - 1 + pass_rows if window else context + ir.DRAFTS
            keys, values = (g.cache(f"cache.{layer.index}.{part}", rows, layer.kv_heads, layer.head_dim)
                            for part in ("k", "v"))
            caches[layer.index] = (keys, values)
    return Caches(of_layer=caches)


def rope_kind(model: Decoder, layer: Layer) -> ir.Rope:
    """The exponent's denominator is the whole head_dim also where only a part of the head turns."""
    settings = model.rope[layer.type]
    return ir.Rope(head_dim=layer.head_dim, rotated_pairs=settings.rotated_pairs(layer.head_dim),
                   denominator=layer.head_dim, theta=settings.theta)


def _query(g: GraphBuilder, model: Decoder, layer: Layer, prefix: str, label: str, x: int, positions: int) -> int:
    """rope(norm(q_proj x)) [N, heads * head_dim]; the norm's weight is shared by the heads."""
    width = model.query_heads * layer.head_dim
    q = g.linear(f"{label}.q", x, g.matrix(f"{prefix}self_attn.q_proj.weight", width, model.hidden))
    weight = g.vector(f"{prefix}self_attn.q_norm.weight", layer.head_dim)
    q = g.rms_norm(f"{label}.q_normed", q, model.eps, width=layer.head_dim, weight=weight)
    return g.rope(f"{label}.q_turned", q, positions, rope_kind(model, layer))


def _append_kv(g: GraphBuilder, model: Decoder, layer: Layer, prefix: str, label: str, x: int, positions: int,
               cache: tuple[int, int]) -> None:
    """Keys: norm with weight, then RoPE. Values: norm without weight, no RoPE; of v_proj x, or of k_proj x as it was before
    the keys' norm."""
    width = layer.kv_heads * layer.head_dim
    projected = g.linear(f"{label}.k", x, g.matrix(f"{prefix}self_attn.k_proj.weight", width, model.hidden))
    weight = g.vector(f"{prefix}self_attn.k_norm.weight", layer.head_dim)
    k = g.rms_norm(f"{label}.k_normed", projected, model.eps, width=layer.head_dim, weight=weight)
    k = g.rope(f"{label}.k_turned", k, positions, rope_kind(model, layer))
    if not layer.values_from_keys:
        projected = g.linear(f"{label}.v", x, g.matrix(f"{prefix}self_attn.v_proj.weight", width, model.hidden))
    v = g.rms_norm(f"{label}.v_normed", projected, model.eps, width=layer.head_dim)
    g.cache_write(k, positions, cache[0])
    g.cache_write(v, positions, cache[1])


def _layer_norm(g: GraphBuilder, model: Decoder, prefix: str, name: str) -> int:
    return g.vector(f"{prefix}{name}.weight", model.hidden)


def _feed_forward(g: GraphBuilder, model: Decoder, layer: Layer, prefix: str, label: str, x: int, scalar: int) -> int:
    """x + norm(down(gelu(gate f) * up f)), f = norm(x); times ``scalar`` when it is given."""
    f = g.rms_norm(f"{label}.mlp_in", x, model.eps, weight=_layer_norm(g, model, prefix, "pre_feedforward_layernorm"))
    gate, up = (g.linear(f"{label}.{name}", f, g.matrix(f"{prefix}mlp.{name}_proj.weight", layer.intermediate,
                                                         model.hidden)) for name in ("gate", "up"))
    gated = g.gelu_mul(f"{label}.gated", gate, up)
    down = g.linear(f"{label}.down", gated, g.matrix(f"{prefix}mlp.down_proj.weight", model.hidden, layer.intermediate))
    return g.rms_norm(f"{label}.mlp_out", down, model.eps, residual=x, scalar=scalar,
                      weight=_layer_norm(g, model, prefix, "post_feedforward_layernorm"))


def _attend(g: GraphBuilder, model: Decoder, layer: Layer, prefix: str, label: str, x: int, q: int,
            kv: tuple[int, int], where: int, visibility: Visibility) -> int:
    """x + norm(o_proj attention)."""
    kind = ir.Attention(head_dim=layer.head_dim, window=model.window_of(layer), visibility=visibility)
    a = g.attention(f"{label}.attended", q, kv[0], kv[1], where, kind)
    width = model.query_heads * layer.head_dim
    o = g.linear(f"{label}.o", a, g.matrix(f"{prefix}self_attn.o_proj.weight", model.hidden, width))
    return g.rms_norm(f"{label}.attention_out", o, model.eps, residual=x,
                      weight=_layer_norm(g, model, prefix, "post_attention_layernorm"))


def _add_ple(g: GraphBuilder, target: Target, layer: Layer, prefix: str, label: str, x: int, ple: int,
             scalar: int) -> int:
    """(x + norm(projection(gelu(gate x) * ple_i))) * scalar; the gate reads x without a norm."""
    width = target.ple_width
    gate = g.linear(f"{label}.ple_gate", x, g.matrix(f"{prefix}per_layer_input_gate.weight", width, target.hidden))
    gated = g.gelu_mul(f"{label}.ple_gated", gate, ple, offset=layer.index * width)
    p = g.linear(f"{label}.ple", gated, g.matrix(f"{prefix}per_layer_projection.weight", target.hidden, width))
    return g.rms_norm(f"{label}.out", p, target.eps, residual=x, scalar=scalar,
                      weight=_layer_norm(g, target, prefix, "post_per_layer_input_norm"))


def embed_target(g: GraphBuilder, target: Target, name: str, ids: int, rows: Rows) -> int:
    """The target's scaled token embedding, for its own rows and for the drafts."""
    table = g.matrix(f"{target.prefix}embed_tokens.weight", target.vocab, target.hidden)
    return g.embedding(name, ids, table, target.embedding_scale, rows)


def _per_layer_embeddings(g: GraphBuilder, target: Target, ids: int, e: int) -> int:
    """ple [Pass, L*P] from the token's table row and a projection of its scaled embedding ``e``."""
    width = len(target.layers) * target.ple_width
    table = g.matrix(f"{target.prefix}embed_tokens_per_layer.weight", target.vocab, width)
    token = g.embedding("ple_token", ids, table, target.ple_width**0.5, Rows.PASS)
    projection = g.matrix(f"{target.prefix}per_layer_model_projection.weight", width, target.hidden)
    context = g.linear("ple_context", e, projection)
    weight = g.vector(f"{target.prefix}per_layer_projection_norm.weight", target.ple_width)
    kind = ir.PleCombine(eps=target.eps, context_scale=target.hidden**-0.5, scale=2**-0.5)
    return g.ple_combine("ple", context, token, weight, kind)


def target_graph(
    g: GraphBuilder, target: Target, caches: Caches, ids: int, positions: int, *, all_logits: bool
) -> tuple[int, int]:
    """All ops of one target pass. Returns (greedy i32[Tail], hidden f32[Tail, H]).

    Layers without a cache of their own write nothing that other rows read, so unless ``all_logits`` they run on the
    tail rows only.
    """
    x = embed_target(g, target, "embedded", ids, Rows.PASS)
    ple = _per_layer_embeddings(g, target, ids, x) if target.ple_width else ABSENT
    for layer in (*target.layers, None):
        if (len(target.layers) if layer is None else layer.index) == target.first_shared and not all_logits:
            x = g.tail_rows("tail_x", x)
            if layer is not None:
                positions = g.tail_rows("tail_positions", positions)
                ple = g.tail_rows("tail_ple", ple) if target.ple_width else ABSENT
        if layer is None:
            break
        prefix, label = f"{target.prefix}layers.{layer.index}.", f"layer.{layer.index}"
        a = g.rms_norm(f"{label}.in", x, target.eps, weight=_layer_norm(g, target, prefix, "input_layernorm"))
        q = _query(g, target, layer, prefix, label, a, positions)
        if layer.owns_cache:
            _append_kv(g, target, layer, prefix, label, a, positions, caches.of_layer[layer.index])
        x = _attend(g, target, layer, prefix, label, x, q, caches.of_layer[layer.donor], positions, Visibility.CAUSAL)
        scalar = g.vector(f"{prefix}layer_scalar", 1)
        x = _feed_forward(g, target, layer, prefix, label, x, ABSENT if target.ple_width else scalar)
        if target.ple_width:
            x = _add_ple(g, target, layer, prefix, label, x, ple, scalar)
    hidden = g.rms_norm("hidden", x, target.eps, weight=g.vector(f"{target.prefix}norm.weight", target.hidden),
                        retain=True)
    head = g.matrix(f"{target.prefix}embed_tokens.weight", target.vocab, target.hidden)
    if target.softcap is None:
        logits = g.linear("logits", hidden, head, retain=True)
    else:
        logits = g.softcap("logits", g.linear("raw_logits", hidden, head), target.softcap, retain=True)
    return g.argmax("greedy", logits), hidden


def draft_step(
    g: GraphBuilder, target: Target, assistant: Assistant, views: dict[int, tuple[int, int]], *, step: int, ids: int,
    state: int, query_position: int, donor_length: int,
) -> tuple[int, int]:
    """One draft: token and state in, (draft i32[1], next state f32[1, H]) out; the last step has no next state (-1).

    ``views``: target layer -> donor views of its keys and values.
    """
    label, model = f"draft.{step}", ASSISTANT_PREFIX + "model."
    e = embed_target(g, target, f"{label}.embedded", ids, Rows.FIXED)
    u = g.concat(f"{label}.joined", e, state)
    x = g.linear(f"{label}.in", u, g.matrix(f"{ASSISTANT_PREFIX}pre_projection.weight", assistant.hidden,
                                            2 * assistant.backbone))
    for layer in assistant.layers:
        prefix, name = f"{model}layers.{layer.index}.", f"{label}.layer.{layer.index}"
        a = g.rms_norm(f"{name}.in", x, assistant.eps, weight=_layer_norm(g, assistant, prefix, "input_layernorm"))
        q = _query(g, assistant, layer, prefix, name, a, query_position)
        x = _attend(g, assistant, layer, prefix, name, x, q, views[layer.donor], donor_length, Visibility.DONOR)
        x = _feed_forward(g, assistant, layer, prefix, name, x, g.vector(f"{prefix}layer_scalar", 1))
    y = g.rms_norm(f"{label}.y", x, assistant.eps, weight=g.vector(f"{model}norm.weight", assistant.hidden))
    state = ABSENT
    if step + 1 < ir.DRAFTS:
        state = g.linear(f"{label}.state", y, g.matrix(f"{ASSISTANT_PREFIX}post_projection.weight", assistant.backbone,
                                                       assistant.hidden))
    head = _centroid_head if assistant.head is ir.DraftHead.CENTROIDS else _dense_head
    return head(g, assistant, label, y, step), state


def _head_matrix(g: GraphBuilder, assistant: Assistant) -> int:
    return g.matrix(f"{ASSISTANT_PREFIX}model.embed_tokens.weight", assistant.vocab, assistant.hidden)


def _dense_head(g: GraphBuilder, assistant: Assistant, label: str, y: int, step: int) -> int:
    """Greedy token of y over all ids."""
    return g.argmax(f"draft_{step}", g.linear(f"draft_logits_{step}", y, _head_matrix(g, assistant), retain=True))


def _centroid_head(g: GraphBuilder, assistant: Assistant, label: str, y: int, step: int) -> int:
    """Greedy token of y over the ids of the top_k best centroids; every other id scores one less than their least."""
    masked = ASSISTANT_PREFIX + "masked_embedding."
    centroids = g.matrix(f"{masked}centroids.weight", assistant.centroids, assistant.hidden)
    best = g.top_k(f"{label}.top", g.linear(f"{label}.centroids", y, centroids), assistant.top_k)
    ordering = g.table(f"{masked}token_ordering", assistant.centroids, assistant.cluster)
    candidates = g.gather_rows(f"{label}.candidates", ordering, best)
    head = _head_matrix(g, assistant)
    scores = g.gather_linear(f"{label}.scores", y, head, candidates)
    template = g.fill(f"{label}.template", g.amin(f"{label}.least", scores), assistant.vocab, -1.0)
    logits = g.scatter(f"draft_logits_{step}", template, candidates, scores, retain=True)
    return g.argmax(f"draft_{step}", logits)
