"""``python -m gemma4web export`` from checkpoint to published folder, and everything that makes it refuse."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from micro_checkpoint import (
    assistant_config,
    assistant_tensors,
    target_config,
    target_tensors,
    write_checkpoint,
    write_pair,
)

from gemma4web import __main__ as command_line
from gemma4web.errors import CheckpointError, ProgramError, PublishError, VerifyError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, Packed, load_weights, open_folder
from gemma4web.files import sha256_file
from gemma4web.program import certify, ir
from gemma4web.toolchain.progress import NoProgress

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


def _run(pair: tuple[Path, Path], out: Path, *more: str, assistant: bool = True) -> int:
    words = ["export", "--target", str(pair[0]), "--out", str(out), *more]
    return command_line.main(words + (["--assistant", str(pair[1])] if assistant else []))


def _copy(pair: tuple[Path, Path], to: Path) -> tuple[Path, Path]:
    return shutil.copytree(pair[0], to / "target"), shutil.copytree(pair[1], to / "assistant")


def test_folder(micro_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """X14, X15: exactly the listed files, receipts that agree, sizes and roles."""
    assert _run(micro_pair, tmp_path / "model", "--prefill-rows", "8", "--context", "64") == 0
    assert str(tmp_path / "model") in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"source.json", "model.json", "text_decoder.g4p", "k2_round.g4p",
                     "target-00001-of-00001.safetensors", "assistant-00001-of-00001.safetensors"}
    receipt = json.loads((tmp_path / "model" / "model.json").read_text())
    assert set(receipt["files"]) == names - {"model.json"}
    assert receipt["source_sha256"] == sha256_file(tmp_path / "model" / "source.json")
    assert receipt["methods"] == {
        "text_decoder": {"program": "text_decoder.g4p", "shards": ["target-00001-of-00001.safetensors"]},
        "k2_round": {"program": "k2_round.g4p",
                     "shards": ["target-00001-of-00001.safetensors", "assistant-00001-of-00001.safetensors"]}}
    assert {key: receipt[key] for key in ("schema", "weights", "prefill_rows", "context", "vocab", "bos_id", "stop_ids",
                                          "tokenizer", "chat_template", "query_positions")} == {
        "schema": 1, "weights": "f32", "prefill_rows": 8, "context": 64, "vocab": 64, "bos_id": 2, "stop_ids": [],
        "tokenizer": None, "chat_template": None, "query_positions": "constant"}
    assert receipt["architecture"]["target"]["layers"][3] == {
        "type": "sliding_attention", "head_dim": 16, "kv_heads": 1, "intermediate": 64, "donor": 1, "values_from_keys": False}


def test_the_certificate_is_told_in_words(micro_pair: tuple[Path, Path], tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """X9 to X11, X20, R11: what was proven of each program, the digest of what the proof looked at, and the source receipt;
    the same before anything is written."""
    assert _run(micro_pair, tmp_path / "model", "--dry-run") == 0
    planned = capsys.readouterr().out
    assert _run(micro_pair, tmp_path / "model") == 0
    told = capsys.readouterr().out
    folder = open_folder(tmp_path / "model")
    ordering = load_weights(folder.program(ir.K2_ROUND), folder.path)["assistant.masked_embedding.token_ordering"]
    assert isinstance(ordering, np.ndarray)
    unique = f"assistant.masked_embedding.token_ordering is a permutation, so no index stands twice; its sha256 is " \
             f"{hashlib.sha256(ordering.tobytes()).hexdigest()}"
    for shown in (planned, told):
        lines = shown[shown.index("certificate of text_decoder:"):].splitlines()
        assert [line.split(":")[0] for line in lines][:5] == [
            "certificate of text_decoder", "  single compute pass", "certificate of k2_round", "  unique scatters",
            "  single compute pass"]
        assert unique in lines[3]
        for line, method in ((lines[1], ir.TEXT_DECODER), (lines[4], ir.K2_ROUND)):
            assert line.endswith(certify.graph_sha256(folder.program(method).graph))
    assert f"source receipt: {sha256_file(tmp_path / 'model/source.json')}" in told


def test_source_receipt(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """X19 in its first form: every input file with size and hash, no path of this machine."""
    _run(micro_pair, tmp_path / "model")
    text = (tmp_path / "model" / "source.json").read_text()
    source = json.loads(text)
    assert source["inputs"]["assistant"]["files"]["model.safetensors"] == {
        "bytes": (micro_pair[1] / "model.safetensors").stat().st_size,
        "sha256": sha256_file(micro_pair[1] / "model.safetensors")}
    assert set(source["inputs"]["target"]["files"]) == {"config.json", "model.safetensors"}
    assert source["options"]["context"] == 256 and str(tmp_path) not in text and "/" not in text


def test_two_exports_are_byte_equal(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    for name in ("one", "two"):
        _run(micro_pair, tmp_path / name, "--weights", "q4")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_plain_program_is_the_same_graph_with_and_without_assistant(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    """X21: tensors, ops, shards and weights; only the source receipt's hash differs, as its inputs do."""
    _run(micro_pair, tmp_path / "both")
    _run(micro_pair, tmp_path / "alone", assistant=False)
    both, alone = (open_folder(tmp_path / name).program(ir.TEXT_DECODER) for name in ("both", "alone"))
    assert both.graph == alone.graph and both.weights == alone.weights and both.shards == alone.shards
    assert open_folder(tmp_path / "alone").receipt["architecture"]["assistant"] is None
    with pytest.raises(ProgramError, match="has no method k2_round"):
        open_folder(tmp_path / "alone").program(ir.K2_ROUND)


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_half_precision_input(tmp_path: Path, dtype: str) -> None:
    """Widened exactly: the exported f32 weights are the stored values."""
    pair = write_pair(tmp_path, dtype=dtype)
    folder = open_folder(export(ExportOptions(target=pair[0], assistant=pair[1], out=tmp_path / "model")))
    weights = load_weights(folder.program(ir.K2_ROUND), folder.path)
    wanted = target_tensors()["model.embed_tokens.weight"]
    found = weights["model.embed_tokens.weight"]
    assert isinstance(found, np.ndarray) and found.dtype == np.float32
    assert 0 < np.abs(found - wanted).max() < 0.01


@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_prefixes_and_shards(tmp_path: Path, prefix: str) -> None:
    """X22: text-only and multimodal names, one file or several; foreign tensors are ignored."""
    tensors = target_tensors(prefix) | {"model.vision_tower.x": np.zeros((2, 2), np.float32)}
    config: dict[str, Any] = {"model_type": "gemma4", "text_config": target_config()} if "language" in prefix else target_config()
    target = write_checkpoint(tmp_path / "target", config, tensors, shards=3)
    folder = open_folder(export(ExportOptions(target=target, out=tmp_path / "model", max_shard_bytes=60_000)))
    program = folder.program(ir.TEXT_DECODER)
    weights = load_weights(program, folder.path)
    assert len(program.shards) > 2 and "model.vision_tower.x" not in weights
    for name, values in target_tensors(prefix).items():
        np.testing.assert_array_equal(weights[name], values)


@pytest.mark.parametrize("form", ["f32", "q4"])
def test_tensors_larger_than_a_shard(micro_pair: tuple[Path, Path], micro_folders: dict[str, ModelFolder], tmp_path: Path,
                                     form: str) -> None:
    """X23: their rows lie in several shards; what is read back is the same, in both methods."""
    folder = open_folder(export(ExportOptions(target=micro_pair[0], assistant=micro_pair[1], out=tmp_path / "model",
                                              weights=form, prefill_rows=4, context=32, max_shard_bytes=3000)))
    assert max(path.stat().st_size for path in folder.path.glob("*.safetensors")) <= 3000
    for method in (ir.TEXT_DECODER, ir.K2_ROUND):
        program, whole = folder.program(method), micro_folders[form].program(method)
        assert len(program.weights) > len(whole.weights) and program.graph == whole.graph
        found, wanted = (load_weights(one, where.path) for one, where in ((program, folder), (whole, micro_folders[form])))
        assert found.keys() == wanted.keys()
        for name, stored in wanted.items():
            if isinstance(stored, Packed):
                np.testing.assert_array_equal(found[name].values, stored.values)
                np.testing.assert_array_equal(found[name].scales, stored.scales)
            else:
                np.testing.assert_array_equal(found[name], stored)


def test_unused_shared_layer_tensors_are_left_out(tmp_path: Path) -> None:
    """Checkpoints may still hold keys and values of layers that share a cache."""
    extra = {"model.layers.3.self_attn.k_proj.weight": np.full((16, 32), np.nan, np.float32)}
    target = write_checkpoint(tmp_path / "target", target_config(), target_tensors() | extra)
    folder = open_folder(export(ExportOptions(target=target, out=tmp_path / "model")))
    assert "model.layers.3.self_attn.k_proj.weight" not in load_weights(folder.program(ir.TEXT_DECODER), folder.path)


def test_tied_head(tmp_path: Path) -> None:
    """Repacks carry the table of embeddings a second time as lm_head; another one would make another model."""
    tensors = target_tensors()
    head = {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    write_checkpoint(tmp_path / "tied", target_config(), tensors | head)
    folder = open_folder(export(ExportOptions(target=tmp_path / "tied", out=tmp_path / "model", context=8)))
    assert "lm_head.weight" not in load_weights(folder.program(ir.TEXT_DECODER), folder.path)
    for spoil in (lambda w: np.nextafter(w, np.where(np.arange(w.size).reshape(w.shape) == w.size - 1, np.float32(9), w)),
                  lambda w: w[:-1], lambda w: w.astype(np.int64)):
        write_checkpoint(tmp_path / "other", target_config(),
                         tensors | {"lm_head.weight": spoil(tensors["model.embed_tokens.weight"])})
        with pytest.raises(CheckpointError, match="lm_head.weight differs from model.embed_tokens.weight"):
            export(ExportOptions(target=tmp_path / "other", out=tmp_path / "bad", context=8))


def test_q4_leaves_norms_and_ids_alone(micro_folders: dict[str, ModelFolder]) -> None:
    """Every matrix is packed, gather tables, tied head and centroids included; vectors and the ordering are not."""
    folder = micro_folders["q4"]
    weights = load_weights(folder.program(ir.K2_ROUND), folder.path)
    for name, shape in {**{k: v.shape for k, v in target_tensors().items()},
                        **{"assistant." + k: v.shape for k, v in assistant_tensors().items()}}.items():
        packed = not isinstance(weights[name], np.ndarray)
        assert packed == (len(shape) == 2), name
    assert isinstance(weights["assistant.masked_embedding.token_ordering"], np.ndarray)


def test_stop_ids_reach_the_programs(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    pair = _copy(micro_pair, tmp_path)
    (pair[0] / "generation_config.json").write_text(json.dumps({"eos_token_id": [50, 1], "bos_token_id": 5}))
    _run(pair, tmp_path / "model")
    folder = open_folder(tmp_path / "model")
    assert folder.receipt["stop_ids"] == [1, 50] and folder.receipt["bos_id"] == 5
    assert folder.program(ir.K2_ROUND).stop_ids == folder.program(ir.TEXT_DECODER).stop_ids == (1, 50)


def test_tokenizer_is_carried(tmp_path: Path) -> None:
    """The fixture tokenizer has 4096 pieces: it travels with a model that large, and not with a smaller one."""
    tokenizer = (FIXTURES / "tokenizer" / "tok4096.json").read_bytes()
    config = {**target_config(), "vocab_size": 4096, "vocab_size_per_layer_input": 4096}
    tensors = target_tensors()
    for name in ("model.embed_tokens.weight", "model.embed_tokens_per_layer.weight"):
        tensors[name] = np.tile(tensors[name], (64, 1))
    target = write_checkpoint(tmp_path / "target", config, tensors)
    (target / "tokenizer.json").write_bytes(tokenizer)
    (target / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    folder = open_folder(export(ExportOptions(target=target, out=tmp_path / "model")))
    assert (folder.receipt["tokenizer"], folder.receipt["chat_template"]) == ("tokenizer.json", "chat_template.jinja")
    assert (folder.path / "tokenizer.json").read_bytes() == tokenizer
    assert (folder.path / "chat_template.jinja").read_text() == "{{ messages }}"
    small = write_checkpoint(tmp_path / "small", target_config(), target_tensors())
    (small / "tokenizer.json").write_bytes(tokenizer)
    with pytest.raises(CheckpointError, match="has 4096 pieces, the model's vocabulary 64"):
        export(ExportOptions(target=small, out=tmp_path / "refused"))
    (small / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be loaded"):
        export(ExportOptions(target=small, out=tmp_path / "refused"))


def _spoiled_tensor(folder: Path, name: str, values: np.ndarray | None) -> None:
    tensors = target_tensors() if folder.name == "target" else assistant_tensors()
    if values is None:
        del tensors[name]
    else:
        tensors[name] = values
    write_checkpoint(folder, target_config() if folder.name == "target" else assistant_config(), tensors)


@pytest.mark.parametrize(("role", "name", "values", "message"), [
    (0, "model.layers.2.mlp.up_proj.weight", None, "tensor model.layers.2.mlp.up_proj.weight is missing"),
    (1, "pre_projection.weight", None, "tensor pre_projection.weight is missing"),
    (1, "masked_embedding.token_ordering", None, "tensor masked_embedding.token_ordering is missing"),
    (0, "model.embed_tokens.weight", None, "tensor model.language_model.embed_tokens.weight or"),
    (0, "model.norm.weight", np.ones(31, np.float32), r"model.norm.weight has shape \[31\], wanted \[32\]"),
    (0, "model.layers.0.self_attn.q_proj.weight", np.ones((16, 64), np.float32), r"shape \[16, 64\], wanted \[32, 32\]"),
    (0, "model.norm.weight", np.full(32, np.nan, np.float32), "model.norm.weight holds a NaN or infinity"),
    (1, "model.embed_tokens.weight", np.full((64, 32), np.inf, np.float32), "model.embed_tokens.weight holds a NaN"),
    (1, "masked_embedding.token_ordering", np.zeros(64, np.int64), "is no permutation"),
])
def test_damaged_checkpoints(micro_pair: tuple[Path, Path], tmp_path: Path, role: int, name: str,
                             values: np.ndarray | None, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The tensor is named, the exit code is that of a bad checkpoint, and nothing is left behind."""
    pair = _copy(micro_pair, tmp_path)
    _spoiled_tensor(pair[role], name, values)
    before = sorted(tmp_path.iterdir())
    assert _run(pair, tmp_path / "model") == CheckpointError.exit_code
    errors = capsys.readouterr().err
    assert re.search(message, errors) and "Traceback" not in errors
    assert sorted(tmp_path.iterdir()) == before


def test_truncated_weights(micro_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = _copy(micro_pair, tmp_path)
    path = pair[0] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert _run(pair, tmp_path / "model") == CheckpointError.exit_code
    assert "the file is damaged or was not downloaded completely" in capsys.readouterr().err


def test_q4_names_the_tensor_that_cannot_be_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """in % 32 != 0."""
    config = {**target_config(), "intermediate_size": 40}
    tensors = target_tensors()
    for index, rows in enumerate((40, 40, 40, 80, 80)):
        for part, shape in (("gate", (rows, 32)), ("up", (rows, 32)), ("down", (32, rows))):
            tensors[f"model.layers.{index}.mlp.{part}_proj.weight"] = np.zeros(shape, np.float32)
    target = write_checkpoint(tmp_path / "target", config, tensors)
    assert command_line.main(["export", "--target", str(target), "--out", str(tmp_path / "m"), "--weights", "q4"]) == 6
    assert "model.layers.0.mlp.down_proj.weight: 40 columns are no multiple of 32" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_existing_destination(micro_pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """X16."""
    (tmp_path / "model").mkdir()
    assert _run(micro_pair, tmp_path / "model") == PublishError.exit_code
    assert "model exists" in capsys.readouterr().err and not any((tmp_path / "model").iterdir())


@pytest.mark.parametrize("options", [("--context", "0"), ("--context", "257"), ("--prefill-rows", "0"),
                                     ("--prefill-rows", "513"), ("--max-shard-bytes", "-1"), ("--max-shard-bytes", "0")])
def test_options_out_of_range(micro_pair: tuple[Path, Path], tmp_path: Path, options: tuple[str, str],
                              capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(micro_pair, tmp_path / "model", *options) == 2
    errors = capsys.readouterr().err
    assert "UsageError" in errors and "remedy: name " in errors and options[0] in errors
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", [" ", "\udcff", "a\nb"])
def test_name_that_cannot_be_shown(micro_pair: tuple[Path, Path], tmp_path: Path, name: str,
                                   capsys: pytest.CaptureFixture[str]) -> None:
    """Bytes that are no UTF-8 reach a program as halves of surrogate pairs, which no receipt takes."""
    assert _run(micro_pair, tmp_path / "model", "--name", name) == 2
    assert "is blank or cannot be shown" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("option", ["--target", "--assistant", "--out"])
def test_blank_path(micro_pair: tuple[Path, Path], tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Such a path would be the folder that the command runs in."""
    with pytest.raises(SystemExit, match="2"):
        _run(micro_pair, tmp_path / "model", option, " ")
    assert f"argument {option}: it is blank" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "says"), [
    ("config.json", "config.json is no JSON: it has 4194305 bytes"), ("model.safetensors", "model.safetensors, which is no regular"),
    ("tokenizer.json", None)])
def test_device_in_the_place_of_a_file(micro_pair: tuple[Path, Path], tmp_path: Path, name: str, says: str | None,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    """/dev/zero has no end and no size: it is read within bounds, and not called damaged."""
    pair = _copy(micro_pair, tmp_path)
    (pair[0] / name).unlink(missing_ok=True)
    (pair[0] / name).symlink_to("/dev/zero")
    assert _run(pair, tmp_path / "model") == (0 if says is None else CheckpointError.exit_code)
    assert says is None or says in capsys.readouterr().err


@pytest.mark.parametrize("named", ["/dev/zero", "zero.gguf"])
def test_device_as_a_checkpoint(tmp_path: Path, named: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zero.gguf").symlink_to("/dev/zero")
    assert command_line.main(["export", "--target", str(tmp_path / named), "--out", str(tmp_path / "model")]) == 6
    errors = capsys.readouterr().err
    assert "no regular file" in errors and "damaged" not in errors


@pytest.mark.parametrize(("name", "text", "says"), [
    ("config.json", " \n", "config.json is no JSON: it is blank"), ("tokenizer.json", "\n", "tokenizer.json is blank"),
    ("config.json", '{"a": "\\ud800"}', "half a surrogate pair, which is no character")])
def test_text_that_says_nothing(micro_pair: tuple[Path, Path], tmp_path: Path, name: str, text: str, says: str,
                                capsys: pytest.CaptureFixture[str]) -> None:
    pair = _copy(micro_pair, tmp_path)
    (pair[0] / name).write_text(text, encoding="utf-8")
    assert _run(pair, tmp_path / "model") == CheckpointError.exit_code
    errors = capsys.readouterr().err
    assert says in errors and "remedy: fetch" in errors


def test_nothing_is_exported_into_a_published_model(micro_pair: tuple[Path, Path], tmp_path: Path,
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    """X14: a model holds exactly what its receipt lists, so a second one inside it would break the first."""
    assert _run(micro_pair, tmp_path / "model") == 0
    for inside in ("again", "deep/er/again"):
        assert _run(micro_pair, tmp_path / "model" / inside) == PublishError.exit_code
        assert "would lie inside the published model" in capsys.readouterr().err
    open_folder(tmp_path / "model")


@pytest.mark.parametrize(("name", "text"), [("config.json", "{"), ("config.json", "[]"), ("config.json", None),
                                            ("model.safetensors", None)])
def test_an_incomplete_checkpoint_comes_with_a_remedy(micro_pair: tuple[Path, Path], tmp_path: Path, name: str,
                                                      text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    pair = _copy(micro_pair, tmp_path)
    (pair[0] / name).unlink()
    if text is not None:
        (pair[0] / name).write_text(text, encoding="utf-8")
    assert _run(pair, tmp_path / "model") == CheckpointError.exit_code
    errors = capsys.readouterr().err
    assert name in errors and "remedy: " in errors and "safetensors" in errors


def test_input_that_changes_meanwhile(micro_pair: tuple[Path, Path], tmp_path: Path) -> None:
    pair = _copy(micro_pair, tmp_path)

    class Disturbing(NoProgress):
        def begin(self, title: str) -> None:
            if title == "write weights":
                (pair[0] / "config.json").write_text((pair[0] / "config.json").read_text() + " ")

    with pytest.raises(CheckpointError, match=r"config\.json changed during the export"):
        export(ExportOptions(target=pair[0], out=tmp_path / "model"), Disturbing())
    assert not (tmp_path / "model").exists() and not (tmp_path / ".model.partial").exists()


def test_progress_where_there_is_no_terminal(micro_pair: tuple[Path, Path], tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Whole lines, as a log takes them, of every step when it begins and when it ends; a failure prints nothing but itself."""
    assert _run(micro_pair, tmp_path / "model") == 0
    shown = capsys.readouterr().err
    lines = re.sub(r"\d+\.\d s", "N s", shown).splitlines()
    assert lines == [line for title in ("hash target", "hash assistant", "write weights")
                     for line in (f"{title} ...", f"{title}: done after N s")]
    assert _run(micro_pair, tmp_path / "other", "--context", "0") == 2
    assert capsys.readouterr().err.startswith("gemma4web export: UsageError: context 0")


def test_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """X17: SIGINT in the middle of the weights; exit code of an interrupt, no folder, no debris."""
    target = FIXTURES / "tiny-rand" / "target"
    slow = ("import sys, time, gemma4web.export.shards as s; w = s._values\n"
            "def slow(*a):\n for b in w(*a):\n  print('block', flush=True); time.sleep(0.2); yield b\n"
            "s._values = slow; from gemma4web.__main__ import main; sys.exit(main(sys.argv[1:]))")
    process = subprocess.Popen([sys.executable, "-c", slow, "export", "--target", str(target), "--out",
                                str(tmp_path / "model")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "block\n"
    assert (tmp_path / ".model.partial" / "source.json").exists()
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and "interrupted" in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


def test_flipped_bits_in_a_published_folder(micro_folders: dict[str, ModelFolder], tmp_path: Path) -> None:
    """V1 for a model folder: any flip in any file, a missing and an extra file are named."""
    folder = shutil.copytree(micro_folders["q4"].path, tmp_path / "model")
    for path in sorted(folder.iterdir()):
        if path.name == "model.json":
            continue
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 16
        path.write_bytes(bytes(flipped))
        with pytest.raises(PublishError, match=f"{path.name} differs from its receipt"):
            open_folder(folder)
        path.write_bytes(whole[:-1])
        with pytest.raises(PublishError, match=f"{path.name} differs from its receipt"):
            open_folder(folder)
        path.write_bytes(whole)
    (folder / "extra").write_text("")
    with pytest.raises(PublishError, match=r"extra is not listed in model\.json"):
        open_folder(folder)
    (folder / "extra").unlink()
    (folder / "k2_round.g4p").unlink()
    with pytest.raises(PublishError, match="k2_round.g4p is missing"):
        open_folder(folder)
    (folder / "model.json").unlink()
    with pytest.raises(PublishError, match="is not a published model"):
        open_folder(folder)


def test_a_model_is_verified_before_it_is_in_a_bundle(micro_folders: dict[str, ModelFolder], tmp_path: Path,
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """V1, X20: every byte, and that receipts and programs speak of the same inputs and shards."""
    folder = shutil.copytree(micro_folders["q4"].path, tmp_path / "model")
    assert command_line.main(["verify", str(folder)]) == 0
    assert re.search(r"model: 5 files, [\d,]+ bytes, all as claimed; model sha256 [0-9a-f]{64}", capsys.readouterr().out)
    whole = {path.name: path.read_bytes() for path in folder.iterdir()}

    def problems(**files: bytes) -> str:
        """What is told of a folder whose receipt was made to agree with other files."""
        receipt = json.loads(whole["model.json"])
        for name, data in {**whole, **{name.replace("_g4p", ".g4p"): data for name, data in files.items()}}.items():
            (folder / name).write_bytes(data)
            if name in receipt["files"]:
                receipt["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "model.json").write_text(json.dumps(receipt))
        assert command_line.main(["verify", str(folder)]) == VerifyError.exit_code
        return capsys.readouterr().err

    other = (micro_folders["f32"].path / "k2_round.g4p").read_bytes()
    shown = problems(k2_round_g4p=other)
    assert "k2_round.g4p was exported from other inputs than source.json states" in shown
    assert "target-00001-of-00001.safetensors is not the shard that k2_round.g4p was made for" in shown
    assert "remedy: export the model again" in shown
    assert "text_decoder.g4p is a program of 'k2_round'" in problems(text_decoder_g4p=whole["k2_round.g4p"])
    (folder / "model.json").write_bytes(whole["model.json"].replace(b'"acquisition": {', b'"acquisition": {"x": 1, '))
    for name, data in whole.items():
        if name != "model.json":
            (folder / name).write_bytes(data)
    assert command_line.main(["verify", str(folder)]) == VerifyError.exit_code
    assert "model.json: `acquisition` is not what source.json says" in capsys.readouterr().err


def test_what_is_no_model_is_not_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, says in ((tmp_path, "it is neither a bundle nor an exported model"), (tmp_path / "absent", "there is no bundle at")):
        assert command_line.main(["verify", str(folder)]) == VerifyError.exit_code
        assert says in capsys.readouterr().err


def test_shard_of_another_export_is_refused(micro_folders: dict[str, ModelFolder], tmp_path: Path) -> None:
    program = micro_folders["f32"].program(ir.TEXT_DECODER)
    name = program.shards[0].file
    data = bytearray((micro_folders["f32"].path / name).read_bytes())
    data[-1] ^= 1
    (tmp_path / name).write_bytes(bytes(data))
    with pytest.raises(ProgramError, match="is not the shard that the program was made with"):
        load_weights(program, tmp_path)


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(["export", "--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    assert "None" not in text
    for option in ("--target", "--assistant", "--out", "--weights", "--prefill-rows", "--context", "--logits",
                   "--query-positions", "--max-shard-bytes", "--name"):
        assert option in text


def test_command_line_without_or_with_a_wrong_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([]) == 2 and command_line.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in command_line.COMMANDS)
    assert command_line.main(["exprot"]) == 2
    assert "no command 'exprot'" in capsys.readouterr().err
