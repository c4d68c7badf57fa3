"""The sizes of a model, as the graph builders need them: what a checkpoint's config says, already checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gemma4web.program.ir import DraftHead


class LayerType(StrEnum):
    SLIDING = "sliding_attention"
    FULL = "full_attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class RopeSettings:
    """Rotary embedding of one layer type; ``partial`` is the share of the head that turns."""

    theta: float
    partial: float = 1.0

    def rotated_pairs(self, head_dim: int) -> int:
        return int(self.partial * head_dim / 2)


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """One decoder layer. ``donor`` is the layer whose KV cache it reads: itself where it owns one.

    ``values_from_keys``: its values are made from k_proj's result, and it has no v_proj.
    """

    index: int
    type: LayerType
    head_dim: int
    kv_heads: int
    intermediate: int
    donor: int
    values_from_keys: bool = False

    @property
    def owns_cache(self) -> bool:
        return self.donor == self.index


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """What target and assistant have in common. Sizes in elements; ``eps`` of every RMS norm."""

    vocab: int
    hidden: int
    query_heads: int
    window: int
    eps: float
    layers: tuple[Layer, ...]
    rope: dict[LayerType, RopeSettings]

    def window_of(self, layer: Layer) -> int:
        """Sliding window of a layer, 0 for full attention."""
        return self.window if layer.type is LayerType.SLIDING else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Target(Decoder):
    """``ple_width`` 0: no per-layer embeddings; ``softcap`` None: raw logits."""

    prefix: str
    max_positions: int
    ple_width: int
    softcap: float | None

    @property
    def embedding_scale(self) -> float:
        return math.sqrt(self.hidden)

    @property
    def first_shared(self) -> int:
        """The first layer without a KV cache of its own; the number of layers when every layer has one."""
        return next((layer.index for layer in self.layers if not layer.owns_cache), len(self.layers))

    def last_owner(self, type_: LayerType) -> int | None:
        """The last layer of this type that owns a cache: donor of shared layers and of the assistant."""
        owners = [layer.index for layer in self.layers if layer.owns_cache and layer.type is type_]
        return owners[-1] if owners else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Assistant(Decoder):
    """Draft model. A layer's ``donor`` is the *target's* layer whose cache it reads. ``backbone`` = target's hidden.

    ``centroids`` and ``top_k`` 0: a dense head.
    """

    backbone: int
    centroids: int
    top_k: int

    @property
    def head(self) -> DraftHead:
        return DraftHead.CENTROIDS if self.centroids else DraftHead.DENSE

    @property
    def cluster(self) -> int:
        """Token ids that one centroid owns."""
        return self.vocab // self.centroids
