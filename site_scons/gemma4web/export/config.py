"""config.json of a Gemma 4 text model or assistant -> the sizes that the graph builders need.

A GGUF file's metadata become the fields of a config.json first, so that every check is made once. Whatever this project
does not implement is refused here, naming the field: a model that exports runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import CheckpointError
from gemma4web.export import json_file
from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target

_WANTED_TARGET: Final = "gemma4_text"
WHOLE: Final = "fetch this file of the checkpoint again, and name the folder that holds config.json and safetensors"
_DAMAGED: Final = "this project supports no such model, or the file is damaged: fetch it again"
_OUTER_TARGET: Final = ("gemma4", "gemma4_unified")
MAX_LAYERS: Final = 256
MAX_VOCAB: Final = 1 << 20
"""Sizes that no Gemma 4 model comes near; a graph or a table of more is a waste of memory before anything is checked."""


def load(path: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises CheckpointError."""
    return json_file.load(path, advice=WHOLE)


def _start(value: Any) -> Any:
    """Enough of a value to show: the text of a whole tokenizer is not made for a message."""
    return value[:200] if isinstance(value, list | str) else value


@dataclass(frozen=True, kw_only=True, slots=True)
class Fields:
    """Typed access to one JSON object; every complaint names the file and the field.

    ``spelled``: what the file calls a field, where that is not its own name (``text_config.hidden_size``).
    """

    path: Path
    values: Mapping[str, Any]
    inside: str = ""
    spelled: Mapping[str, str] = field(default_factory=dict)

    def fail(self, name: str, wanted: str, *, advice: str | None = None) -> CheckpointError:
        found = json.dumps(_start(self.values.get(name))) if name in self.values else "nothing"
        found = found if len(found) < 200 else found[:200] + "..."
        label = self.spelled.get(self.inside + name, self.inside + name)
        label = label[:200] if label.isprintable() else ascii(label[:100])
        return CheckpointError(f"{self.path}: `{label}` is {found}, wanted {wanted}", advice=advice or _DAMAGED)

    def section(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.fail(name, "an object")
        return Fields(path=self.path, values=value, inside=f"{self.inside}{name}.", spelled=self.spelled)

    def integer(self, name: str, *, least: int = 1, most: int = (1 << 31) - 1, default: int | None = None) -> int:
        value = self.values.get(name, default)
        if type(value) is not int or not least <= value <= most:
            raise self.fail(name, f"an integer {least}..{most}")
        return value

    def number(self, name: str, *, default: float | None = None) -> float:
        """A finite number > 0."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise self.fail(name, "a finite number > 0")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.values.get(name)
        value = default if value is None else value
        if type(value) is not bool:
            raise self.fail(name, "true or false")
        return value

    def only(self, name: str, *accepted: Any, why: str = "") -> None:
        """Refuses a value other than ``accepted``; an absent field counts as null."""
        if self.values.get(name) not in accepted:
            wanted = " or ".join(json.dumps(value) for value in accepted)
            raise self.fail(name, wanted, advice=why or "this kind of model is not supported yet")


def _refuse_unsupported(f: Fields) -> None:
    f.only("enable_moe_block", None, False, why="mixture-of-experts models are not supported yet")
    f.only("num_experts", None, 0, why="mixture-of-experts models are not supported yet")
    f.only("attention_k_eq_v", None, False, why="models whose full layers share keys and values are not supported yet")
    f.only("attention_bias", None, False, why="attention biases are not supported")
    f.only("hidden_activation", "gelu_pytorch_tanh", why="only the tanh form of GELU is implemented")
    f.only("use_bidirectional_attention", None, False, "vision", why="only causal attention is implemented")
    f.only("tie_word_embeddings", None, True, why="an untied LM head is not supported")
    f.only("quantization_config", None, why="export from the unquantised checkpoint")


def _layer_types(f: Fields, count: int) -> list[LayerType]:
    types = f.values.get("layer_types")
    if not isinstance(types, list) or len(types) != count or any(name not in list(LayerType) for name in types):
        raise f.fail("layer_types", f"a list of {count} entries, each sliding_attention or full_attention")
    return [LayerType(name) for name in types]


def _head_dims(f: Fields, types: list[LayerType]) -> list[int]:
    """Head size of each layer: ``head_dim``, on full layers ``global_head_dim``, overridden by ``per_layer_config``."""
    plain = f.integer("head_dim")
    wide = plain if f.values.get("global_head_dim") is None else f.integer("global_head_dim")
    dims = [wide if type_ is LayerType.FULL else plain for type_ in types]
    if f.values.get("per_layer_config") is not None:
        overrides = f.section("per_layer_config")
        for key in overrides.values:
            entry = overrides.section(key)
            if not key.isdecimal() or len(key) > 4 or int(key) >= len(types) or set(entry.values) - {"head_dim"}:
                raise overrides.fail(key, f"an object with head_dim under a layer number below {len(types)}")
            dims[int(key)] = entry.integer("head_dim")
    if any(dim % 2 for dim in dims):
        raise f.fail("head_dim", "even head sizes")
    return dims


def _rope(f: Fields) -> dict[LayerType, RopeSettings]:
    outer, table = f.section("rope_parameters"), {}
    for type_, kind in ((LayerType.SLIDING, "default"), (LayerType.FULL, "proportional")):
        s = outer.section(type_)
        s.only("rope_type", kind, why="no other rotary scaling is implemented")
        s.only("factor", None, 1, 1.0, why="RoPE scaling is not supported")
        s.only("attention_factor", None, 1, 1.0, why="RoPE scaling is not supported")
        unknown = set(s.values) - {"rope_type", "rope_theta", "partial_rotary_factor", "factor", "attention_factor"}
        if unknown:
            raise s.fail(min(unknown), "no such field", advice="RoPE scaling is not supported")
        partial = s.number("partial_rotary_factor", default=1.0)
        if partial > 1 or (type_ is LayerType.SLIDING and partial != 1):
            raise s.fail("partial_rotary_factor", "at most 1; 1 on sliding layers")
        table[type_] = RopeSettings(theta=s.number("rope_theta"), partial=partial)
    return table


def _check_turning(f: Fields, types: list[LayerType], head_dims: list[int], rope: dict[LayerType, RopeSettings]) -> None:
    """Every head has a pair that turns: RoPE of none is no op of a program."""
    for type_, head_dim in zip(types, head_dims, strict=True):
        if not rope[type_].rotated_pairs(head_dim):
            raise f.section("rope_parameters").section(type_).fail(
                "partial_rotary_factor", f"a share of the head's {head_dim // 2} pairs that is one at least")


def _donors(f: Fields, types: list[LayerType], shared: int) -> list[int]:
    """The layer whose cache each layer reads: shared layers read the last owner of their type."""
    first = len(types) - shared
    if first < 1:
        raise f.fail("num_kv_shared_layers", f"less than the number of layers, {len(types)}")
    last = {type_: index for index, type_ in enumerate(types[:first])}
    for type_ in types[first:]:
        if type_ not in last:
            raise f.fail("num_kv_shared_layers", f"a {type_} layer before the shared ones, as their donor")
    return [index if index < first else last[type_] for index, type_ in enumerate(types)]


def _heads(f: Fields) -> tuple[int, int]:
    heads, kv_heads = f.integer("num_attention_heads"), f.integer("num_key_value_heads")
    if heads % kv_heads:
        raise f.fail("num_attention_heads", f"a multiple of num_key_value_heads, {kv_heads}")
    return heads, kv_heads


def read_target(path: Path, prefix: str) -> Target:
    """Sizes of a target from its config.json; ``prefix`` of its tensor names. Raises CheckpointError."""
    return target_sizes(Fields(path=path, values=load(path)), prefix)


def target_sizes(outer: Fields, prefix: str) -> Target:
    """Sizes of a target from the fields of its config. Raises CheckpointError."""
    if outer.values.get("model_type") in _OUTER_TARGET:
        outer.only("tie_word_embeddings", None, True, why="an untied LM head is not supported")
        f = outer.section("text_config")
    else:
        f = outer
    f.only("model_type", _WANTED_TARGET, why="name a Gemma 4 text checkpoint with --target")
    _refuse_unsupported(f)
    count, hidden, vocab = f.integer("num_hidden_layers", most=MAX_LAYERS), f.integer("hidden_size"), f.integer("vocab_size", most=MAX_VOCAB)
    types = _layer_types(f, count)
    head_dims, rope = _head_dims(f, types), _rope(f)
    _check_turning(f, types, head_dims, rope)
    shared = f.integer("num_kv_shared_layers", least=0, default=0)
    donors = _donors(f, types, shared)
    if any(head_dims[index] != head_dims[donor] for index, donor in enumerate(donors)):
        raise f.fail("per_layer_config", "equal head sizes in every layer that shares a cache")
    narrow, double = f.integer("intermediate_size"), f.flag("use_double_wide_mlp")
    heads, kv_heads = _heads(f)
    ple = f.integer("hidden_size_per_layer_input", least=0, default=0)
    if ple and f.integer("vocab_size_per_layer_input", default=vocab) != vocab:
        raise f.fail("vocab_size_per_layer_input", f"vocab_size, {vocab}")
    softcap = None if f.values.get("final_logit_softcapping") is None else f.number("final_logit_softcapping")
    layers = tuple(
        Layer(index=index, type=types[index], head_dim=head_dims[index], donor=donors[index],
              intermediate=narrow * 2 if double and donors[index] != index else narrow)
        for index in range(count)
    )
    return Target(
        vocab=vocab, hidden=hidden, query_heads=heads, kv_heads=kv_heads, window=f.integer("sliding_window"),
        eps=f.number("rms_norm_eps", default=1e-6), layers=layers, rope=rope, prefix=prefix,
        max_positions=f.integer("max_position_embeddings"), ple_width=ple, softcap=softcap,
    )


def read_assistant(path: Path, target: Target) -> Assistant:
    """Sizes of an assistant from its config.json, checked against its target. Raises CheckpointError."""
    return assistant_sizes(Fields(path=path, values=load(path)), target)


def assistant_sizes(outer: Fields, target: Target) -> Assistant:
    """Sizes of an assistant from the fields of its config, checked against its target. Raises CheckpointError."""
    outer.only("model_type", "gemma4_assistant", why="name a Gemma 4 assistant checkpoint with --assistant")
    if not outer.flag("use_ordered_embeddings"):
        raise outer.fail("use_ordered_embeddings", "true", advice="an assistant with a dense head is not supported yet")
    f = outer.section("text_config")
    f.only("model_type", _WANTED_TARGET)
    _refuse_unsupported(f)
    count = f.integer("num_hidden_layers", most=MAX_LAYERS)
    types, vocab = _layer_types(f, count), f.integer("vocab_size", most=MAX_VOCAB)
    f.only("num_kv_shared_layers", count, why="an assistant reads its target's caches in every layer")
    f.only("hidden_size_per_layer_input", None, 0, why="an assistant has no per-layer embeddings")
    f.only("use_double_wide_mlp", None, False, why="an assistant has no double-wide MLP")
    f.only("final_logit_softcapping", None, why="an assistant's scores have no softcap")
    _same_as_target(outer, f, target, vocab)
    centroids, top_k = outer.integer("num_centroids"), outer.integer("centroid_intermediate_top_k")
    if vocab % centroids or top_k > centroids:
        raise outer.fail("num_centroids", f"a divisor of vocab_size {vocab}, >= centroid_intermediate_top_k {top_k}")
    heads, kv_heads = _heads(f)
    layers = []
    for index, (type_, head_dim) in enumerate(zip(types, _head_dims(f, types), strict=True)):
        donor = target.last_owner(type_)
        if donor is None or target.layers[donor].head_dim != head_dim:
            raise f.fail("head_dim", f"the head size of the target's last {type_} layer with a cache "
                         f"({'there is none' if donor is None else target.layers[donor].head_dim})")
        layers.append(Layer(index=index, type=type_, head_dim=head_dim, donor=donor,
                            intermediate=f.integer("intermediate_size")))
    return Assistant(
        vocab=vocab, hidden=f.integer("hidden_size"), query_heads=heads, kv_heads=kv_heads, window=target.window,
        eps=f.number("rms_norm_eps", default=1e-6), layers=tuple(layers), rope=_rope(f), backbone=target.hidden,
        centroids=centroids, top_k=top_k,
    )


def _same_as_target(outer: Fields, f: Fields, target: Target, vocab: int) -> None:
    advice = "target and assistant must be made for each other"
    if vocab != target.vocab:
        raise f.fail("vocab_size", f"the target's {target.vocab}", advice=advice)
    if outer.integer("backbone_hidden_size") != target.hidden:
        raise outer.fail("backbone_hidden_size", f"the target's hidden_size {target.hidden}", advice=advice)
    if f.integer("sliding_window") != target.window:
        raise f.fail("sliding_window", f"the target's {target.window}", advice=advice)
    if f.integer("num_key_value_heads") != target.kv_heads:
        raise f.fail("num_key_value_heads", f"the target's {target.kv_heads}", advice=advice)
    if _rope(f) != target.rope:
        raise f.fail("rope_parameters", "the target's: its cached keys are turned already", advice=advice)


def token_id(f: Fields, name: str, value: Any, vocab: int) -> int:
    """``value``, from the field ``name``, as an id of the vocabulary. Raises CheckpointError."""
    if type(value) is not int or not 0 <= value < vocab:
        raise f.fail(name, f"token ids below {vocab}")
    return value


def special_ids(folder: Path, vocab: int) -> tuple[int | None, tuple[int, ...]]:
    """(bos id or None, stop ids in ascending order) from generation_config.json, else config.json."""
    sources = []
    if (folder / "generation_config.json").is_file():
        sources.append(Fields(path=folder / "generation_config.json", values=load(folder / "generation_config.json")))
    outer = Fields(path=folder / "config.json", values=load(folder / "config.json"))
    sources.append(outer)
    if isinstance(outer.values.get("text_config"), dict):
        sources.append(outer.section("text_config"))

    def first(name: str) -> tuple[Fields, Any]:
        return next(((f, f.values[name]) for f in sources if f.values.get(name) is not None), (outer, None))

    bos_fields, bos = first("bos_token_id")
    eos_fields, eos = first("eos_token_id")
    listed = [] if eos is None else eos if isinstance(eos, list) else [eos]
    stops = {token_id(eos_fields, "eos_token_id", value, vocab) for value in listed}
    return None if bos is None else token_id(bos_fields, "bos_token_id", bos, vocab), tuple(sorted(stops))
