"""Metadata of a GGUF file -> the fields of the config.json that the same model has as a checkpoint.

Only what the two formats say differently is judged here; config.py checks the sizes themselves, and its complaints call
a field by its GGUF key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from gemma4web.export.config import Fields
from gemma4web.program.architecture import LayerType

ARCHITECTURE: Final = "general.architecture"
TARGET: Final = "gemma4"
ASSISTANT: Final = "gemma4-assistant"
PARTIAL_ROTARY_FACTOR: Final = 0.25
"""Of full layers; the format has no key for it, its tensor rope_freqs.weight says it."""
DEFAULT_TOP_K: Final = 32
_NO_PER_LAYER: Final = "models whose layers differ in this are not supported yet"
_SCALING: Final = "RoPE scaling is not supported"

# config.json: GGUF, behind the architecture's name
_KEYS: Final = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length_swa", "per_layer_config": "attention.head_count_kv",
    "sliding_window": "attention.sliding_window", "layer_types": "attention.sliding_window_pattern",
    "num_kv_shared_layers": "attention.shared_kv_layers", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "max_position_embeddings": "context_length", "hidden_size_per_layer_input": "embedding_length_per_layer_input",
    "final_logit_softcapping": "final_logit_softcapping", "num_experts": "expert_count",
    "rope_parameters": "rope.freq_base", "rope_parameters.full_attention.rope_theta": "rope.freq_base",
    "rope_parameters.sliding_attention.rope_theta": "rope.freq_base_swa",
    "rope_parameters.full_attention.factor": "rope.scaling.factor",
}
_OUTER_KEYS: Final = {"backbone_hidden_size": "embedding_length_out", "num_centroids": "n_centroids",
                      "centroid_intermediate_top_k": "centroid_top_k"}
_OPTIONAL: Final = ("num_kv_shared_layers", "final_logit_softcapping", "num_experts")
_OF_LAYERS: Final = ("layer_types", "intermediate_size", "num_key_value_heads", "per_layer_config", "rope_parameters")
"""Fields that more than one key says, or a list."""


def _plain(value: Any) -> Any:
    """A number of the file; f32 as the shortest decimal that means it, as a config.json would have it. An f64 may be infinite."""
    if not isinstance(value, float):
        return value
    with np.errstate(over="ignore"):
        return float(str(np.float32(value)))


class _Metadata:
    """The keys of one architecture."""

    def __init__(self, path: Path, metadata: Mapping[str, Any], architecture: str) -> None:
        self.all = Fields(path=path, values=metadata)
        self.architecture = architecture

    def key(self, name: str) -> str:
        return f"{self.architecture}.{name}"

    def value(self, name: str) -> Any:
        return _plain(self.all.values.get(self.key(name)))

    def required(self, name: str) -> Any:
        if self.key(name) not in self.all.values:
            raise self.all.fail(self.key(name), "a value", advice="the file's converter left it out: convert it again")
        return self.value(name)

    def count(self) -> int:
        return self.all.integer(self.key("block_count"))

    def uniform(self, name: str) -> Any:
        """A number, or the one that stands for every layer."""
        value = self.required(name)
        if isinstance(value, list):
            if len(value) != self.count() or len(set(value)) != 1:
                raise self.all.fail(self.key(name), f"one number for all {self.count()} layers", advice=_NO_PER_LAYER)
            return value[0]
        return value

    def layer_types(self) -> list[str]:
        pattern = self.value("attention.sliding_window_pattern")
        if not isinstance(pattern, list) or len(pattern) != self.count() or any(type(part) is not bool for part in pattern):
            raise self.all.fail(self.key("attention.sliding_window_pattern"),
                                f"{self.count()} times true for a sliding or false for a full layer")
        return [str(LayerType.SLIDING if sliding else LayerType.FULL) for sliding in pattern]

    def feed_forward(self) -> dict[str, Any]:
        """One width, or twice the width in the layers that share a cache."""
        value, name = self.required("feed_forward_length"), "feed_forward_length"
        if not isinstance(value, list):
            return {"intermediate_size": value, "use_double_wide_mlp": False}
        sharing = min(self.all.integer(self.key("attention.shared_kv_layers"), least=0, default=0), self.count())
        owning = self.count() - sharing
        narrow, wide = (value[0], value[-1]) if value else (0, 0)
        if len(value) != self.count() or value != [narrow] * owning + [wide] * sharing or wide not in (narrow, 2 * narrow):
            raise self.all.fail(self.key(name), f"one width for {owning} layers, the same or twice as much for the other "
                                f"{sharing}", advice=_NO_PER_LAYER)
        return {"intermediate_size": narrow, "use_double_wide_mlp": wide != narrow}

    def heads(self, types: list[str]) -> dict[str, Any]:
        """Size and number of the KV heads of each layer; one number may stand for all of them."""
        counts, name = self.required("attention.head_count_kv"), self.key("attention.head_count_kv")
        if not isinstance(counts, list):
            counts = [counts] * len(types)
        if len(counts) != len(types):
            raise self.all.fail(name, f"one number, or {len(types)}, one for each layer")
        sizes = [self.required("attention.key_length" + ("_swa" if type_ == LayerType.SLIDING else "")) for type_ in types]
        return {"num_key_value_heads": counts[0], "per_layer_config": {
            str(index): {"head_dim": size, "num_key_value_heads": count}
            for index, (size, count) in enumerate(zip(sizes, counts, strict=True))}}

    def spelled(self) -> dict[str, str]:
        """What the file calls the fields of a config.json."""
        names = {name: self.key(key) for name, key in _KEYS.items()}
        for index, type_ in enumerate(self.layer_types()):
            suffix = "_swa" if type_ == LayerType.SLIDING else ""
            names[f"per_layer_config.{index}.head_dim"] = self.key(f"attention.key_length{suffix}")
            names[f"per_layer_config.{index}.num_key_value_heads"] = self.key("attention.head_count_kv")
        return names

    def rope(self) -> dict[str, Any]:
        self.all.only(self.key("rope.scaling.type"), None, "none", why=_SCALING)
        return {
            str(LayerType.FULL): {"rope_type": "proportional", "partial_rotary_factor": PARTIAL_ROTARY_FACTOR,
                                  "rope_theta": self.required("rope.freq_base"),
                                  "factor": self.value("rope.scaling.factor")},
            str(LayerType.SLIDING): {"rope_type": "default", "rope_theta": self.required("rope.freq_base_swa")},
        }

    def same_head_sizes(self) -> None:
        """Keys, values and rotated dimensions of a head are one number."""
        for suffix in ("", "_swa"):
            self.required(f"attention.key_length{suffix}")
            size = self.all.integer(self.key(f"attention.key_length{suffix}"))
            for name in ("attention.value_length", "rope.dimension_count"):
                self.all.only(self.key(name + suffix), None, size, why="the same as attention.key_length" + suffix)

    def text_config(self, vocab: int) -> dict[str, Any]:
        self.same_head_sizes()
        plain = {name: self.value(key) if name in _OPTIONAL else self.uniform(key) for name, key in _KEYS.items()
                 if name not in (*_OF_LAYERS, "hidden_size_per_layer_input") and "." not in name}
        types, ple = self.layer_types(), self.value("embedding_length_per_layer_input")
        return {"model_type": "gemma4_text", "vocab_size": vocab, "hidden_activation": "gelu_pytorch_tanh",
                "layer_types": types, "rope_parameters": self.rope(), **self.heads(types), **self.feed_forward(),
                "hidden_size_per_layer_input": 0 if ple is None else ple, "vocab_size_per_layer_input": vocab,
                **{name: value for name, value in plain.items() if value is not None}}


def target_fields(path: Path, metadata: Mapping[str, Any], vocab: int, has_values: Callable[[int], bool]) -> Fields:
    """A target's config.json; ``has_values``: whether a layer has a matrix for its values. Raises CheckpointError."""
    file = _Metadata(path, metadata, TARGET)
    text, spelled = file.text_config(vocab), file.spelled()
    full = [index for index, type_ in enumerate(text["layer_types"]) if type_ == LayerType.FULL]
    text["attention_k_eq_v"] = bool(full) and not any(map(has_values, full))
    return Fields(path=path, values=text, spelled=spelled | {"vocab_size": "rows of token_embd.weight"})


def assistant_fields(path: Path, metadata: Mapping[str, Any], vocab: int, centroids: int) -> Fields:
    """An assistant's config.json; ``centroids`` are the rows of its tensor, 0 without one. Raises CheckpointError."""
    file = _Metadata(path, metadata, ASSISTANT)
    values = {"model_type": "gemma4_assistant", "backbone_hidden_size": file.required("embedding_length_out"),
              "text_config": file.text_config(vocab)}
    if centroids:
        file.all.only(file.key("n_centroids"), None, centroids, why="the rows of masked_embd_centroids.weight")
        top_k = file.value("centroid_top_k")
        values |= {"num_centroids": centroids, "centroid_intermediate_top_k": DEFAULT_TOP_K if top_k is None else top_k}
    spelled = {name: file.key(key) for name, key in _OUTER_KEYS.items()}
    spelled |= {f"text_config.{name}": label for name, label in file.spelled().items()}
    return Fields(path=path, values=values, spelled=spelled | {"text_config.vocab_size": "rows of token_embd.weight"})
