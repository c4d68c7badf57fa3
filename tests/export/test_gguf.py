"""GGUF in, model folder out (X22): the trained codes and steps of the story model arrive bit for bit, floats as they are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_story
from fixtures.story.training import pack
from gguf import GGMLQuantizationType as Type
from micro_checkpoint import write_checkpoint
from unified_gguf import unified_files

from gemma4web import __main__ as command_line
from gemma4web.errors import CheckpointError
from gemma4web.export import config
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, Packed, load_weights, open_folder
from gemma4web.export.gguf_file import gguf_name
from gemma4web.export.quantise import quantise, repack_q4_0
from gemma4web.files import sha256_file
from gemma4web.oracle.decode import speculative
from gemma4web.oracle.interpreter import RoundProgram, load
from gemma4web.oracle.weights import from_folder
from gemma4web.program.ir import K2_ROUND, TEXT_DECODER, DraftHead

FIXTURES = tiny_story.FIXTURES
ASSISTANT_NAMES = {
    "centroids.weight": "masked_embedding.centroids.weight", "token_ordering": "masked_embedding.token_ordering",
    "pre_projection.weight": "pre_projection.weight", "post_projection.weight": "post_projection.weight"}


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, assistant) files, packed by the command as its docstring says; read only."""
    weights, out = tiny_story.write_packed(tmp_path_factory.mktemp("trained")), tmp_path_factory.mktemp("packed")
    subprocess.run([sys.executable, pack.__file__, "--weights", weights, "--out", out, "--config", weights / "config.json"],
                   check=True, timeout=120)
    return out / "story-target.gguf", out / "story-assistant.gguf"


@pytest.fixture(scope="module")
def exported(story: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    """Exports by weight form, the default under its own name; read only."""
    base, folders = tmp_path_factory.mktemp("exports"), {}
    for name, options in (("default", []), ("f32", ["--weights", "f32"])):
        assert command_line.main(["export", "--target", str(story[0]), "--assistant", str(story[1]), "--out",
                                  str(base / name), "--context", "64", "--prefill-rows", "4", *options]) == 0
        folders[name] = open_folder(base / name)
    return folders


def _trained() -> dict[str, np.ndarray]:
    """What training wrote, by the names of the exported programs."""
    named = {f"model.{name}": values for name, values in tiny_story.target_packed().items()}
    for name, values in tiny_story.assistant_packed().items():
        part = name[-6:] if name.endswith((".codes", ".steps")) else ""
        stem = name.removesuffix(part)
        named["assistant." + ASSISTANT_NAMES.get(stem, f"model.{stem}") + part] = values
    return named


def test_codes_and_steps_arrive_bit_for_bit(exported: dict[str, ModelFolder]) -> None:
    """The default for Q4_0 is q4; nibbles go from (j | j+16) to even and odd columns, nothing else changes."""
    folder, trained = exported["default"], _trained()
    weights = load_weights(folder.program(K2_ROUND), folder.path)
    assert folder.receipt["weights"] == "q4"
    assert weights.keys() == {name.removesuffix(".codes").removesuffix(".steps") for name in trained}
    for name, stored in weights.items():
        if isinstance(stored, Packed):
            codes, steps = trained[f"{name}.codes"], trained[f"{name}.steps"]
            assert np.array_equal(stored.values & 15, codes[:, 0::2]), name
            assert np.array_equal(stored.values >> 4, codes[:, 1::2]), name
            assert np.array_equal(stored.scales.view(np.uint16), steps.view(np.uint16)), name
        else:
            assert np.array_equal(stored.reshape(-1), trained[name].reshape(-1)), name


def test_f32_multiplies_out_exactly(exported: dict[str, ModelFolder], story: tuple[Path, Path]) -> None:
    """--weights f32 gives (code - 8) * step, and so does the gguf package's own decoder."""
    folder, trained = exported["f32"], _trained()
    weights = load_weights(folder.program(K2_ROUND), folder.path)
    decoded = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
               for path in story for tensor in gguf.GGUFReader(path).tensors if tensor.tensor_type is Type.Q4_0
               for tensor in [tensor._replace(name=f"{path.stem}/{tensor.name}")]}
    compared = 0
    for name, stored in weights.items():
        if f"{name}.codes" in trained:
            steps = trained[f"{name}.steps"].astype(np.float32)
            wanted = (trained[f"{name}.codes"].astype(np.float32) - 8) * np.repeat(steps, 32, axis=1)
            role = "assistant" if name.startswith("assistant.") else "target"
            other = decoded[f"story-{role}/{gguf_name(name.removeprefix('assistant.'))}"]
            assert isinstance(stored, np.ndarray) and np.array_equal(stored, wanted) and np.array_equal(other, wanted), name
            compared += 1
    assert compared == len(decoded) == sum(name.endswith(".codes") for name in trained)


def test_both_forms_are_one_model(exported: dict[str, ModelFolder]) -> None:
    q4, f32 = (from_folder(exported[name]) for name in ("default", "f32"))
    assert (q4.target, q4.assistant) == (f32.target, f32.assistant) and q4.weights.keys() == f32.weights.keys()
    assert all(np.array_equal(values, f32.weights[name]) for name, values in q4.weights.items())


def test_sizes_are_those_of_the_same_config(exported: dict[str, ModelFolder], tmp_path: Path) -> None:
    """The architecture objects equal what config.json of such a checkpoint gives; softcap, eps and bases to the last bit."""
    folder, own = exported["default"], tiny_story.CONFIG["assistant"]
    types = ["sliding_attention", "full_attention"]
    text = {"model_type": "gemma4_text", "vocab_size": 4096, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
            "global_head_dim": 64, "sliding_window": 4, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096, "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}
    target = {**text, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "layer_types": types * 2,
              "num_kv_shared_layers": 2, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
              "vocab_size_per_layer_input": 4096,
              "final_logit_softcapping": 30.0}
    assistant = {"model_type": "gemma4_assistant", "backbone_hidden_size": 32, "use_ordered_embeddings": True,
                 "num_centroids": own["clusters"], "centroid_intermediate_top_k": own["top"], "text_config": {
                     **text, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "layer_types": types,
                     "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 0}}
    for name, document in (("target", target), ("assistant", assistant)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    sizes = config.read_target(tmp_path / "target.json", "model.")
    assert folder.target() == sizes
    assert folder.assistant() == config.read_assistant(tmp_path / "assistant.json", sizes, own["clusters"])


def test_receipts_name_the_files(exported: dict[str, ModelFolder], story: tuple[Path, Path]) -> None:
    """X19, P36: hashes of both inputs, the stop set of the turn format, the tokenizer and template of the file."""
    receipt = exported["default"].receipt
    source = json.loads((exported["default"].path / "source.json").read_text())
    assert source["inputs"] == {
        role: {"name": path.name, "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)}}}
        for role, path in zip(("target", "assistant"), story, strict=True)}
    assert source["options"]["weights"] == "q4"
    assert (receipt["name"], receipt["bos_id"], receipt["stop_ids"]) == ("Story", 2, [1, 106])
    assert (receipt["tokenizer"], receipt["chat_template"]) == ("tokenizer.json", "chat_template.jinja")
    assert json.loads((exported["default"].path / "tokenizer.json").read_bytes()) == tiny_story.TOKENIZER
    assert (exported["default"].path / "chat_template.jinja").read_text() == pack.CHAT_TEMPLATE


def test_packing_twice_gives_equal_bytes(story: tuple[Path, Path], tmp_path: Path) -> None:
    for path, again in zip(story, tiny_story.written(tiny_story.story_files(), tmp_path), strict=True):
        assert path.read_bytes() == again.read_bytes()


def test_official_layout(story: tuple[Path, Path]) -> None:
    """GEMMA4.md 4.3, 4.4: 17 tensors a layer with a cache, 14 a sharing one, 6 around them; dims input first; Q4_0 or F32."""
    target, assistant = (gguf.GGUFReader(path) for path in story)
    assert len(target.tensors) == 2 * 17 + 2 * 14 + 6 and len(assistant.tensors) == 2 * 11 + 7
    shapes = {tensor.name: tensor.shape.tolist() for reader in (target, assistant) for tensor in reader.tensors}
    assert shapes["blk.1.ffn_down.weight"] == [96, 64] and shapes["rope_freqs.weight"] == [32]
    assert shapes["nextn.pre_projection.weight"] == [64, 64] and shapes["masked_embd_centroids.weight"] == [64, 64]
    assert {tensor.tensor_type for tensor in target.tensors} == {Type.Q4_0, Type.F32}
    assert not any("blk.2.attn_k" in tensor.name or "blk.2.attn_v" in tensor.name for tensor in target.tensors)
    assert next(tensor for tensor in target.tensors if tensor.name == "rope_freqs.weight").data.tolist() == [
        1.0] * 8 + [float(np.float32(1e30))] * 24


def _shards(folder: ModelFolder) -> dict[str, str]:
    return {name: file["sha256"] for name, file in folder.receipt["files"].items() if name.endswith(".safetensors")}


def _exported(pair: tuple[Path, Path], out: Path, **options: Any) -> ModelFolder:
    return open_folder(export(ExportOptions(target=pair[0], assistant=pair[1], out=out, context=112, prefill_rows=3,
                                            **options)))


@pytest.mark.parametrize("form", [None, "q4"])
def test_floats_go_the_way_of_safetensors(fixture_folders: dict[str, ModelFolder], tmp_path: Path, form: str | None) -> None:
    """tiny-rand as f32 GGUF: default f32; shards and graphs equal those of the checkpoint, so the goldens hold."""
    pair = tiny_story.written(tiny_story.tiny_rand_files(), tmp_path)
    folder, wanted = _exported(pair, tmp_path / "model", weights=form), fixture_folders[f"tiny-rand-{form or 'f32'}"]
    assert _shards(folder) == _shards(wanted)
    assert folder.receipt["architecture"] == wanted.receipt["architecture"]
    for method in folder.receipt["methods"]:
        assert folder.program(method).graph == wanted.program(method).graph


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision(tmp_path: Path, dtype: str) -> None:
    """Matrices of two bytes widen exactly, as those of a checkpoint do."""
    files = tiny_story.tiny_rand_files()
    folders = []
    for role, file in zip(("target", "assistant"), files, strict=True):
        base = FIXTURES / "tiny-rand" / role
        tensors = tiny_story.checkpoint_tensors(base)
        document = json.loads((base / "config.json").read_text())
        folders.append(write_checkpoint(tmp_path / role, document, tensors, dtype=dtype))
        for name, (values, type_) in file.tensors.items():
            if values.ndim == 2 and type_ is Type.F32:
                file.tensors[name] = gguf.quants.quantize(values, Type[dtype]), Type[dtype]
    mixed = _exported(tiny_story.written(files, tmp_path), tmp_path / "gguf")
    wanted = _exported((folders[0], folders[1]), tmp_path / "safetensors")
    found, other = (load_weights(folder.program(K2_ROUND), folder.path) for folder in (mixed, wanted))
    assert all(np.array_equal(values, other[name]) for name, values in found.items()
               if isinstance(values, np.ndarray) and values.ndim == 2 and "ordering" not in name)


def _wide_target() -> pack.File:
    """Hidden 256, so that every matrix that has Q6_K in real files can have it here."""
    config = {**tiny_story.CONFIG, "target": {**tiny_story.CONFIG["target"], "vocab": 512, "hidden": 256, "per_layer": 64}}
    return pack.target_file(config, tiny_story.target_packed(config), tiny_story.first_pieces(512))


def _q6_k(rows: int, columns: int) -> np.ndarray:
    """Rows of blocks of 256 values u8[rows, columns/256*210] with codes of all kinds and steps of f16's normal range."""
    random = np.random.default_rng(rows)
    blocks = random.integers(0, 256, (rows, columns // 256, 210), dtype=np.uint8)
    blocks[..., 208:] = random.uniform(1e-4, 1e-3, (rows, columns // 256, 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def test_official_mix(tmp_path: Path) -> None:
    """X22: Q6_K tables, a Q8_0 and an F16 matrix among Q4_0 ones. Those keep every bit, the others are dequantised by the
    gguf package and quantised again; no form is asked for, and it is q4."""
    file = _wide_target()
    file.tensors["token_embd.weight"] = _q6_k(512, 256), Type.Q6_K
    file.tensors["per_layer_token_embd.weight"] = _q6_k(512, 256), Type.Q6_K
    noise = np.random.default_rng(8).normal(0, 0.05, (256, 256)).astype(np.float32)
    file.tensors["per_layer_model_proj.weight"] = noise.astype(np.float16), Type.F16
    file.tensors["blk.0.inp_gate.weight"] = gguf.quants.quantize(noise[:64], Type.Q8_0), Type.Q8_0
    file.write(tmp_path / "target.gguf")
    folder = open_folder(export(ExportOptions(target=tmp_path / "target.gguf", out=tmp_path / "model", context=8)))
    weights, compared = load_weights(folder.program(TEXT_DECODER), folder.path), set()
    assert folder.receipt["weights"] == "q4"
    for name, stored in weights.items():
        raw, type_ = file.tensors[gguf_name(name)]
        if not isinstance(stored, Packed):
            continue
        compared.add(type_)
        if type_ is Type.Q4_0:
            wanted = repack_q4_0(raw)
        else:
            wanted = quantise(gguf.quants.dequantize(raw, type_), name=name)
        assert np.array_equal(stored.values, wanted[0]) and np.array_equal(stored.scales, wanted[1]), name
    assert compared == {Type.Q4_0, Type.Q6_K, Type.Q8_0, Type.F16}


@pytest.mark.parametrize("type_", [Type.Q8_0, Type.BF16, Type.F16, Type.F32])
def test_every_matrix_of_one_dtype(tmp_path: Path, type_: Type) -> None:
    """Converters write such files, too; f32 then holds what the gguf package's own decoder gives."""
    file = _wide_target()
    for name, (values, packed) in file.tensors.items():
        if packed is Type.Q4_0:
            file.tensors[name] = gguf.quants.quantize(gguf.quants.dequantize(values, packed).clip(-100, 100), type_), type_
    file.write(tmp_path / "target.gguf")
    folder = open_folder(export(ExportOptions(target=tmp_path / "target.gguf", out=tmp_path / "f32", context=8, weights="f32")))
    for name, stored in load_weights(folder.program(TEXT_DECODER), folder.path).items():
        raw, stored_type = file.tensors[gguf_name(name)]
        wanted = gguf.quants.dequantize(raw, stored_type)
        assert isinstance(stored, np.ndarray) and np.array_equal(stored.reshape(-1), wanted.reshape(-1)), name
    default = open_folder(export(ExportOptions(target=tmp_path / "target.gguf", out=tmp_path / "default", context=8)))
    assert default.receipt["weights"] == ("q4" if type_ is Type.Q8_0 else "f32")


def test_layout_with_unused_keys_and_values(tmp_path: Path) -> None:
    """X22: the files of 601 tensors export what those of 541 do, byte for byte, even if the unused ones are not finite;
    and so do those that carry the tied head a second time."""
    file = tiny_story.story_files(512)[0]
    file.write(tmp_path / "few.gguf")
    for layer, size in ((2, 32), (3, 64)):
        for name, rows in (("attn_k", size), ("attn_v", size)):
            file.tensors[f"blk.{layer}.{name}.weight"] = np.full((rows, 32), np.nan, np.float32), Type.F32
        file.tensors[f"blk.{layer}.attn_k_norm.weight"] = np.full(size, np.nan, np.float32), Type.F32
    file.write(tmp_path / "many.gguf")
    file.tensors["output.weight"] = file.tensors["token_embd.weight"]
    file.write(tmp_path / "headed.gguf")
    few, many, headed = (open_folder(export(ExportOptions(target=tmp_path / f"{name}.gguf", out=tmp_path / name, context=8)))
                         for name in ("few", "many", "headed"))
    assert _shards(few) == _shards(many) == _shards(headed)


def test_target_of_gguf_with_an_assistant_of_safetensors(tmp_path: Path) -> None:
    """The remedy for assistants that lost their centroid head; the text is the golden one."""
    target, _ = tiny_story.written(tiny_story.tiny_rand_files(), tmp_path)
    folder = _exported((target, FIXTURES / "tiny-rand" / "assistant"), tmp_path / "model")
    golden = json.loads((FIXTURES / "tiny-rand" / "golden.json").read_bytes())[1]
    text = speculative(RoundProgram(load(folder.program(K2_ROUND), folder.path)), golden["prompt"], 8)
    assert list(text.tokens) == golden["plain"][:8]


def test_keys_that_converters_leave_out(tmp_path: Path) -> None:
    """top 32 is the default; the number of centroids is that of the tensor; sharing, softcap and PLE keys are optional."""
    target, assistant = tiny_story.story_files()
    for key in ("n_centroids", "centroid_top_k", "use_ordered_embeddings", "attention.value_length", "rope.dimension_count"):
        del assistant.metadata[f"gemma4-assistant.{key}"]
    del target.metadata["gemma4.final_logit_softcapping"], target.metadata["general.name"]
    target.metadata["gemma4.attention.head_count_kv"] = [1, 1, 1, 1]
    pair = tiny_story.written((target, assistant), tmp_path)
    folder = open_folder(export(ExportOptions(target=pair[0], assistant=pair[1], out=tmp_path / "model", context=8)))
    drafter = folder.assistant()
    assert drafter is not None and (drafter.top_k, drafter.centroids) == (32, 64)
    assert folder.target().softcap is None and folder.receipt["name"] == "target"


@pytest.mark.parametrize("form", ["f32", "q4"])
def test_form_of_the_larger_models(fixture_folders: dict[str, ModelFolder], tmp_path: Path, form: str) -> None:
    """X22: KV heads by layer, full layers without attn_v, an assistant without masked_embd: the checkpoint's programs."""
    pair = tiny_story.written(unified_files(), tmp_path)
    folder, wanted = _exported(pair, tmp_path / "model", weights=form), fixture_folders[f"tiny-unified-{form}"]
    assert _shards(folder) == _shards(wanted)
    assert folder.target() == wanted.target() and folder.assistant() == wanted.assistant()
    for method in folder.receipt["methods"]:
        assert folder.program(method).graph == wanted.program(method).graph


def test_values_of_their_own_in_full_layers(tmp_path: Path) -> None:
    """Whether a file has attn_v decides; where it is missing in one of two full layers, that one is damaged."""
    target, _ = unified_files()
    for layer in (2, 4):
        target.tensors[f"blk.{layer}.attn_v.weight"] = target.tensors[f"blk.{layer}.attn_k.weight"]
    target.write(tmp_path / "own.gguf")
    own = open_folder(export(ExportOptions(target=tmp_path / "own.gguf", out=tmp_path / "own", context=8)))
    assert not any(layer.values_from_keys for layer in own.target().layers)
    assert [layer.kv_heads for layer in own.target().layers] == [2, 2, 1, 2, 1]
    del target.tensors["blk.2.attn_v.weight"]
    target.write(tmp_path / "half.gguf")
    with pytest.raises(CheckpointError, match=r"tensor blk\.2\.attn_v\.weight is missing"):
        export(ExportOptions(target=tmp_path / "half.gguf", out=tmp_path / "half", context=8))


@pytest.mark.parametrize(("counts", "message"), [
    ([2, 2, 1, 2], "`gemma4.attention.head_count_kv` is .*, wanted one number, or 5, one for each layer"),
    ([2, 2, 1, 2, 0], "`gemma4.attention.head_count_kv` is 0, wanted an integer"),
    ([2, 2, 1, 2, 3], "`gemma4.attention.head_count` is 4, wanted a multiple of every layer's number of KV heads, 3 among"),
])
def test_wrong_numbers_of_kv_heads(tmp_path: Path, counts: list[int], message: str) -> None:
    target, _ = unified_files()
    target.metadata["gemma4.attention.head_count_kv"] = counts
    target.write(tmp_path / "target.gguf")
    with pytest.raises(CheckpointError, match=message):
        export(ExportOptions(target=tmp_path / "target.gguf", out=tmp_path / "model", context=8))


def test_assistant_that_lost_its_centroids_is_dense(tmp_path: Path) -> None:
    """Converters of llama.cpp leave the centroid head out: the same model drafts with all rows of its head."""
    target, assistant = tiny_story.tiny_rand_files()
    del assistant.tensors["masked_embd_centroids.weight"], assistant.tensors["masked_embd_ordering"]
    folder = _exported(tiny_story.written((target, assistant), tmp_path), tmp_path / "model")
    program = folder.program(K2_ROUND)
    assert program.graph.draft_head is DraftHead.DENSE and (program.census.top_k, program.census.scatter) == (0, 0)
    golden = json.loads((FIXTURES / "tiny-rand" / "golden.json").read_bytes())[1]
    text = speculative(RoundProgram(load(program, folder.path)), golden["prompt"], 8)
    assert list(text.tokens) == golden["plain"][:8]


def test_names_agree_with_the_gguf_package() -> None:
    """Our table against the one that converters use, for every tensor of a target."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 4)
    for packed in {name.removesuffix(".codes").removesuffix(".steps") for name in tiny_story.target_packed()}:
        stem = packed.removesuffix(".weight")
        assert gguf_name(f"model.{packed}") == f"{names.get_name(f'model.{stem}')}.weight"
