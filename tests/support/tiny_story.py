"""A story model of a few hundred kilobytes with random weights, as training writes it, and models repacked as GGUF.

Target: sliding, full, sliding, full, the last two sharing caches; hidden 32, heads of 32 and 64, window 4, the whole
tokenizer of 4096 pieces. Assistant: hidden 64, a sliding and a full layer, 64 clusters.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from fixtures.story.training import pack
from safetensors.numpy import save_file

from gemma4web.export.tensors import Checkpoint

Tensors = dict[str, npt.NDArray[Any]]

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
TOKENIZER: dict[str, Any] = json.loads((FIXTURES / "tokenizer/tok4096.json").read_text(encoding="utf-8"))
CONFIG: dict[str, Any] = {
    "tokenizer": "../../tokenizer/tok4096.json",
    "target": {"vocab": 4096, "hidden": 32, "layers": 4, "full_every": 2, "heads": 2, "head_dim": 32,
               "global_head_dim": 64, "intermediate": 32, "window": 4, "per_layer": 32, "shared": 2, "softcap": 30.0},
    "assistant": {"hidden": 64, "intermediate": 96, "layers": 2, "clusters": 64, "top": 4},
}
TINY_RAND: dict[str, Any] = {
    "target": {"vocab": 1024, "hidden": 128, "layers": 10, "full_every": 5, "heads": 4, "head_dim": 32,
               "global_head_dim": 64, "intermediate": 256, "window": 8, "per_layer": 32, "shared": 5, "softcap": 30.0},
    "assistant": {"hidden": 64, "intermediate": 128, "layers": 4, "clusters": 64, "top": 8},
}
"""Sizes of fixtures/tiny-rand."""


class _Packed:
    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self.made: Tensors = {}

    def matrix(self, name: str, rows: int, columns: int) -> None:
        """Codes of the whole range; steps of both signs, zeros and subnormals among them."""
        steps = self._random.normal(0, 0.02, (rows, columns // 32)).astype(np.float16)
        steps.reshape(-1)[: 4] = [0.0, -0.0, 6e-8, -65504.0] if steps.size > 64 else steps.reshape(-1)[: 4]
        self.made[f"{name}.weight.codes"] = self._random.integers(0, 16, (rows, columns), np.uint8)
        self.made[f"{name}.weight.steps"] = steps

    def norm(self, name: str, size: int) -> None:
        self.made[f"{name}.weight"] = self._random.normal(1, 0.25, size).astype(np.float32)

    def layer(self, index: int, target: dict[str, Any], hidden: int, width: int, *, full: bool, owns: bool, ple: int) -> None:
        name, size = f"layers.{index}.", target["global_head_dim" if full else "head_dim"]
        self.matrix(f"{name}self_attn.q_proj", target["heads"] * size, hidden)
        self.matrix(f"{name}self_attn.o_proj", hidden, target["heads"] * size)
        self.norm(f"{name}self_attn.q_norm", size)
        if owns:
            self.matrix(f"{name}self_attn.k_proj", size, hidden)
            self.matrix(f"{name}self_attn.v_proj", size, hidden)
            self.norm(f"{name}self_attn.k_norm", size)
        for part, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
            self.matrix(f"{name}mlp.{part}_proj", rows, columns)
        for norm in ("input", "post_attention", "pre_feedforward", "post_feedforward"):
            self.norm(f"{name}{norm}_layernorm", hidden)
        self.made[f"{name}layer_scalar"] = np.array([0.8], np.float32)
        if ple:
            self.matrix(f"{name}per_layer_input_gate", ple, hidden)
            self.matrix(f"{name}per_layer_projection", hidden, ple)
            self.norm(f"{name}post_per_layer_input_norm", hidden)


def target_packed(config: dict[str, Any] = CONFIG) -> Tensors:
    sizes, noise = config["target"], _Packed(1)
    hidden, layers, ple = sizes["hidden"], sizes["layers"], sizes["per_layer"]
    noise.matrix("embed_tokens", sizes["vocab"], hidden)
    noise.matrix("embed_tokens_per_layer", sizes["vocab"], layers * ple)
    noise.matrix("per_layer_model_projection", layers * ple, hidden)
    noise.norm("per_layer_projection_norm", ple)
    noise.norm("norm", hidden)
    for index in range(layers):
        owns = index < layers - sizes["shared"]
        noise.layer(index, sizes, hidden, sizes["intermediate"] * (1 if owns else 2), owns=owns, ple=ple,
                    full=index % sizes["full_every"] == sizes["full_every"] - 1)
    return noise.made


def assistant_packed(config: dict[str, Any] = CONFIG) -> Tensors:
    target, own, noise = config["target"], config["assistant"], _Packed(2)
    noise.matrix("pre_projection", own["hidden"], 2 * target["hidden"])
    noise.matrix("post_projection", target["hidden"], own["hidden"])
    noise.matrix("embed_tokens", target["vocab"], own["hidden"])
    noise.matrix("centroids", own["clusters"], own["hidden"])
    noise.norm("norm", own["hidden"])
    noise.made["token_ordering"] = np.random.default_rng(3).permutation(target["vocab"]).astype(np.int64)
    for index in range(own["layers"]):
        noise.layer(index, target, own["hidden"], own["intermediate"], full=index == own["layers"] - 1, owns=False, ple=0)
    return noise.made


def write_packed(folder: Path) -> Path:
    """The folder that train.py would write, with the configuration beside the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    save_file(target_packed(), folder / "target.safetensors")
    save_file(assistant_packed(), folder / "assistant.safetensors")
    return folder


def first_pieces(count: int) -> dict[str, Any]:
    """The tokenizer cut down to its first pieces."""
    document = copy.deepcopy(TOKENIZER)
    model = document["model"]
    model["vocab"] = {piece: number for piece, number in model["vocab"].items() if number < count}
    model["merges"] = [pair for pair in model["merges"] if all(piece in model["vocab"] for piece in (*pair, "".join(pair)))]
    return document


@cache
def _story_files(vocab: int) -> tuple[pack.File, pack.File]:
    config, tokenizer = {**CONFIG, "target": {**CONFIG["target"], "vocab": vocab}}, first_pieces(vocab)
    return (pack.target_file(config, target_packed(config), tokenizer),
            pack.assistant_file(config, assistant_packed(config), tokenizer))


def story_files(vocab: int = CONFIG["target"]["vocab"]) -> tuple[pack.File, pack.File]:
    """(target, assistant) as they would be written; tensors and keys may be replaced. ``vocab`` cuts it down."""
    target, assistant = (pack.File(architecture=file.architecture, metadata=dict(file.metadata), tensors=dict(file.tensors))
                         for file in _story_files(vocab))
    return target, assistant


def checkpoint_tensors(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """Tensors of a checkpoint folder by name, floats widened to f32, integers as i64."""
    with Checkpoint(folder) as checkpoint:
        shapes = {name: (checkpoint.find(name).dtype, checkpoint.find(name).shape) for name in checkpoint.names()}
        return {name: checkpoint.integers(name, shape).astype(np.int64) if dtype.startswith("I") else
                checkpoint.float_rows(name, shape, slice(None)) for name, (dtype, shape) in shapes.items()}


def tiny_rand_files() -> tuple[pack.File, pack.File]:
    """fixtures/tiny-rand as GGUF with f32 tensors."""
    folder, tokenizer = FIXTURES / "tiny-rand", first_pieces(TINY_RAND["target"]["vocab"])
    target, assistant = (
        {name.removeprefix("model.").removeprefix("masked_embedding."): values
         for name, values in checkpoint_tensors(folder / role).items()} for role in ("target", "assistant"))
    return pack.target_file(TINY_RAND, target, tokenizer), pack.assistant_file(TINY_RAND, assistant, tokenizer)


def written(files: tuple[pack.File, pack.File], folder: Path) -> tuple[Path, Path]:
    """Paths of (target, assistant)."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "target.gguf", folder / "assistant.gguf"
    for file, path in zip(files, paths, strict=True):
        file.write(path)
    return paths
