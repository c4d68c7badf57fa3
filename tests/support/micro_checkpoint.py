"""Checkpoints of a few kilobytes with everything that an exporter meets, for tests that damage or vary them.

Target: layers sliding, sliding, full, sliding, full, the last two sharing caches; hidden 32, heads of 16 and 32, window 4,
vocabulary 64, per-layer embeddings. Assistant: a sliding and a full layer, 8 centroids. Weights are seeded noise.

The unified pair has the form of the 12B model: 2 KV heads in sliding layers, values from keys and 1 KV head in full ones, a
cache in every layer, no per-layer embeddings, a dense head.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Tensors = dict[str, npt.NDArray[Any]]

VOCAB, HIDDEN, WINDOW, CENTROIDS = 64, 32, 4, 8
TARGET_TYPES = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
SHARED = 2
_ROPE = {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
         "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}


def text_config(types: list[str], shared: int, ple: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "gemma4_text", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 32,
        "num_hidden_layers": len(types), "layer_types": list(types), "num_kv_shared_layers": shared,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "global_head_dim": 32,
        "sliding_window": WINDOW, "rope_parameters": copy.deepcopy(_ROPE), "rms_norm_eps": 1e-6,
        "hidden_size_per_layer_input": ple, "vocab_size_per_layer_input": VOCAB if ple else 0,
        "max_position_embeddings": 256, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True,
        "enable_moe_block": False, "attention_k_eq_v": False, "attention_bias": False, **more,
    }


def target_config() -> dict[str, Any]:
    return text_config(TARGET_TYPES, SHARED, 32, use_double_wide_mlp=True, final_logit_softcapping=30.0, bos_token_id=2,
                       eos_token_id=None)


def assistant_config() -> dict[str, Any]:
    text = text_config(["sliding_attention", "full_attention"], 2, 0, use_double_wide_mlp=False,
                       final_logit_softcapping=None)
    return {"model_type": "gemma4_assistant", "backbone_hidden_size": HIDDEN, "use_ordered_embeddings": True,
            "num_centroids": CENTROIDS, "centroid_intermediate_top_k": 2, "text_config": text}


_UNIFIED: Final = {"model_type": "gemma4_unified_text", "attention_k_eq_v": True, "num_key_value_heads": 2,
                   "num_global_key_value_heads": 1}


def unified_target_config() -> dict[str, Any]:
    return text_config(TARGET_TYPES, 0, 0, **_UNIFIED, final_logit_softcapping=30.0, bos_token_id=2, eos_token_id=None)


def unified_assistant_config() -> dict[str, Any]:
    """Like some published ones it names centroids, which it has not."""
    text = text_config(["sliding_attention", "full_attention"], 2, 0, **_UNIFIED, final_logit_softcapping=None)
    return {"model_type": "gemma4_unified_assistant", "backbone_hidden_size": HIDDEN, "use_ordered_embeddings": False,
            "num_centroids": 2048, "centroid_intermediate_top_k": 32, "text_config": text}


class _Noise:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int) -> npt.NDArray[np.float32]:
        return self._random.normal(0, 0.2, (rows, columns)).astype(np.float32)

    def norm(self, size: int) -> npt.NDArray[np.float32]:
        return self._random.normal(1, 0.25, size).astype(np.float32)

    def permutation(self, size: int) -> npt.NDArray[np.int64]:
        return self._random.permutation(size).astype(np.int64)


def _layer(noise: _Noise, prefix: str, head_dim: int, mlp: int, *, owns_cache: bool, ple: bool, kv_heads: int = 1,
           values: bool = True) -> Tensors:
    width = 2 * head_dim
    made: Tensors = {f"{prefix}self_attn.q_proj.weight": noise.matrix(width, HIDDEN),
                     f"{prefix}self_attn.o_proj.weight": noise.matrix(HIDDEN, width),
                     f"{prefix}self_attn.q_norm.weight": noise.norm(head_dim),
                     f"{prefix}layer_scalar": np.array([0.8], np.float32)}
    if owns_cache:
        made |= {f"{prefix}self_attn.{part}_proj.weight": noise.matrix(kv_heads * head_dim, HIDDEN)
                 for part in ("kv" if values else "k")}
        made[f"{prefix}self_attn.k_norm.weight"] = noise.norm(head_dim)
    norms = ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]
    made |= {f"{prefix}mlp.gate_proj.weight": noise.matrix(mlp, HIDDEN), f"{prefix}mlp.up_proj.weight": noise.matrix(mlp, HIDDEN),
             f"{prefix}mlp.down_proj.weight": noise.matrix(HIDDEN, mlp)}
    if ple:
        norms.append("post_per_layer_input_norm")
        made |= {f"{prefix}per_layer_input_gate.weight": noise.matrix(32, HIDDEN),
                 f"{prefix}per_layer_projection.weight": noise.matrix(HIDDEN, 32)}
    return made | {f"{prefix}{name}.weight": noise.norm(HIDDEN) for name in norms}


def target_tensors(prefix: str = "model.", seed: int = 1) -> Tensors:
    noise, count = _Noise(seed), len(TARGET_TYPES)
    made: Tensors = {
        f"{prefix}embed_tokens.weight": noise.matrix(VOCAB, HIDDEN),
        f"{prefix}embed_tokens_per_layer.weight": noise.matrix(VOCAB, count * 32),
        f"{prefix}per_layer_model_projection.weight": noise.matrix(count * 32, HIDDEN),
        f"{prefix}per_layer_projection_norm.weight": noise.norm(32), f"{prefix}norm.weight": noise.norm(HIDDEN),
    }
    for index, type_ in enumerate(TARGET_TYPES):
        owns = index < count - SHARED
        made |= _layer(noise, f"{prefix}layers.{index}.", 32 if type_ == "full_attention" else 16, 32 if owns else 64,
                       owns_cache=owns, ple=True)
    return made


def unified_target_tensors() -> Tensors:
    noise = _Noise(3)
    made: Tensors = {"model.embed_tokens.weight": noise.matrix(VOCAB, HIDDEN), "model.norm.weight": noise.norm(HIDDEN)}
    for index, type_ in enumerate(TARGET_TYPES):
        full = type_ == "full_attention"
        made |= _layer(noise, f"model.layers.{index}.", 32 if full else 16, 32, owns_cache=True, ple=False,
                       kv_heads=1 if full else 2, values=not full)
    return made


def unified_assistant_tensors() -> Tensors:
    return {name: values for name, values in assistant_tensors(4).items() if not name.startswith("masked_embedding.")}


def assistant_tensors(seed: int = 2) -> Tensors:
    noise = _Noise(seed)
    made: Tensors = {
        "pre_projection.weight": noise.matrix(HIDDEN, 2 * HIDDEN), "post_projection.weight": noise.matrix(HIDDEN, HIDDEN),
        "model.embed_tokens.weight": noise.matrix(VOCAB, HIDDEN), "model.norm.weight": noise.norm(HIDDEN),
        "masked_embedding.centroids.weight": noise.matrix(CENTROIDS, HIDDEN),
        "masked_embedding.token_ordering": noise.permutation(VOCAB),
    }
    for index, head_dim in enumerate((16, 32)):
        made |= _layer(noise, f"model.layers.{index}.", head_dim, 32, owns_cache=False, ple=False)
    return made


def _encoded(values: npt.NDArray[Any], dtype: str) -> tuple[str, bytes]:
    """dtype name and bytes; integers keep their own type."""
    if values.dtype == np.int64:
        return "I64", values.astype("<i8").tobytes()
    if dtype == "BF16":  # round to nearest even, as the frameworks do
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        return dtype, ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    return dtype, values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[dtype]).tobytes()


def safetensors_bytes(tensors: Mapping[str, npt.NDArray[Any]], dtype: str = "F32") -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        kind, raw = _encoded(values, dtype)
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: Mapping[str, npt.NDArray[Any]], *, dtype: str = "F32",
                     shards: int = 1) -> Path:
    """A checkpoint folder; more than one shard gets an index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        (folder / "model.safetensors").write_bytes(safetensors_bytes(tensors, dtype))
        return folder
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    where = {name: names[index % shards] for index, name in enumerate(tensors)}
    for file in names:
        part = {name: values for name, values in tensors.items() if where[name] == file}
        (folder / file).write_bytes(safetensors_bytes(part, dtype))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return folder


def write_pair(folder: Path, *, dtype: str = "F32", shards: int = 1, prefix: str = "model.") -> tuple[Path, Path]:
    """(target, assistant) folders."""
    target = write_checkpoint(folder / "target", target_config(), target_tensors(prefix), dtype=dtype, shards=shards)
    return target, write_checkpoint(folder / "assistant", assistant_config(), assistant_tensors(), dtype=dtype)


def write_unified_pair(folder: Path) -> tuple[Path, Path]:
    """(target, assistant) folders."""
    return (write_checkpoint(folder / "target", unified_target_config(), unified_target_tensors()),
            write_checkpoint(folder / "assistant", unified_assistant_config(), unified_assistant_tensors()))
