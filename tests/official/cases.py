"""Random models over everything that the exporter accepts: every value comes from the one table here, by a seed.

A case is a target, mostly with an assistant, the way it is stored, how it is exported, and what is asked of it. Sizes are
of two kinds: `groups`, where every matrix has columns that q4 can pack, and `odd`, where none but f32 will do.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from gemma4web.program.ir import Q4_GROUPS

NAMES: Final = {"S": "sliding_attention", "F": "full_attention"}
GROUPS: Final = "groups"
EVERY: Final = "every layer"

TABLE: Final[dict[str, tuple[Any, ...]]] = {
    "sizes": (GROUPS, GROUPS, GROUPS, "odd"),
    "family": ("gemma4", "gemma4", "gemma4_unified"),
    # Target. Vocabularies: small enough for drafts to hold by chance, primes, and beyond what one stage of argmax takes.
    "vocab": (24, 64, 97, 256, 1000, 2051, 4099, 6000),
    "layers": ("F", "FF", "SF", "SFF", "SSF", "FSF", "SFSF", "SSFSSF", "FFSSF", "SSSSFSSSSF"),
    "kv_shared": ("none", "most", "some"),
    "heads": (1, 2, 3, 4, 6, 8),
    "queries_per_kv_head": (1, 2, 3, 4, 8),
    "values_from_keys": (False, False, True),
    "full_kv_heads": ("as sliding", "one", "some"),
    "window": (2, 3, 4, 7, 16, 65, 200),
    "sliding_theta": (1e4, 100.0, 5e5),
    "full_theta": (1e6, 1e4, 3e7),
    "partial_rotary_factor": (0.25, 0.25, 0.25, 0.1, 0.5, 0.75, 1.0),  # that of the released models, which is GGUF's only one
    "double_wide_mlp": (False, True),
    "softcap": (None, 30.0, 5.0, 50.0),
    "eps": (1e-6, 1e-5, 1e-3),
    # Weights. Attention has no scale, so that norms of queries and keys set how sharp it is.
    "layer_scalars": ((0.6, 1.0), (0.005, 0.9), (1.0, 3.0)),
    "norms": ((0.75, 1.25), (0.1, 6.0), (20.0, 120.0), (-1.0, 1.0)),
    "query_key_norms": ((0.3, 0.6), (0.1, 0.12), (0.9, 1.2)),
    "gain": (0.5, 1.0, 2.0),
    # Assistant.
    "assistant": (True, True, True, True, True, False),
    "draft_head": ("centroids", "centroids", "dense"),
    "assistant_layers": ("F", "SF", "FSF", "SSSF"),
    "assistant_eps": (1e-6, 1e-4),
    "assistant_queries_per_kv_head": (1, 2, 3),
    "clusters": ("one", "few", "many", "all"),
    "top_k": ("one", "some", "all"),
    # How the checkpoint is stored.
    "dtype": ("float32", "bfloat16", "float16"),
    "sharded": (False, True),
    "prefix": ("text", "multimodal"),
    "spelling": ("per_layer_config", "global_head_dim"),
    # How it is exported, and what is asked of it.
    "logits": ("all", "all", "last"),
    "prefill_rows": (3, 8, 64, 512),
    "prompt_tokens": ((1, 33), (2, 70), (5, 19), (12, 40), (3, 130)),
}
_SIZES: Final[dict[str, dict[str, tuple[int, ...]]]] = {
    GROUPS: {"hidden": (32, 64, 96, 160), "intermediate": (32, 96, 224), "head_dim": (16, 32, 48, 64, 128),
             "full_head_dim": (16, 32, 64, 96, 256), "ple": (0, 32, 64), "assistant_hidden": (32, 64, 96),
             "assistant_intermediate": (32, 64, 160)},
    "odd": {"hidden": (20, 37, 50, 77), "intermediate": (24, 45, 75), "head_dim": (6, 10, 18, 34),
            "full_head_dim": (6, 14, 22, 66), "ple": (0, 7, 12, 20), "assistant_hidden": (12, 30, 51),
            "assistant_intermediate": (18, 33)},
}

_OF_ASSISTANT: Final = ("draft_head", "assistant_layers", "assistant_eps", "assistant_queries_per_kv_head", "clusters", "top_k")

TABLE_SHA256: Final = hashlib.sha256(repr((TABLE, _SIZES)).encode()).hexdigest()
"""Two runs drew from the same table when this is equal."""
REFUSED: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "per-layer vocabulary": ("target", {"vocab_size_per_layer_input": 7, "hidden_size_per_layer_input": 32},
                             "vocab_size_per_layer_input"),
    "every layer shared": ("target", {"num_kv_shared_layers": EVERY}, "num_kv_shared_layers"),
    "biases": ("target", {"attention_bias": True}, "attention_bias"),
    "exact GELU": ("target", {"hidden_activation": "gelu"}, "hidden_activation"),
    "bidirectional": ("target", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    "experts": ("target", {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 8},
                "enable_moe_block"),
    "untied head": ("target", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    "odd head": ("target", {"global_head_dim": 15}, "head_dim"),
    "a head that does not turn": ("target", {"rope_parameters": {
        NAMES["S"]: {"rope_type": "default", "rope_theta": 1e4},
        NAMES["F"]: {"rope_type": "proportional", "rope_theta": 1e4, "partial_rotary_factor": 0.001}}},
                                  "partial_rotary_factor"),
    "query heads": ("target", {"num_attention_heads": 5, "num_key_value_heads": 3, "num_global_key_value_heads": 3},
                    "num_attention_heads"),
    "clusters that do not divide": ("assistant", {"num_centroids": 23}, "num_centroids"),
    "more clusters wanted than there are": ("assistant", {"centroid_intermediate_top_k": 10_000},
                                             "centroid_intermediate_top_k"),
    "another target": ("assistant", {"backbone_hidden_size": 11}, "backbone_hidden_size"),
    "another window": ("assistant.text", {"sliding_window": 9}, "sliding_window"),
    "another vocabulary": ("assistant.text", {"vocab_size": 17}, "vocab_size"),
}
"""What an exporter must refuse, naming the field: whose config (its text part) is changed, how, and the field."""
_PER_LAYER: Final = ("per-layer vocabulary", "experts")
_CENTROIDS: Final = ("clusters that do not divide", "more clusters wanted than there are")
"""Of these the unified family has no fields, and a dense head no use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One draw. ``values``: what was drawn, by the table's names; ``target`` and ``assistant``: fields of the official
    configuration classes, the assistant's as (outer, text) or None; ``refused``: the key of REFUSED to be tried on it."""

    seed: int
    values: dict[str, Any]
    target: dict[str, Any]
    assistant: tuple[dict[str, Any], dict[str, Any]] | None
    refused: str

    @property
    def summary(self) -> str:
        """All values in one line."""
        return " ".join(f"{name}={value}".replace(" ", "") for name, value in self.values.items())

    @property
    def forms(self) -> tuple[str, ...]:
        return ("f32", "q4") if self.values["sizes"] == GROUPS else ("f32",)

    @property
    def shipped_alike(self) -> bool:
        """Whether it has 4-bit weights and an assistant, as what people ship has."""
        return "q4" in self.forms and self.assistant is not None

    def features(self) -> set[tuple[str, Any]]:
        """What it has of the table, (name, value): draws of an assistant or a head that is not there are none."""
        unused = set() if self.assistant else set(_OF_ASSISTANT)
        if self.values["draft_head"] == "dense":
            unused |= {"clusters", "top_k"}
        return {(name, self.values[name]) for name in TABLE if name not in unused}

    def prompts(self) -> list[list[int]]:
        """Token ids of two prompts; 0 is left out, which the official `generate` would take for padding."""
        draw = random.Random(f"{self.seed} prompts")
        return [[draw.randrange(1, self.values["vocab"]) for _ in range(count)] for count in self.values["prompt_tokens"]]


class _Draws:
    """Every name has a stream of its own: another row or value of the table leaves all other draws of a seed as they are."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def choice(self, name: str, choices: Sequence[Any]) -> Any:
        return random.Random(f"{self._seed} {name}").choice(choices)


def _shared_layers(how: str, layers: str, draws: _Draws) -> int:
    """How many layers at the end share: as many as possible leave one layer of each type before them."""
    most = len(layers) - 1 - max(layers.index(type_) for type_ in set(layers))
    return {"none": 0, "most": most, "some": draws.choice("kv_shared_layers", range(most + 1))}[how]


def _clusters(how: str, vocab: int, draws: _Draws) -> int:
    divisors = [count for count in range(2, min(vocab, 512) + 1) if vocab % count == 0] or [1]
    many = draws.choice("centroids", divisors[len(divisors) // 2 :])
    return {"one": 1, "few": divisors[0], "many": many, "all": vocab}[how]


def _full_kv_heads(values: dict[str, Any], draws: _Draws) -> int:
    """Of full layers; they differ from those of sliding layers only where values come from keys."""
    divisors = [count for count in range(1, values["heads"] + 1) if values["heads"] % count == 0]
    some = {"as sliding": values["kv_heads"], "one": 1, "some": draws.choice("kv_heads_of_full", divisors)}
    return some[values["full_kv_heads"]] if values["values_from_keys"] else values["kv_heads"]


def _can_be_refused(name: str, values: dict[str, Any]) -> bool:
    return not (REFUSED[name][0] != "target" and not values["assistant"]
                or name in _PER_LAYER and values["family"] == "gemma4_unified"
                or name in _CENTROIDS and values["draft_head"] == "dense")


def _head_dim(name: str, values: dict[str, Any], draws: _Draws) -> int:
    """A pair of it turns, and the columns of every output projection are whole groups when the sizes are of that kind."""
    counts = (values["heads"], values["assistant_heads"])
    return draws.choice(name, [
        size for size in _SIZES[values["sizes"]][name] if values["partial_rotary_factor"] * size >= 2
        and (values["sizes"] != GROUPS or all(count * size % Q4_GROUPS[0] == 0 for count in counts))])


def draw_case(seed: int) -> Case:
    """The case of a seed, the same wherever it is drawn."""
    draws = _Draws(seed)
    values = {name: draws.choice(name, choices) for name, choices in TABLE.items()}
    sizes = _SIZES[values["sizes"]]
    values |= {name: draws.choice(name, choices) for name, choices in sizes.items() if "head_dim" not in name}
    if values["vocab"] > 2000:  # a large head and table beside large layers is only slow
        values["hidden"] = min(values["hidden"], sizes["hidden"][1])
    if values["softcap"] == 5.0 and values["norms"][1] > 100:  # such scores are all 5 or -5, in float64 too
        values["softcap"] = 50.0
    values["kv_heads"] = values["heads"] // values["queries_per_kv_head"] or 1
    while values["heads"] % values["kv_heads"]:
        values["kv_heads"] -= 1
    values["kv_heads_of_full"] = _full_kv_heads(values, draws)
    values["assistant_heads"] = math.lcm(values["kv_heads"], values["kv_heads_of_full"]) * values["assistant_queries_per_kv_head"]
    if values["family"] == "gemma4_unified":
        values["ple"] = 0
    values |= {name: _head_dim(name, values, draws) for name in ("head_dim", "full_head_dim")}
    # The official assistant looks at both kinds of caches, whatever its own layers are.
    values["assistant"] = values["assistant"] and set(values["layers"]) == set("SF")
    values["kv_shared_layers"] = _shared_layers(values["kv_shared"], values["layers"], draws)
    values["centroids"] = _clusters(values["clusters"], values["vocab"], draws)
    some = draws.choice("best", range(1, values["centroids"] + 1))
    values["best"] = {"one": 1, "some": some, "all": values["centroids"]}[values["top_k"]]
    refused = draws.choice("refused", [name for name in REFUSED if _can_be_refused(name, values)])
    return Case(seed=seed, values=values, target=_target(values), assistant=_assistant(values), refused=refused)


def browser_cases(cases: Sequence[Case], count: int) -> list[Case]:
    """``count`` of the cases, of which three in four have q4 weights and an assistant, as far as there are such: one after
    the other the case whose features are rarest among those chosen before it, the earlier of equals."""
    seen: Counter[tuple[str, Any]] = Counter()
    left, chosen = list(cases), list[Case]()
    for number in range(min(count, len(left))):
        wanted = [case for case in left if case.shipped_alike == (number % 4 != 3)] or left
        best = max(wanted, key=lambda case: sum(4.0 ** -seen[feature] for feature in case.features()))
        left.remove(best)
        chosen.append(best)
        seen.update(best.features())
    return chosen


def _text(values: dict[str, Any], layers: str) -> dict[str, Any]:
    """Fields that target and assistant must have in common."""
    return {
        "vocab_size": values["vocab"], "num_hidden_layers": len(layers), "layer_types": [NAMES[type_] for type_ in layers],
        "num_key_value_heads": values["kv_heads"], "head_dim": values["head_dim"],
        "global_head_dim": values["full_head_dim"], "sliding_window": values["window"], "max_position_embeddings": 512,
        "rope_parameters": {
            NAMES["S"]: {"rope_type": "default", "rope_theta": values["sliding_theta"]},
            NAMES["F"]: {"rope_type": "proportional", "rope_theta": values["full_theta"],
                         "partial_rotary_factor": values["partial_rotary_factor"]}},
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": None, "attention_k_eq_v": values["values_from_keys"],
        "num_global_key_value_heads": values["kv_heads_of_full"] if values["values_from_keys"] else None,
    }


def _per_layer_embeddings(values: dict[str, Any], width: int) -> dict[str, Any]:
    """Fields of them, which the unified family does not have."""
    if values["family"] == "gemma4_unified":
        return {}
    return {"hidden_size_per_layer_input": width, "vocab_size_per_layer_input": values["vocab"] if width else 0}


def _target(values: dict[str, Any]) -> dict[str, Any]:
    return _text(values, values["layers"]) | {
        "hidden_size": values["hidden"], "intermediate_size": values["intermediate"],
        "num_attention_heads": values["heads"], "num_kv_shared_layers": values["kv_shared_layers"],
        "use_double_wide_mlp": values["double_wide_mlp"], "final_logit_softcapping": values["softcap"],
        "rms_norm_eps": values["eps"],
    } | _per_layer_embeddings(values, values["ple"])


def _assistant(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    if not values["assistant"]:
        return None
    layers = values["assistant_layers"]
    text = _text(values, layers) | {
        "hidden_size": values["assistant_hidden"], "intermediate_size": values["assistant_intermediate"],
        "num_attention_heads": values["assistant_heads"], "num_kv_shared_layers": len(layers),
        "use_double_wide_mlp": False, "final_logit_softcapping": None, "rms_norm_eps": values["assistant_eps"],
    } | _per_layer_embeddings(values, 0)
    outer = {"backbone_hidden_size": values["hidden"], "use_ordered_embeddings": values["draft_head"] == "centroids",
             "num_centroids": values["centroids"], "centroid_intermediate_top_k": values["best"]}
    return outer, text
