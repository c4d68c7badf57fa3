"""config.json: published spellings are read, and everything that is not implemented is refused by the name of its field."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from micro_checkpoint import CENTROIDS, assistant_config, target_config

from gemma4web.errors import CheckpointError
from gemma4web.export import config
from gemma4web.program.architecture import LayerType, RopeSettings, Target
from gemma4web.program.ir import DraftHead

REPOSITORY = Path(__file__).resolve().parents[2]


def _write(folder: Path, document: Any, name: str = "config.json") -> Path:
    (folder / name).write_text(json.dumps(document))
    return folder / name


def _target(folder: Path, **change: Any) -> Target:
    return config.read_target(_write(folder, {**target_config(), **change}), "model.")


def test_sizes_of_the_target(tmp_path: Path) -> None:
    target = _target(tmp_path)
    assert [layer.head_dim for layer in target.layers] == [16, 16, 32, 16, 32]
    assert [layer.intermediate for layer in target.layers] == [32, 32, 32, 64, 64]
    assert [layer.donor for layer in target.layers] == [0, 1, 2, 1, 2]
    assert target.first_shared == 3 and target.last_owner(LayerType.SLIDING) == 1 and target.last_owner(LayerType.FULL) == 2
    assert target.rope[LayerType.FULL].rotated_pairs(32) == 4 and target.rope[LayerType.SLIDING].rotated_pairs(16) == 8


def test_both_spellings_of_the_full_head_size(tmp_path: Path) -> None:
    """``global_head_dim`` of published configs and ``per_layer_config`` of saved ones say the same."""
    spelled = {**target_config(), "per_layer_config": {"2": {"head_dim": 32}, "4": {"head_dim": 32}}}
    del spelled["global_head_dim"]
    assert config.read_target(_write(tmp_path, spelled), "model.") == _target(tmp_path)


def test_per_layer_config_is_all_that_counts(tmp_path: Path) -> None:
    """As transformers has it: beside it the two other spellings are not read, and null or nothing in it is no difference."""
    target = _target(tmp_path, attention_k_eq_v=True, num_global_key_value_heads=2, num_key_value_heads=2,
                     per_layer_config={"02": {"num_key_value_heads": 1}, "04": {"num_key_value_heads": 1}})
    assert [(layer.head_dim, layer.kv_heads) for layer in target.layers] == [(16, 2), (16, 2), (16, 1), (16, 2), (16, 1)]
    for nothing in ({}, None):
        assert {layer.head_dim for layer in _target(tmp_path, per_layer_config=nothing).layers} == {16}


@pytest.mark.parametrize("from_keys", [True, False])
def test_kv_heads_of_full_layers(tmp_path: Path, from_keys: bool) -> None:
    """Full layers have a number of their own where their values come from their keys, as only the larger models have."""
    target = _target(tmp_path, attention_k_eq_v=from_keys, num_key_value_heads=2, num_global_key_value_heads=1)
    assert [layer.kv_heads for layer in target.layers] == ([2, 2, 1, 2, 1] if from_keys else [2] * 5)
    assert [layer.values_from_keys for layer in target.layers] == [False, False, from_keys, False, False]


@pytest.mark.parametrize(("type_", "window", "ple", "positions"), [
    ("gemma4_text", 512, 256, 131072), ("gemma4_unified_text", 1024, 0, 262144)])
def test_fields_left_out(tmp_path: Path, type_: str, window: int, ple: int, positions: int) -> None:
    """transformers 5.24's Gemma4TextConfig() and Gemma4UnifiedTextConfig(), field by field."""
    target = config.read_target(_write(tmp_path, {"model_type": type_}), "model.")
    assert (target.vocab, target.hidden, target.query_heads, target.eps) == (262144, 2304, 8, 1e-6)
    assert (target.window, target.ple_width, target.max_positions, target.softcap) == (window, ple, positions, None)
    full = [layer.index for layer in target.layers if layer.type is LayerType.FULL]
    assert len(target.layers) == 30 and full == [5, 11, 17, 23, 29]
    assert {(layer.type, layer.head_dim) for layer in target.layers} == {(LayerType.SLIDING, 256), (LayerType.FULL, 512)}
    assert {(layer.kv_heads, layer.intermediate, layer.values_from_keys) for layer in target.layers} == {(4, 9216, False)}
    assert all(layer.owns_cache for layer in target.layers)
    assert target.rope == {LayerType.SLIDING: RopeSettings(theta=1e4), LayerType.FULL: RopeSettings(theta=1e6, partial=0.25)}
    few = config.read_target(_write(tmp_path, {"model_type": type_, "num_hidden_layers": 4}), "model.")
    assert [layer.type for layer in few.layers] == [LayerType.SLIDING] * 3 + [LayerType.FULL]


def test_multimodal_type_names_its_text_model(tmp_path: Path) -> None:
    """Both families, an assistant's too, whose text model need not say its type or how many layers read shared caches."""
    for outer, window in (("gemma4", 512), ("gemma4_unified", 1024)):
        target = config.read_target(_write(tmp_path, {"model_type": outer, "text_config": {}}), "model.language_model.")
        text = {"num_hidden_layers": 4, "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}
        document = {"model_type": f"{outer}_assistant", "backbone_hidden_size": 2304, "text_config": text}
        assistant = config.read_assistant(_write(tmp_path, document), target, 0)
        assert target.window == assistant.window == window and assistant.head is DraftHead.DENSE
        assert [layer.donor for layer in assistant.layers] == [28, 28, 28, 29]


@pytest.mark.parametrize("ordered", [True, False, None])
def test_tensors_decide_the_head(tmp_path: Path, ordered: bool | None) -> None:
    """Some configs of dense heads name centroids; the checkpoint's table of centroids is what counts."""
    target, document = _target(tmp_path), {**assistant_config(), "use_ordered_embeddings": ordered}
    dense, centroids = (config.read_assistant(_write(tmp_path, document), target, rows) for rows in (0, CENTROIDS))
    assert (dense.head, dense.centroids, dense.top_k) == (DraftHead.DENSE, 0, 0)
    assert (centroids.head, centroids.centroids, centroids.top_k) == (DraftHead.CENTROIDS, CENTROIDS, 2)


def test_multimodal_config_nests_the_text_model(tmp_path: Path) -> None:
    outer = {"model_type": "gemma4", "text_config": target_config(), "vision_config": {}}
    assert config.read_target(_write(tmp_path, outer), "model.") == _target(tmp_path)


def test_fixture_configs() -> None:
    for name in ("tiny-rand", "tiny-mix"):
        folder = REPOSITORY / "fixtures" / name
        target = config.read_target(folder / "target" / "config.json", "model.")
        assistant = config.read_assistant(folder / "assistant" / "config.json", target, 64)
        assert [layer.donor for layer in assistant.layers] == [3, 3, 3, 4] and target.softcap == 30


@pytest.mark.parametrize(("change", "field"), [
    ({"model_type": "llama"}, "model_type"),
    ({"enable_moe_block": True}, "enable_moe_block"),
    ({"num_experts": 128}, "num_experts"),
    ({"attention_k_eq_v": "yes"}, "attention_k_eq_v"),
    ({"attention_k_eq_v": True, "num_global_key_value_heads": 0}, "num_global_key_value_heads"),
    ({"attention_k_eq_v": True, "num_global_key_value_heads": 3}, "num_attention_heads"),
    ({"global_head_dim": None}, "global_head_dim"),
    ({"model_type": ["gemma4_text"]}, "model_type"),
    ({"model_type": "gemma4_unified_text"}, "hidden_size_per_layer_input"),
    ({"attention_bias": True}, "attention_bias"),
    ({"hidden_activation": "gelu"}, "hidden_activation"),
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"layer_types": ["sliding_attention"] * 4}, "layer_types"),
    ({"layer_types": ["linear_attention"] * 5}, "layer_types"),
    ({"layer_types": ["full_attention"] * 4 + ["sliding_attention"]}, "layer_types"),
    ({"num_kv_shared_layers": 5}, "num_kv_shared_layers"),
    ({"num_kv_shared_layers": 3}, "num_kv_shared_layers"),
    ({"num_kv_shared_layers": -1}, "num_kv_shared_layers"),
    ({"num_attention_heads": 3, "num_key_value_heads": 2}, "num_attention_heads"),
    ({"head_dim": 15}, "head_dim"),
    ({"head_dim": None}, "head_dim"),
    ({"hidden_size": "32"}, "hidden_size"),
    ({"hidden_size": True}, "hidden_size"),
    ({"hidden_size": 0}, "hidden_size"),
    ({"vocab_size_per_layer_input": 32}, "vocab_size_per_layer_input"),
    ({"final_logit_softcapping": 0}, "final_logit_softcapping"),
    ({"rms_norm_eps": -1}, "rms_norm_eps"),
    ({"per_layer_config": {"2": {"head_dim": 32, "heads": 1}}}, r"per_layer_config\.2"),
    ({"per_layer_config": {"9": {"head_dim": 32}}}, r"per_layer_config\.9"),
    ({"per_layer_config": {"4": {"head_dim": 64}}}, "per_layer_config"),
    ({"per_layer_config": {"2": {"num_key_value_heads": 2}}}, "per_layer_config"),
    ({"per_layer_config": {"2": {"head_dim": 31}, "4": {"head_dim": 31}}}, "head_dim"),
    ({"per_layer_config": {"2": {"num_key_value_heads": 0}}}, r"per_layer_config\.2\.num_key_value_heads"),
    ({"use_double_wide_mlp": "yes"}, "use_double_wide_mlp"),
    ({"max_position_embeddings": None}, "max_position_embeddings"),
    ({"rope_parameters": []}, "rope_parameters"),
    ({"rope_parameters": {"full_attention": {}}}, "rope_parameters.sliding_attention"),
])
def test_unsupported_targets_name_the_field(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    with pytest.raises(CheckpointError, match=rf"config\.json: `{field}` is "):
        _target(tmp_path, **change)


@pytest.mark.parametrize(("type_", "change", "field"), [
    ("sliding_attention", {"rope_type": "yarn"}, "rope_type"),
    ("full_attention", {"rope_type": "default"}, "rope_type"),
    ("full_attention", {"factor": 8.0}, "factor"),
    ("full_attention", {"original_max_position_embeddings": 8}, "original_max_position_embeddings"),
    ("full_attention", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ("sliding_attention", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("full_attention", {"partial_rotary_factor": 1 / 17}, "partial_rotary_factor"),  # 16 pairs, none of which would turn
    ("sliding_attention", {"rope_theta": 0}, "rope_theta"),
    ("sliding_attention", {"high_freq_factor": 4}, "high_freq_factor"),
])
def test_rope_scaling_is_refused(tmp_path: Path, type_: str, change: dict[str, Any], field: str) -> None:
    rope = target_config()["rope_parameters"]
    rope[type_] |= change
    with pytest.raises(CheckpointError, match=rf"`rope_parameters\.{type_}\.{field}` is "):
        _target(tmp_path, rope_parameters=rope)


def test_rope_type_left_out(tmp_path: Path) -> None:
    """It is the default one, which full layers do not have."""
    rope = target_config()["rope_parameters"]
    del rope["sliding_attention"]["rope_type"]
    assert _target(tmp_path, rope_parameters=rope) == _target(tmp_path)
    del rope["full_attention"]["rope_type"]
    with pytest.raises(CheckpointError, match='`rope_parameters.full_attention.rope_type` is "default", wanted "proportional"'):
        _target(tmp_path, rope_parameters=rope)


def _text(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["text_config"].__setitem__(name, value)


def _outer(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(name, value)


@pytest.mark.parametrize(("change", "message"), [
    (_outer("tie_word_embeddings", False), "untied LM head"),
    (_outer("backbone_hidden_size", 64), "the target's hidden_size 32"),
    (_outer("num_centroids", 7), "num_centroids"),
    (_outer("centroid_intermediate_top_k", 9), "centroid_intermediate_top_k"),
    (_outer("model_type", "gemma4_text"), "model_type"),
    (_text("vocab_size", 128), "the target's 64"),
    (_text("sliding_window", 8), "the target's 4"),
    (_text("num_key_value_heads", 2), "the target's 1"),
    (_text("num_kv_shared_layers", 1), "num_kv_shared_layers"),
    (_text("head_dim", 32), "in layer 0 the target's 16, of its last sliding_attention layer with a cache, found 32"),
    (_text("per_layer_config", {"1": {"head_dim": 32, "num_key_value_heads": 2}}), "in layer 1 the target's 1, of its last full"),
    (_text("hidden_size_per_layer_input", 32), "hidden_size_per_layer_input"),
    (_text("use_double_wide_mlp", True), "use_double_wide_mlp"),
    (_text("final_logit_softcapping", 30.0), "final_logit_softcapping"),
    (_text("rope_parameters", {**target_config()["rope_parameters"], "sliding_attention": {
        "rope_type": "default", "rope_theta": 1e5}}), "rope_parameters"),
])
def test_assistants_that_do_not_fit(tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    document = copy.deepcopy(assistant_config())
    change(document)
    target = _target(tmp_path)
    with pytest.raises(CheckpointError, match=message):
        config.read_assistant(_write(tmp_path, document, "assistant.json"), target, CENTROIDS)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1', "\xff"])
def test_broken_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"config\.json is no"):
        config.load(tmp_path / "config.json")


@pytest.mark.parametrize(("generation", "eos", "wanted"), [
    (None, None, ()), (None, 1, (1,)), (None, [50, 1], (1, 50)), ({"eos_token_id": [1, 49, 50]}, 7, (1, 49, 50)),
    ({"eos_token_id": 3}, None, (3,)), ({}, 5, (5,)),
])
def test_stop_ids(tmp_path: Path, generation: Any, eos: Any, wanted: tuple[int, ...]) -> None:
    """generation_config.json goes before config.json; one id, a list, or none."""
    _write(tmp_path, {"eos_token_id": eos, "bos_token_id": 2})
    if generation is not None:
        _write(tmp_path, generation, "generation_config.json")
    assert config.special_ids(tmp_path, 64) == (2, wanted)


def test_ids_left_out_are_those_of_the_library(tmp_path: Path) -> None:
    """Null is none; a field that no file has is transformers' default."""
    _write(tmp_path, {"model_type": "gemma4", "text_config": {}})
    assert config.special_ids(tmp_path, 64) == (2, (1,))
    _write(tmp_path, {"model_type": "gemma4", "text_config": {"bos_token_id": None, "eos_token_id": None}})
    assert config.special_ids(tmp_path, 64) == (None, ())


@pytest.mark.parametrize("eos", [64, -1, "1", [1, None], True])
def test_stop_ids_outside_the_vocabulary(tmp_path: Path, eos: Any) -> None:
    _write(tmp_path, {"eos_token_id": eos})
    with pytest.raises(CheckpointError, match="`eos_token_id` is .*, wanted token ids below 64"):
        config.special_ids(tmp_path, 64)
