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
from transformers import (
    Gemma4AssistantConfig,
    Gemma4AssistantForCausalLM,
    Gemma4Config,
    Gemma4ForCausalLM,
    Gemma4ForConditionalGeneration,
    Gemma4TextConfig,
)
from transformers.generation.candidate_generator import SinglePositionMultiTokenCandidateGenerator as Drafter

from gemma4web.program.ir import DRAFTS

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

    def wide(self) -> bool:
        return next(self.target.parameters()).dtype == torch.float64

    @torch.no_grad()
    def logits(self, ids: list[int]) -> Array:
        """Of every row of one pass without a cache: [len(ids), vocab]."""
        with float64() if self.wide() else nullcontext():
            return np.asarray(self.target(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().numpy())

    @torch.no_grad()
    def decode(self, prompt: list[int], count: int) -> Decoded:
        """``count`` greedy tokens through the caches, alone and with the assistant."""
        ids = torch.tensor([prompt])
        common: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "max_new_tokens": count, "do_sample": False}
        with float64() if self.wide() else nullcontext():
            tokens = self.target.generate(ids, **common)[0, len(prompt):].tolist()
            found = Decoded(prompt=prompt, tokens=tokens, logits=self.logits([*prompt, *tokens[:-1]]))
            if self.assistant is None:
                return found
            with _recorded_rounds() as rounds:
                speculative = self.target.generate(ids, assistant_model=self.assistant, **common)[0, len(prompt):].tolist()
        return Decoded(prompt=prompt, tokens=tokens, logits=found.logits, speculative=speculative,
                       rounds=[played for played in rounds if played.pos >= len(prompt)])


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


def _configs(case: Case) -> tuple[Gemma4TextConfig, Gemma4AssistantConfig | None]:
    target = Gemma4TextConfig(**case.target)
    if case.assistant is None:
        return target, None
    outer, text = case.assistant
    return target, Gemma4AssistantConfig(**outer, text_config=Gemma4TextConfig(**text))


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
        target: Any = Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=None, audio_config=None))
    else:
        target = Gemma4ForCausalLM(text)
    assistant = None if outer is None else Gemma4AssistantForCausalLM(outer)
    for model in (target, assistant):
        if model is not None:
            _random_weights(model, case.values, generator)
    return Models(target, assistant)


@torch.no_grad()
def align_drafts(models: Models, prompts: list[list[int]], count: int) -> None:
    """Renames the tokens of the assistant's head, so that what it drafts most often is what the target wanted then.

    Drafts of a random assistant never hold; after this some do. It stays one of the random models: rows of the head and
    ids of the ordering are permuted alike.
    """
    if models.assistant is None:
        return
    wishes: Counter[tuple[int, int]] = Counter()
    for found in (models.decode(prompt, count) for prompt in prompts):
        text = [*found.prompt, *found.tokens]
        for played in found.rounds:
            wishes.update(zip(played.drafts, text[played.pos + 1 :], strict=False))
    names: dict[int, int] = {}
    for (draft, wanted), _ in wishes.most_common():
        if draft not in names and wanted not in names.values():
            names[draft] = wanted
    vocab = models.assistant.vocab_size
    rest = zip((token for token in range(vocab) if token not in names),
               sorted(set(range(vocab)) - set(names.values())), strict=True)
    renamed = torch.tensor([name for _, name in sorted([*names.items(), *rest])])
    table, ordering = models.assistant.model.embed_tokens.weight, models.assistant.masked_embedding.token_ordering
    table[renamed] = table.clone()
    ordering.copy_(renamed[ordering])


def save(models: Models, case: Case, folder: Path) -> None:
    """target/ and assistant/ by the library's own `save_pretrained`, in the form that the case says."""
    dtype = getattr(torch, case.values["dtype"])
    size = {"max_shard_size": "40KB"} if case.values["sharded"] else {}
    for name, model in (("target", models.target), ("assistant", models.assistant)):
        if model is not None:
            model.to(dtype).save_pretrained(folder / name, **size)
            if case.values["spelling"] == "global_head_dim":
                _spell_as_published(folder / name / "config.json", case.values["full_head_dim"])


def _spell_as_published(path: Path, head_dim: int) -> None:
    """The library writes head sizes layer by layer; published files name that of full layers once."""
    config = json.loads(path.read_bytes())
    text = config.get("text_config", config)
    if text.pop("per_layer_config", None) is not None:
        text["global_head_dim"] = head_dim
    path.write_text(json.dumps(config), encoding="utf-8")


def load(case: Case, folder: Path) -> Models:
    """What the library makes of the folders of `save`, computing in f32."""
    kind = Gemma4ForConditionalGeneration if case.values["prefix"] == "multimodal" else Gemma4ForCausalLM
    assistant = None if case.assistant is None else Gemma4AssistantForCausalLM.from_pretrained(
        folder / "assistant", dtype=torch.float32)
    return Models(kind.from_pretrained(folder / "target", dtype=torch.float32), assistant)


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
    target = dict(case.target)
    if whose == "target":
        changes = {name: len(target["layer_types"]) if value == EVERY else value for name, value in changes.items()}
        Gemma4TextConfig(**(target | changes)).save_pretrained(folder / "target")
        return named
    assert case.assistant is not None
    outer, text = (dict(part) for part in case.assistant)
    (outer if whose == "assistant" else text).update(changes)
    Gemma4AssistantConfig(**outer, text_config=Gemma4TextConfig(**text)).save_pretrained(folder / "assistant")
    return named
