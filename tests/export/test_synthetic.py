"""What fixtures/make_synthetic.py writes is what the exporter reads. Depth and width are cut here, the layout is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import gguf
import numpy as np
import pytest
from fixtures import make_synthetic as synthetic

from gemma4web.export import shards
from gemma4web.export.folder_source import FolderSource
from gemma4web.export.gguf_source import GgufSource
from gemma4web.program import ir, methods
from gemma4web.program.architecture import LayerType

SMALL = 512
"""Vocabulary of what is written here."""


def _cut(model: str, layers: int) -> synthetic.Sizes:
    return dataclasses.replace(synthetic.cut(synthetic.MODELS[model], layers), hidden=256, intermediate=256)


@pytest.fixture(autouse=True)
def small_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "VOCAB", SMALL)
    monkeypatch.setattr(synthetic, "CENTROIDS", 64)
    monkeypatch.setattr(synthetic, "tokenizer", lambda: (
        [f"<{number}>" for number in range(SMALL)], [1] * SMALL, ["<4> <5>"]))


@pytest.mark.parametrize(("model", "counts"), [("e2b", (541, 601)), ("e4b", (0, 0))])
def test_numbers_of_tensors(model: str, counts: tuple[int, int]) -> None:
    """GEMMA4.md 4.3: with rope_freqs, 541 tensors in the official E2B file and 601 with the unused ones."""
    sizes = synthetic.MODELS[model]
    found = tuple(len(synthetic.target_shapes(sizes, unused=unused)) + 1 for unused in (False, True))
    assert found == counts or (model == "e4b" and found[1] - found[0] == 3 * 18)
    assert len(synthetic.assistant_shapes(sizes)) == 50


@pytest.mark.parametrize(("model", "layers"), [("e2b", 10), ("e4b", 12)])
def test_both_formats_are_read(tmp_path: Path, model: str, layers: int) -> None:
    """Sizes agree; every tensor that the graphs want is there, in its dtype, and finite; shards are as many as planned."""
    sizes = _cut(model, layers)
    for role in (False, True):
        synthetic.write_hf(tmp_path / f"hf{role}", sizes, assistant=role, unused=True, shard_bytes=5_000_000)
        synthetic.write_gguf(tmp_path / f"{role}.gguf", sizes, assistant=role, unused=False)
    assert len(list((tmp_path / "hfFalse").glob("*.safetensors"))) > 1
    with FolderSource(tmp_path / "hfFalse") as folder, FolderSource(tmp_path / "hfTrue") as folder_draft, \
            GgufSource(tmp_path / "False.gguf") as file, GgufSource(tmp_path / "True.gguf") as file_draft:
        targets = [folder.target(), file.target()]
        assert [layer.head_dim for layer in targets[0].layers] == [512 if layer.type is LayerType.FULL else 256
                                                                    for layer in targets[1].layers]
        assert targets[0].layers == targets[1].layers and len(targets[0].layers) == layers
        assert len({layer.donor for layer in targets[0].layers}) == layers - sizes.shared
        assistants = [folder_draft.assistant(targets[0]), file_draft.assistant(targets[1])]
        assert assistants[0] == assistants[1]
        for target, assistant, sources in ((targets[0], assistants[0], (folder, folder_draft)),
                                           (targets[1], assistants[1], (file, file_draft))):
            graph = methods.k2_round(target, assistant, methods.GraphOptions(
                linear_dtype=ir.Dtype.Q4, prefill_rows=4, context=64, all_logits=False,
                query_positions=ir.QueryPositions.CONSTANT))
            for _, tensor in graph.weights():
                source, name = sources[shards.role_of(tensor)], shards.checkpoint_name(tensor)
                if tensor.dtype is ir.Dtype.I32:
                    shards.token_ordering(source, tensor)
                else:
                    assert np.isfinite(source.float_rows(name, tensor.dims, slice(0, 2))).all()


def test_official_mix(tmp_path: Path) -> None:
    synthetic.write_gguf(tmp_path / "t.gguf", _cut("e2b", 10), assistant=False, unused=False)
    types = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "t.gguf").tensors}
    assert types["token_embd.weight"] == types["per_layer_token_embd.weight"] == "Q6_K"
    assert types["per_layer_model_proj.weight"] == "F16" and types["blk.9.ffn_down.weight"] == "Q4_0"
    assert set(types.values()) == {"Q6_K", "F16", "Q4_0", "F32"}


def test_trained_levels(tmp_path: Path) -> None:
    """Matrices lie on the Q4_0 grid, so that the step search has what it has in real checkpoints."""
    block = next(synthetic.Noise(3).blocks("BF16", (4, 64)))
    values = (np.frombuffer(block, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(-1, 32)
    parts = np.abs(values).max(1, keepdims=True) / np.arange(1, 9)[:, None, None]
    assert (np.abs(values / parts - np.rint(values / parts)).max(2) < 1 / 24).any(0).all()


def test_equal_arguments_give_equal_bytes(tmp_path: Path) -> None:
    sizes = _cut("e2b", 10)
    for name in ("a", "b"):
        synthetic.write_gguf(tmp_path / name, sizes, assistant=True, unused=False)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("layers", [5, 11, 40])
def test_depths_that_leave_a_kind_out(layers: int) -> None:
    with pytest.raises(SystemExit, match="wanted a multiple of 5 from 10 to 35"):
        synthetic.cut(synthetic.MODELS["e2b"], layers)
