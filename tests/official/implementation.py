"""The official implementation: random models of its own classes, saved by it, and what it computes in f32 and float64.

Its norms and rotary angles are f32 whatever the model's dtype; `float64` lets that very code run in float64 throughout.
Needs the extra `official`.
"""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tests.official.cases import EVERY, REFUSED, Case
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator as Drafter

from gemma4web.program.ir import DRAFTS

FAMILIES: Final = {"gemma4": "Gemma4", "gemma4_unified": "Gemma4Unified"}
"""What the names of the library's classes begin with."""
Array = npt.NDArray[np.float64]
VERSIONS: Final = {"torch": torch.__version__, "transformers": transformers.__version__}

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()


@contextmanager
def float64() -> Iterator[None]:
    """Inside, what the implementation calls float is float64."""
    with mock.patch.object(torch, "float", torch.float64), mock.patch.object(torch, "float32", torch.float64), \
            mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
        yield


def _class(case: Case, name: str) -> Any:
    return getattr(transformers, FAMILIES[case.values["family"]] + name)


def _target_class(case: Case) -> Any:
    return _class(case, "ForConditionalGeneration" if case.values["prefix"] == "multimodal" else "ForCausalLM")


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One round as the library played it: where, what it drafted, how many held, and the drafts' logits [drafts, vocab]."""

    pos: int
    drafts: list[int]
    accepted: int
    emitted: list[int]
    logits: Array


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoded:
    """``logits`` [prompt + tokens - 1, vocab]: of every prompt row, then of the row of every token but the last.
    ``speculative``: the same text with the assistant; None without one."""

    prompt: list[int]
    tokens: list[int]
    logits: Array
    speculative: list[int] | None = None
    rounds: list[Round] = field(default_factory=list)


class Models:
    """A target and, mostly, its assistant, in one dtype."""

    def __init__(self, target: Any, assistant: Any | None) -> None:
        self.target, self.assistant = target.eval(), None if assistant is None else assistant.eval()
        if assistant is not None:
            assistant.generation_config.num_assistant_tokens = DRAFTS
            assistant.generation_config.num_assistant_tokens_schedule = "constant"

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """float64 where the weights are. The library slices per-layer embeddings that a model does not have before layers
        that share caches, unless all hidden states are wanted."""
        text, wide = self.target.config.get_text_config(), next(self.target.parameters()).dtype == torch.float64
        with float64() if wide else nullcontext(), mock.patch.object(text, "output_hidden_states", True) \
                if getattr(text, "hidden_size_per_layer_input", 1) == 0 else nullcontext():
            yield

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Array:
        """Of every row of one pass without a cache: [len(ids), vocab]."""
        with self._computing():
            return np.asarray(self.target(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().numpy())

    def _generate(self, prompt: list[int], count: int, **more: Any) -> list[int]:
        ids = torch.tensor([prompt])
        text = self.target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False, **more)
        return text[0, len(prompt):].tolist()

    @torch.no_grad()
    def speculate(self, prompt: list[int], count: int) -> tuple[list[int], list[Round]]:
        """``count`` greedy tokens with the assistant, and the rounds that they came in."""
        with self._computing(), _recorded_rounds() as rounds:
            tokens = self._generate(prompt, count, assistant_model=self.assistant)
        return tokens, [played for played in rounds if played.pos >= len(prompt)]

    @torch.no_grad()
    def decode(self, prompt: list[int], count: int) -> Decoded:
        """``count`` greedy tokens through the caches, alone and with the assistant."""
        with self._computing():
            tokens = self._generate(prompt, count)
        speculative, rounds = (None, []) if self.assistant is None else self.speculate(prompt, count)
        return Decoded(prompt=prompt, tokens=tokens, logits=self.logits([*prompt, *tokens[:-1]]), speculative=speculative,
                       rounds=rounds)


@contextmanager
def _recorded_rounds() -> Iterator[list[Round]]:
    """Notes every draft and its verification while the library decodes with an assistant."""
    rounds: list[Round] = []
    proposed: dict[str, Any] = {}
    propose, learn = Drafter.get_candidates, Drafter.update_candidate_strategy

    def noted_propose(self: Drafter, ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = propose(self, ids, *args, **kwargs)
        logits = np.zeros((0, 0)) if result[1] is None else result[1][0].double().numpy()
        proposed.update(pos=ids.shape[1] - 1, drafts=result[0][0, ids.shape[1]:].tolist(), logits=logits)
        return result

    def noted_learn(self: Drafter, ids: torch.Tensor, scores: torch.Tensor, matches: Any) -> Any:
        rounds.append(Round(**proposed, accepted=int(matches), emitted=ids[0, proposed["pos"] + 1 :].tolist()))
        return learn(self, ids, scores, matches)

    with mock.patch.object(Drafter, "get_candidates", noted_propose), \
            mock.patch.object(Drafter, "update_candidate_strategy", noted_learn):
        yield rounds


def _configs(case: Case) -> tuple[Any, Any | None]:
    text = _class(case, "TextConfig")
    if case.assistant is None:
        return text(**case.target), None
    outer, own = case.assistant
    return text(**case.target), _class(case, "AssistantConfig")(**outer, text_config=text(**own))


def _random_weights(model: torch.nn.Module, values: dict[str, Any], generator: torch.Generator) -> None:
    """Matrices of variance gain^2 / columns; vectors spread evenly over the ranges of the case."""
    def spread(value: torch.Tensor, low: float, high: float) -> None:
        value.copy_(low + (high - low) * torch.rand(value.shape, generator=generator))

    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name.endswith("layer_scalar"):
            spread(value, *values["layer_scalars"])
        elif name.endswith(("q_norm.weight", "k_norm.weight")):
            spread(value, *values["query_key_norms"])
        elif "norm" in name and value.ndim == 1:
            spread(value, *values["norms"])
        elif name.endswith("token_ordering"):
            value.copy_(torch.randperm(len(value), generator=generator))
        elif value.ndim == 2 and value.is_floating_point():
            gain = 1.0 if "embed_tokens" in name else values["gain"]
            value.copy_(torch.randn(value.shape, generator=generator) * gain / value.shape[1] ** 0.5)


@torch.no_grad()
def build(case: Case) -> Models:
    """Random models of the official classes, f32."""
    generator = torch.Generator().manual_seed(case.seed)
    text, outer = _configs(case)
    if case.values["prefix"] == "multimodal":
        text = _class(case, "Config")(text_config=text, vision_config=None, audio_config=None)
    target, assistant = _target_class(case)(text), None if outer is None else _class(case, "AssistantForCausalLM")(outer)
    for model in (target, assistant):
        if model is not None:
            _random_weights(model, case.values, generator)
    return Models(target, assistant)


@torch.no_grad()
def align_drafts(models: Models, prompt: list[int], count: int) -> None:
    """Renames the tokens of the assistant's head, so that what it drafts most often is what the target wanted then.

    Drafts of a random assistant never hold; after this some do. It stays one of the random models: rows of the head and
    ids of the ordering are permuted alike.
    """
    if models.assistant is None:
        return
    tokens, rounds = models.speculate(prompt, count)
    wishes: Counter[tuple[int, int]] = Counter()
    for played in rounds:
        wishes.update(zip(played.drafts, [*prompt, *tokens][played.pos + 1 :], strict=False))
    names: dict[int, int] = {}
    for (draft, wanted), _ in wishes.most_common():
        if draft not in names and wanted not in names.values():
            names[draft] = wanted
    vocab = models.assistant.vocab_size
    rest = zip((token for token in range(vocab) if token not in names),
               sorted(set(range(vocab)) - set(names.values())), strict=True)
    renamed = torch.tensor([name for _, name in sorted([*names.items(), *rest])])
    table = models.assistant.model.embed_tokens.weight
    table[renamed] = table.clone()
    if (head := models.assistant.masked_embedding) is not None:
        head.token_ordering.copy_(renamed[head.token_ordering])


def save(models: Models, case: Case, folder: Path) -> None:
    """target/ and assistant/ by the library's own `save_pretrained`, in the form that the case says."""
    dtype = getattr(torch, case.values["dtype"])
    size = {"max_shard_size": "40KB"} if case.values["sharded"] else {}
    for name, model in (("target", models.target), ("assistant", models.assistant)):
        if model is not None:
            model.to(dtype).save_pretrained(folder / name, **size)
            if case.values["spelling"] == "global_head_dim":
                _spell_as_published(folder / name / "config.json", case.target)


def _spell_as_published(path: Path, fields: dict[str, Any]) -> None:
    """The library writes the heads of full layers layer by layer; published files do it once."""
    config = json.loads(path.read_bytes())
    text = config.get("text_config", config)
    if text.pop("per_layer_config", None) is not None:
        text |= {name: fields[name] for name in ("global_head_dim", "num_global_key_value_heads")}
    path.write_text(json.dumps(config), encoding="utf-8")


def load(case: Case, folder: Path) -> Models:
    """What the library makes of the folders of `save`, computing in f32."""
    assistant = None if case.assistant is None else _class(case, "AssistantForCausalLM").from_pretrained(
        folder / "assistant", dtype=torch.float32)
    return Models(_target_class(case).from_pretrained(folder / "target", dtype=torch.float32), assistant)


def widened(models: Models) -> Models:
    """The same models in float64, their constants (embedding scales, rotary frequencies) computed in it too."""
    def widen(model: Any) -> Any:
        config = copy.deepcopy(model.config)
        for part in (config, config.get_text_config()):
            part.dtype = torch.float64
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with float64():
                wide = type(model)(config)
        finally:
            torch.set_default_dtype(before)
        wide.load_state_dict(model.state_dict())
        return wide

    return Models(widen(models.target), None if models.assistant is None else widen(models.assistant))


@torch.no_grad()
def replace_weights(models: Models, weights: Mapping[str, Array], assistant_prefix: str) -> None:
    """Puts an exported model's values, unpacked, in place of the checkpoint's; every weight must have a value."""
    for prefix, model in (("", models.target), (assistant_prefix, models.assistant)):
        if model is not None:
            own = {name: torch.from_numpy(value.copy()) for full, value in weights.items()
                   if full.startswith(prefix) and (prefix or not full.startswith(assistant_prefix))
                   for name in [full.removeprefix(prefix)]}
            _replace(model, own)


def _replace(model: torch.nn.Module, own: dict[str, torch.Tensor]) -> None:
    state = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}  # tied
    if set(state) != set(own):
        raise ValueError(f"the exported weights and the library's differ in {sorted(set(state) ^ set(own))}")
    for name, value in state.items():
        value.copy_(own[name].reshape(value.shape))


def save_refused(case: Case, folder: Path) -> str:
    """Writes configs that the exporter must refuse over those of ``folder``; returns the field that it must name."""
    whose, changes, named = REFUSED[case.refused]
    text = _class(case, "TextConfig")
    if whose == "target":
        changes = {name: len(case.target["layer_types"]) if value == EVERY else value for name, value in changes.items()}
        text(**(case.target | changes)).save_pretrained(folder / "target")
        return named
    assert case.assistant is not None
    outer, own = (dict(part) for part in case.assistant)
    (outer if whose == "assistant" else own).update(changes)
    _class(case, "AssistantConfig")(**outer, text_config=text(**own)).save_pretrained(folder / "assistant")
    return named
