"""The whole model as formulas: target, assistant, and the two decoding engines over them.

Written from the model's description and not from the program graphs, so that each can prove the other. Every row of a
pass gets its hidden state and logits. ``faults`` are mistakes made on purpose (``faults.Fault``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from gemma4web.errors import UsageError
from gemma4web.oracle import ops
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.ops import Array
from gemma4web.oracle.weights import TOKEN_ORDERING, Model
from gemma4web.program.architecture import Decoder, Layer, LayerType
from gemma4web.program.decoder import ASSISTANT_PREFIX
from gemma4web.program.ir import DRAFTS, VERIFY_ROWS, QueryPositions


class Visible(StrEnum):
    """Which target rows a draft sees. CLEAN: verified rows by the causal window rule, the product's only rule. HF: what
    the Hugging Face implementation exposes, rejected rows included, known from its recorded rounds."""

    CLEAN = "clean"
    HF = "hf"


class _Network:
    """Formulas that target and assistant share. ``dtype`` is that of every operation."""

    def __init__(self, model: Model, sizes: Decoder, prefix: str, dtype: npt.DTypeLike,
                 faults: Collection[Fault]) -> None:
        self._weights, self._sizes, self._prefix = model.weights, sizes, prefix
        self._dtype, self._faults = dtype, faults

    def _weight(self, name: str) -> Array:
        return self._weights[self._prefix + name]

    def _norm(self, x: Array, name: str) -> Array:
        return ops.rms(x, self._sizes.eps) * self._weight(name)

    def _gelu(self, x: Array) -> Array:
        return ops.gelu_exact(x) if Fault.EXACT_GELU in self._faults else ops.gelu_tanh(x)

    def _window(self, layer: Layer) -> int:
        shift = (Fault.WINDOW_PLUS_ONE in self._faults) - (Fault.WINDOW_MINUS_ONE in self._faults)
        return self._sizes.window + shift if layer.type is LayerType.SLIDING else 0

    def _turn(self, x: Array, positions: Array, layer: Layer) -> Array:
        """RoPE on x [N, heads, head_dim]: the pair (i, i + head_dim/2) turns by position * theta^(-2i/head_dim)."""
        full = layer.type is LayerType.FULL
        if full and Fault.ROPE_MISSING_ON_FULL in self._faults:
            return x
        settings, half = self._sizes.rope[layer.type], layer.head_dim // 2
        pairs = int(settings.partial * half)
        denominator = 2 * pairs if full and Fault.ROPE_DENOMINATOR in self._faults else layer.head_dim
        frequency = np.zeros(half)
        frequency[:pairs] = settings.theta ** (-2.0 * np.arange(pairs) / denominator)
        turn = np.exp(1j * np.multiply.outer(positions.astype(np.float64), frequency))[:, None, :]
        pair = (x[..., :half] + 1j * x[..., half:]) * turn
        return np.concatenate([pair.real, pair.imag], axis=-1).astype(self._dtype)

    def _heads(self, x: Array, name: str, layer: Layer) -> Array:
        return (x @ self._weight(name).T).reshape(x.shape[0], -1, layer.head_dim)

    def _query(self, x: Array, prefix: str, positions: Array, layer: Layer) -> Array:
        q = self._norm(self._heads(x, f"{prefix}self_attn.q_proj.weight", layer), f"{prefix}self_attn.q_norm.weight")
        return self._turn(q, positions, layer)

    def _mlp(self, x: Array, prefix: str) -> Array:
        """The feed-forward half of a layer, its residual included."""
        f = self._norm(x, f"{prefix}pre_feedforward_layernorm.weight")
        gated = self._gelu(f @ self._weight(f"{prefix}mlp.gate_proj.weight").T) * (
            f @ self._weight(f"{prefix}mlp.up_proj.weight").T)
        down = gated @ self._weight(f"{prefix}mlp.down_proj.weight").T
        return x + self._norm(down, f"{prefix}post_feedforward_layernorm.weight")

    def _output(self, x: Array, attended: Array, prefix: str) -> Array:
        o = attended.reshape(x.shape[0], -1) @ self._weight(f"{prefix}self_attn.o_proj.weight").T
        return x + self._norm(o, f"{prefix}post_attention_layernorm.weight")


def _attend(q: Array, keys: Array, values: Array, faults: Collection[Fault]) -> Array:
    """One query row q [Hq, d] over keys, values [T, Hkv, d] -> [Hq, d]; no scale."""
    shared = np.arange(q.shape[0]) // (q.shape[0] // keys.shape[1])
    if Fault.WRONG_KV_HEAD in faults:
        shared = np.arange(q.shape[0]) % keys.shape[1]
    k, v = keys[:, shared], values[:, shared]
    score = np.einsum("hd,thd->ht", q, k)
    weight = np.exp(score - score.max(axis=1, keepdims=True))
    return np.asarray(np.einsum("ht,thd->hd", weight / weight.sum(axis=1, keepdims=True), v))


class TargetModel(_Network):
    """The target with its KV caches.

    Full layers hold ``context`` positions. Sliding layers hold window - 1 + ``pass_rows`` in a ring when ``pass_rows``
    is given, else every position too.
    """

    def __init__(
        self, model: Model, *, dtype: npt.DTypeLike = np.float64, faults: Collection[Fault] = (), context: int = 1024,
        pass_rows: int | None = None,
    ) -> None:
        super().__init__(model, model.target, model.target.prefix, dtype, faults)
        self.sizes, self._context = model.target, context
        self._ring = None
        if pass_rows is not None:
            self._ring = model.target.window - 1 + pass_rows - (Fault.RING_ONE_ROW_SHORT in faults)
        elif Fault.RING_ONE_ROW_SHORT in faults:
            raise UsageError("a ring one row short needs pass_rows")
        self.reset()

    def reset(self) -> None:
        self._cache = {
            layer.index: np.zeros((2, self.slots(layer), layer.kv_heads, layer.head_dim), self._dtype)
            for layer in self.sizes.layers if layer.owns_cache
        }

    def slots(self, layer: Layer) -> int:
        return self._ring if self._ring and layer.type is LayerType.SLIDING else self._context + DRAFTS

    def borrowed(self, layer: Layer) -> int:
        """The target layer whose cache a layer without its own reads; the assistant's layers are such too."""
        if Fault.WRONG_DONOR in self._faults and layer.type is LayerType.SLIDING:
            owners = [other.index for other in self.sizes.layers if other.owns_cache and other.type is layer.type]
            return owners[-2]
        if Fault.FIRST_FULL_DONOR in self._faults and layer.type is LayerType.FULL:
            return next(other.index for other in self.sizes.layers if other.owns_cache and other.type is layer.type)
        return layer.donor

    def rows(self, layer_index: int, positions: Array) -> tuple[Array, Array]:
        """Keys and values [T, heads, head_dim] that the cache holds for these positions."""
        cache = self._cache[layer_index]
        slots = positions % cache.shape[1]
        return cache[0, slots], cache[1, slots]

    def embed(self, ids: Sequence[int] | Array) -> Array:
        return np.asarray(self._weight("embed_tokens.weight")[np.asarray(ids)] * self.sizes.hidden**0.5)

    def _per_layer(self, ids: Array, embedded: Array) -> Array:
        """Per-layer embeddings [N, L, P]."""
        count, width = len(self.sizes.layers), self.sizes.ple_width
        scale = 1.0 if Fault.PLE_SCALE in self._faults else math.sqrt(width)
        token = self._weight("embed_tokens_per_layer.weight")[ids].reshape(-1, count, width) * scale
        context = embedded @ self._weight("per_layer_model_projection.weight").T / math.sqrt(self.sizes.hidden)
        return (self._norm(context.reshape(token.shape), "per_layer_projection_norm.weight") + token) / math.sqrt(2.0)

    def _values(self, a: Array, projected: Array, k: Array, prefix: str, layer: Layer) -> Array:
        """Values before their norm [N, heads, head_dim], from what the keys were before theirs where there is no v_proj."""
        if not layer.values_from_keys:
            return self._heads(a, f"{prefix}self_attn.v_proj.weight", layer)
        return k if Fault.VALUES_AFTER_K_NORM in self._faults else projected

    def _write(self, a: Array, prefix: str, positions: Array, layer: Layer) -> None:
        projected = self._heads(a, f"{prefix}self_attn.k_proj.weight", layer)
        k = self._norm(projected, f"{prefix}self_attn.k_norm.weight")
        v = self._values(a, projected, k, prefix, layer)
        if Fault.VALUES_WITH_K_NORM_WEIGHT in self._faults and layer.values_from_keys:
            v = k
        elif Fault.NO_V_NORM not in self._faults:
            v = ops.rms(v, self.sizes.eps)
        cache = self._cache[layer.index]
        slots = positions % cache.shape[1]
        turned = self._turn(k, positions, layer)
        for row, slot in enumerate(slots):  # in order: with a short ring the later row wins
            cache[0, slot], cache[1, slot] = turned[row], v[row]

    def _layer(self, x: Array, ple: Array | None, positions: Array, layer: Layer) -> Array:
        prefix = f"layers.{layer.index}."
        a = self._norm(x, f"{prefix}input_layernorm.weight")
        q = self._query(a, prefix, positions, layer)
        if layer.owns_cache:
            self._write(a, prefix, positions, layer)
        donor, window = layer.index if layer.owns_cache else self.borrowed(layer), self._window(layer)
        seen = [np.arange(max(0, p - window + 1) if window else 0, p + 1) for p in positions]
        attended = np.stack([_attend(q[row], *self.rows(donor, visible), self._faults) for row, visible in enumerate(seen)])
        x = self._mlp(self._output(x, attended, prefix), prefix)
        if ple is not None:
            gate = self._gelu(x @ self._weight(f"{prefix}per_layer_input_gate.weight").T) * ple[:, layer.index]
            x = x + self._norm(gate @ self._weight(f"{prefix}per_layer_projection.weight").T,
                               f"{prefix}post_per_layer_input_norm.weight")
        return x * self._weight(f"{prefix}layer_scalar")

    def forward(self, ids: Sequence[int], position: int) -> tuple[Array, Array]:
        """Appends rows at ``position``, .. -> (post-final-norm hidden [N, H], logits [N, V])."""
        if not 0 <= position <= self._context + DRAFTS - len(ids):
            raise UsageError(f"rows {position}..{position + len(ids) - 1} are beyond a context of {self._context}")
        tokens, positions = np.asarray(ids), np.arange(position, position + len(ids))
        x = self.embed(tokens)
        ple = self._per_layer(tokens, x) if self.sizes.ple_width else None
        for layer in self.sizes.layers:
            x = self._layer(x, ple, positions, layer)
        hidden = self._norm(x, "norm.weight")
        logits = hidden @ self._weight("embed_tokens.weight").T
        if self.sizes.softcap is not None and Fault.NO_SOFTCAP not in self._faults:
            logits = np.tanh(logits / self.sizes.softcap) * self.sizes.softcap
        return hidden, logits


class AssistantModel(_Network):
    """The assistant: draft steps over a target's caches. ``centroid_scores`` collects one [centroids] array a step
    where the head has centroids."""

    def __init__(self, model: Model, target: TargetModel, *, dtype: npt.DTypeLike = np.float64,
                 faults: Collection[Fault] = ()) -> None:
        if model.assistant is None:
            raise UsageError("this model has no assistant")
        super().__init__(model, model.assistant, ASSISTANT_PREFIX, dtype, faults)
        self.sizes, self._target = model.assistant, target
        self.centroid_scores: list[Array] = []
        if self.sizes.centroids:
            self._ordering = model.weights[ASSISTANT_PREFIX + TOKEN_ORDERING].reshape(self.sizes.centroids, -1)

    def step(self, embedded: Array, state: Array, query_position: int, visible: dict[LayerType, Array],
             ) -> tuple[int, Array, Array]:
        """One draft from the embedding and state [H] -> (token, next state [H], logits [V]).

        ``visible``: positions that each layer type sees.
        """
        x = np.concatenate([embedded, state])[None] @ self._weight("pre_projection.weight").T
        position = np.array([query_position])
        for layer in self.sizes.layers:
            prefix = f"model.layers.{layer.index}."
            a = self._norm(x, f"{prefix}input_layernorm.weight")
            q = self._query(a, prefix, position, layer)
            keys, values = self._target.rows(self._target.borrowed(layer), visible[layer.type])
            x = self._mlp(self._output(x, _attend(q[0], keys, values, self._faults), prefix), prefix)
            x = x * self._weight(f"{prefix}layer_scalar")
        y = self._norm(x, "model.norm.weight")[0]
        logits = self._scores(y)
        return int(logits.argmax()), self._weight("post_projection.weight") @ y, logits

    def _scores(self, y: Array) -> Array:
        """Of every token [V]; with centroids, every id that is no candidate has one less than the least of those."""
        if not self.sizes.centroids:
            return np.asarray(self._weight("model.embed_tokens.weight") @ y)
        score = self._weight("masked_embedding.centroids.weight") @ y
        self.centroid_scores.append(score)
        best = np.argsort(-score, kind="stable")[: self.sizes.top_k]
        candidates = self._ordering[best].reshape(-1)
        value = self._weight("model.embed_tokens.weight")[candidates] @ y
        logits = np.full(self.sizes.vocab, value.min() - 1.0, self._dtype)
        logits[candidates] = value
        return logits


class PlainModel:
    """Plain decoding engine. ``logits`` collects one [N, V] array a pass."""

    def __init__(self, model: Model, *, dtype: npt.DTypeLike = np.float64, faults: Collection[Fault] = (),
                 prefill_rows: int | None = None, context: int = 1024) -> None:
        self._chunk = prefill_rows
        rows = None if prefill_rows is None else max(prefill_rows, VERIFY_ROWS)
        self.target = TargetModel(model, dtype=dtype, faults=faults, context=context, pass_rows=rows)
        self.logits: list[Array] = []
        self.hidden: list[Array] = []

    def _pass(self, ids: Sequence[int], position: int) -> Array:
        hidden, logits = self.target.forward(ids, position)
        self.hidden.append(hidden)
        self.logits.append(logits)
        return ops.argmax(logits)

    def prefill(self, ids: Sequence[int]) -> int:
        self.target.reset()
        self.logits, self.hidden = [], []
        chunk = self._chunk or len(ids)
        return [int(self._pass(ids[begin : begin + chunk], begin)[-1]) for begin in range(0, len(ids), chunk)][-1]

    def step(self, token: int, position: int) -> int:
        return int(self._pass([token], position)[-1])


class RoundModel(PlainModel):
    """Speculative decoding engine. ``draft_logits`` collects one [drafts, V] array a round."""

    def __init__(
        self, model: Model, *, dtype: npt.DTypeLike = np.float64, faults: Collection[Fault] = (),
        visible: Visible = Visible.CLEAN, query_positions: QueryPositions = QueryPositions.CONSTANT,
        prefill_rows: int | None = None, context: int = 1024,
    ) -> None:
        super().__init__(model, dtype=dtype, faults=faults, prefill_rows=prefill_rows, context=context)
        if visible is Visible.HF and prefill_rows is not None:
            raise UsageError("the hf rule is known for a prefill in one pass only")
        self.assistant = AssistantModel(model, self.target, dtype=dtype, faults=faults)
        self._faults, self._rule, self._query_positions = faults, visible, query_positions
        self._window = model.target.window
        self.draft_logits: list[Array] = []

    def prefill(self, ids: Sequence[int]) -> int:
        token = super().prefill(ids)
        self.draft_logits, self.assistant.centroid_scores = [], []
        self._state, self._end, self._last_rows = self.hidden[-1][-1], len(ids), len(ids)
        return token

    def _visible(self, position: int) -> dict[LayerType, Array]:
        if self._rule is Visible.CLEAN:
            window = self._window + (Fault.WINDOW_PLUS_ONE in self._faults) - (Fault.WINDOW_MINUS_ONE in self._faults)
            return {LayerType.SLIDING: np.arange(max(0, position - window + 1), position),
                    LayerType.FULL: np.arange(position)}
        # Everything the last pass left, rejected rows included. Its sliding part is what a sliding cache returns, the
        # last window - 1 + rows of the pass, of which the mask takes up to window + 1 before index position + 1.
        first = max(0, self._end - (self._window - 1 + self._last_rows))
        last = first + min(self._end - first, position + 1)
        return {LayerType.SLIDING: np.arange(max(first, last - (self._window + 1)), last),
                LayerType.FULL: np.arange(min(position + 1, self._end))}

    def _draft(self, token: int, position: int, count: int) -> tuple[int, ...]:
        drafts: list[int] = []
        scores: list[Array] = []
        state, visible = self._state, self._visible(position)
        for number in range(count):
            embedded = self.target.embed([token])[0]
            if number == 1 and Fault.DRAFT_2_EMBEDDING_SCALE in self._faults:
                embedded = embedded / self.target.sizes.embedding_scale
            query = position + (number if self._query_positions is QueryPositions.PROGRESSIVE else 0)
            query += Fault.QUERY_POSITION_PLUS_ONE in self._faults
            token, state, logits = self.assistant.step(embedded, state, query, visible)
            drafts.append(token)
            scores.append(logits)
        self.draft_logits.append(np.array(scores))
        return tuple(drafts)

    def round(self, token: int, position: int, drafts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        proposed = self._draft(token, position, drafts)
        greedy = tuple(int(best) for best in self._pass([token, *proposed], position))
        held = next((n for n, draft in enumerate(proposed) if draft != greedy[n]), len(proposed))
        self._state = self.hidden[-1][held]
        self._end, self._last_rows = position + 1 + len(proposed), 1 + len(proposed)
        return proposed, greedy
