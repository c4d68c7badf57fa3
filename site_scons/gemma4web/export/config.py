"""config.json of a Gemma 4 text model or assistant -> the sizes that the graph builders need.

A GGUF file's metadata become the fields of a config.json first, so that every check is made once. Whatever this project
does not implement is refused here, naming the field: a model that exports runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import CheckpointError
from gemma4web.export import json_file
from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target

WHOLE: Final = "fetch this file of the checkpoint again, and name the folder that holds config.json and safetensors"
_DAMAGED: Final = "this project supports no such model, or the file is damaged: fetch it again"
_TARGET: Final = "name a Gemma 4 text checkpoint with --target; no other family of models is supported"
_UNQUANTISED: Final = "export from the unquantised checkpoint, or from a GGUF file in Q4_0"
_MADE_FOR_EACH_OTHER: Final = "target and assistant must be made for each other"
_DENSE_ONLY: Final = "mixture-of-experts models (26B-A4B) are not supported: name a dense one, as E2B, E4B, 12B or 31B"
_OUTER_TARGET: Final = {"gemma4": "gemma4_text", "gemma4_unified": "gemma4_unified_text"}
_ASSISTANT: Final = {"gemma4_assistant": "gemma4_text", "gemma4_unified_assistant": "gemma4_unified_text"}
"""The type of the text model inside, where that does not say it."""
_COMMON: Final[dict[str, Any]] = {
    "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh",
    "rms_norm_eps": 1e-6, "num_kv_shared_layers": 0,
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "gemma4_text": {**_COMMON, "max_position_embeddings": 131072, "sliding_window": 512,
                    "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144},
    "gemma4_unified_text": {**_COMMON, "max_position_embeddings": 262144, "sliding_window": 1024},
}
"""What Hugging Face transformers 5.24 takes for a field that a config.json leaves out, by the type of the text model."""
_GLOBAL_HEAD_DIM: Final = 512
_FULL_EVERY: Final = 6
_ROPE: Final = {str(LayerType.SLIDING): {"rope_type": "default", "rope_theta": 1e4},
                str(LayerType.FULL): {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}}
_CENTROIDS: Final = 2048
_TOP_K: Final = 32
_BOS: Final = 2
_EOS: Final = 1
_LEAST_F32: Final = 2.0**-126
_MOST_F32: Final = 2.0**127 * (2 - 2.0**-23)
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
        """A finite number > 0 that an f32 holds, as a program stores it."""
        value = self.values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not _LEAST_F32 <= value <= _MOST_F32:
            raise self.fail(name, "a finite number > 0 that an f32 holds")
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


def _text(f: Fields, kind: Any, why: str) -> Fields:
    """The fields of a text model, those left out by their defaults; ``kind`` when it does not name its type itself."""
    kind = f.values.get("model_type", kind)
    if not isinstance(kind, str) or kind not in _DEFAULTS:
        f.only("model_type", *_DEFAULTS, why=why)
    f = dataclasses.replace(f, values={**_DEFAULTS[kind], **f.values})
    if kind == "gemma4_unified_text":
        f.only("hidden_size_per_layer_input", None, 0, why="models of this type have no per-layer embeddings")
    return f


def _refuse_unsupported(f: Fields) -> None:
    f.only("enable_moe_block", None, False, why=_DENSE_ONLY)
    f.only("num_experts", None, 0, why=_DENSE_ONLY)
    f.only("attention_bias", None, False, why="attention biases are not supported")
    f.only("hidden_activation", "gelu_pytorch_tanh", why="only the tanh form of GELU is implemented")
    f.only("use_bidirectional_attention", None, False, "vision", why="only causal attention is implemented")
    f.only("tie_word_embeddings", None, True, why="an untied LM head is not supported")
    f.only("quantization_config", None, why=_UNQUANTISED)


def _layer_types(f: Fields, count: int) -> list[LayerType]:
    types = f.values.get("layer_types")
    if types is None:
        types = [LayerType.FULL if (index + 1) % _FULL_EVERY == 0 or index + 1 == count else LayerType.SLIDING
                 for index in range(count)]
    if not isinstance(types, list) or len(types) != count or any(name not in list(LayerType) for name in types):
        raise f.fail("layer_types", f"a list of {count} entries, each sliding_attention or full_attention")
    if types[-1] != LayerType.FULL:
        raise f.fail("layer_types", "full_attention for the last layer", advice="Gemma 4 has no model without")
    return [LayerType(name) for name in types]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Heads:
    """Heads of one layer's cache."""

    head_dim: int
    num_key_value_heads: int


def _heads(f: Fields, types: list[LayerType]) -> list[_Heads]:
    """Those of each layer. A full layer has ``global_head_dim`` and, where its values come from its keys,
    ``num_global_key_value_heads``; where there is a ``per_layer_config``, only that says how layers differ."""
    plain = _Heads(head_dim=f.integer("head_dim"), num_key_value_heads=f.integer("num_key_value_heads"))
    heads = [plain] * len(types)
    if "per_layer_config" not in f.values:
        wide = dataclasses.replace(plain, head_dim=f.integer("global_head_dim", default=_GLOBAL_HEAD_DIM))
        if f.flag("attention_k_eq_v") and f.values.get("num_global_key_value_heads") is not None:
            wide = dataclasses.replace(wide, num_key_value_heads=f.integer("num_global_key_value_heads"))
        heads = [wide if type_ is LayerType.FULL else plain for type_ in types]
    elif f.values["per_layer_config"] is not None:
        overrides, known = f.section("per_layer_config"), {part.name for part in dataclasses.fields(_Heads)}
        for key in overrides.values:
            entry = overrides.section(key)
            if not key.isdecimal() or len(key) > 4 or int(key) >= len(types) or set(entry.values) - known:
                raise overrides.fail(key, f"an object with {' and '.join(sorted(known))} under a layer number below {len(types)}")
            heads[int(key)] = dataclasses.replace(heads[int(key)], **{name: entry.integer(name) for name in entry.values})
    if any(layer.head_dim % 2 for layer in heads):
        raise f.fail("head_dim", "even head sizes")
    query_heads = f.integer("num_attention_heads")
    for count in {layer.num_key_value_heads for layer in heads}:
        if query_heads % count:
            raise f.fail("num_attention_heads", f"a multiple of every layer's number of KV heads, {count} among them")
    return heads


def _rope(f: Fields) -> dict[LayerType, RopeSettings]:
    if f.values.get("rope_parameters") is None:
        f = dataclasses.replace(f, values={**f.values, "rope_parameters": _ROPE})
    outer, table = f.section("rope_parameters"), {}
    for type_, kind in ((LayerType.SLIDING, "default"), (LayerType.FULL, "proportional")):
        s = outer.section(type_)
        s = dataclasses.replace(s, values={"rope_type": "default", **s.values})
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


def read_target(path: Path, prefix: str) -> Target:
    """Sizes of a target from its config.json; ``prefix`` of its tensor names. Raises CheckpointError."""
    return target_sizes(Fields(path=path, values=load(path)), prefix)


def target_sizes(outer: Fields, prefix: str) -> Target:
    """Sizes of a target from the fields of its config. Raises CheckpointError."""
    wanted, type_ = _TARGET, outer.values.get("model_type")
    outer.only("quantization_config", None, why=_UNQUANTISED)
    if isinstance(type_, str) and type_ in _ASSISTANT:
        wanted = "it is an assistant: name it with --assistant, and its model with --target"
    if isinstance(type_, str) and type_ in _OUTER_TARGET:
        outer.only("tie_word_embeddings", None, True, why="an untied LM head is not supported")
        f = _text(outer.section("text_config"), _OUTER_TARGET[type_], wanted)
    else:
        f = _text(outer, None, wanted)
    _refuse_unsupported(f)
    count, hidden, vocab = f.integer("num_hidden_layers", most=MAX_LAYERS), f.integer("hidden_size"), f.integer("vocab_size", most=MAX_VOCAB)
    types = _layer_types(f, count)
    heads, donors = _heads(f, types), _donors(f, types, f.integer("num_kv_shared_layers", least=0))
    if any(heads[index] != heads[donor] for index, donor in enumerate(donors)):
        raise f.fail("per_layer_config", "heads of equal size and number in every layer that shares a cache")
    rope = _rope(f)
    _check_turning(f, types, [layer.head_dim for layer in heads], rope)
    narrow, double = f.integer("intermediate_size"), f.flag("use_double_wide_mlp")
    from_keys = f.flag("attention_k_eq_v")
    ple = f.integer("hidden_size_per_layer_input", least=0, default=0)
    if ple and f.integer("vocab_size_per_layer_input") != vocab:
        raise f.fail("vocab_size_per_layer_input", f"vocab_size, {vocab}")
    softcap = None if f.values.get("final_logit_softcapping") is None else f.number("final_logit_softcapping")
    layers = tuple(
        Layer(index=index, type=types[index], head_dim=heads[index].head_dim, kv_heads=heads[index].num_key_value_heads,
              donor=donors[index], intermediate=narrow * 2 if double and donors[index] != index else narrow,
              values_from_keys=from_keys and types[index] is LayerType.FULL and donors[index] == index)
        for index in range(count)
    )
    return Target(
        vocab=vocab, hidden=hidden, query_heads=f.integer("num_attention_heads"), window=f.integer("sliding_window"),
        eps=f.number("rms_norm_eps"), layers=layers, rope=rope, prefix=prefix,
        max_positions=f.integer("max_position_embeddings"), ple_width=ple, softcap=softcap,
    )


def read_assistant(path: Path, target: Target, centroids: int) -> Assistant:
    """Sizes of an assistant from its config.json, checked against its target. Raises CheckpointError."""
    return assistant_sizes(Fields(path=path, values=load(path)), target, centroids)


def assistant_sizes(outer: Fields, target: Target, centroids: int) -> Assistant:
    """Sizes of an assistant from the fields of its config, checked against its target.

    ``centroids``: rows of its table of centroids, 0 without one; its config does not say reliably which head it has.
    Raises CheckpointError.
    """
    outer.only("model_type", *_ASSISTANT, why="name a Gemma 4 assistant checkpoint with --assistant, of the same model as the target")
    outer.only("quantization_config", None, why=_UNQUANTISED)
    outer.only("tie_word_embeddings", None, True, why="an untied LM head is not supported")
    f = _text(outer.section("text_config"), _ASSISTANT[outer.values["model_type"]], _DAMAGED)
    _refuse_unsupported(f)
    count = f.integer("num_hidden_layers", most=MAX_LAYERS)
    types, vocab = _layer_types(f, count), f.integer("vocab_size", most=MAX_VOCAB)
    f.only("num_kv_shared_layers", 0, count, why="an assistant reads its target's caches in every layer")
    f.only("hidden_size_per_layer_input", None, 0, why="an assistant has no per-layer embeddings")
    f.only("use_double_wide_mlp", None, False, why="an assistant has no double-wide MLP")
    f.only("final_logit_softcapping", None, why="an assistant's scores have no softcap")
    _same_as_target(outer, f, target, vocab)
    layers = []
    for index, (type_, heads) in enumerate(zip(types, _heads(f, types), strict=True)):
        donor = target.last_owner(type_)
        if donor is None:
            raise f.fail("layer_types", f"no {type_} layer, as no such layer of the target has a cache")
        cache = target.layers[donor]
        for name, found, wanted in (("head_dim", heads.head_dim, cache.head_dim),
                                    ("num_key_value_heads", heads.num_key_value_heads, cache.kv_heads)):
            if found != wanted:
                raise f.fail(name, f"in layer {index} the target's {wanted}, of its last {type_} layer with a cache, found "
                             f"{found}", advice=_MADE_FOR_EACH_OTHER)
        layers.append(Layer(index=index, type=type_, head_dim=heads.head_dim, kv_heads=heads.num_key_value_heads,
                            donor=donor, intermediate=f.integer("intermediate_size")))
    return Assistant(
        vocab=vocab, hidden=f.integer("hidden_size"), query_heads=f.integer("num_attention_heads"), window=target.window,
        eps=f.number("rms_norm_eps"), layers=tuple(layers), rope=_rope(f), backbone=target.hidden,
        centroids=centroids, top_k=_top_k(outer, vocab, centroids) if centroids else 0,
    )


def _top_k(outer: Fields, vocab: int, centroids: int) -> int:
    """How many centroids' tokens are candidates of a draft."""
    if outer.integer("num_centroids", default=_CENTROIDS) != centroids or vocab % centroids:
        raise outer.fail("num_centroids", f"{centroids}, the rows of the table of centroids, a divisor of vocab_size {vocab}")
    return outer.integer("centroid_intermediate_top_k", default=_TOP_K, most=centroids)


def _same_as_target(outer: Fields, f: Fields, target: Target, vocab: int) -> None:
    advice = _MADE_FOR_EACH_OTHER
    if vocab != target.vocab:
        raise f.fail("vocab_size", f"the target's {target.vocab}", advice=advice)
    if outer.integer("backbone_hidden_size") != target.hidden:
        raise outer.fail("backbone_hidden_size", f"the target's hidden_size {target.hidden}", advice=advice)
    if f.integer("sliding_window") != target.window:
        raise f.fail("sliding_window", f"the target's {target.window}", advice=advice)
    if _rope(f) != target.rope:
        raise f.fail("rope_parameters", "the target's: its cached keys are turned already", advice=advice)


def token_id(f: Fields, name: str, value: Any, vocab: int) -> int:
    """``value``, from the field ``name``, as an id of the vocabulary. Raises CheckpointError."""
    if type(value) is not int or not 0 <= value < vocab:
        raise f.fail(name, f"token ids below {vocab}")
    return value


def special_ids(folder: Path, vocab: int) -> tuple[int | None, tuple[int, ...]]:
    """(bos id or None, stop ids in ascending order) from generation_config.json, else config.json.

    Null is none; an id that no file mentions is Gemma's own.
    """
    sources = []
    if (folder / "generation_config.json").is_file():
        sources.append(Fields(path=folder / "generation_config.json", values=load(folder / "generation_config.json")))
    outer = Fields(path=folder / "config.json", values=load(folder / "config.json"))
    sources.append(outer)
    if isinstance(outer.values.get("text_config"), dict):
        sources.append(outer.section("text_config"))

    def first(name: str, default: int) -> tuple[Fields, Any]:
        absent = None if any(name in f.values for f in sources) else default
        return next(((f, f.values[name]) for f in sources if f.values.get(name) is not None), (outer, absent))

    bos_fields, bos = first("bos_token_id", _BOS)
    eos_fields, eos = first("eos_token_id", _EOS)
    listed = [] if eos is None else eos if isinstance(eos, list) else [eos]
    stops = {token_id(eos_fields, "eos_token_id", value, vocab) for value in listed}
    return None if bos is None else token_id(bos_fields, "bos_token_id", bos, vocab), tuple(sorted(stops))
