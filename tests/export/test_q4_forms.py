"""Groups of 32, 64 and 128 columns with f16 or f32 scales, from the command line to the interpreted program."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from test_export_command import FIXTURES, _run
from test_golden import load_golden

from gemma4web.errors import UsageError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, Packed, load_weights, open_folder
from gemma4web.oracle import interpreter
from gemma4web.oracle.decode import speculative
from gemma4web.oracle.interpreter import PlainProgram, RoundProgram
from gemma4web.oracle.model import PlainModel, RoundModel
from gemma4web.oracle.weights import from_checkpoint
from gemma4web.program.ir import K2_ROUND, TEXT_DECODER, Dtype, ScaleDtype

FORMS: Final = [(group, dtype) for group in (32, 64, 128) for dtype in ScaleDtype]
TINY: Final = FIXTURES / "tiny-rand"
USUAL: Final = {"f32": "602a5491540549cfbff3332255be936f037d5fc53d25baa016d567313ca4606a",
                "q4": "587e89cb7f8824e62a84bdecd21d3777764bceaf28c8470bb698d8025816aa04"}
"""sha256 of the weight shards, each behind its name, from before there were other groups and scales."""


def _export(out: Path, **options: Any) -> ModelFolder:
    return open_folder(export(ExportOptions(target=TINY / "target", assistant=TINY / "assistant", out=out, prefill_rows=8,
                                            context=64, **options)))


@pytest.mark.parametrize("form", ["f32", "q4"])
def test_the_usual_export_has_not_changed(tmp_path: Path, form: str) -> None:
    """Every byte of the weights."""
    digest = hashlib.sha256()
    for shard in sorted(_export(tmp_path / "model", weights=form).path.glob("*.safetensors")):
        digest.update(shard.name.encode() + shard.read_bytes())
    assert digest.hexdigest() == USUAL[form]


@pytest.mark.parametrize(("group", "scale_dtype"), FORMS)
def test_programs_compute_what_the_reference_does(tmp_path: Path, group: int, scale_dtype: ScaleDtype) -> None:
    """Every matrix in the largest groups that divide its columns; logits, tokens, drafts and acceptance."""
    folder = _export(tmp_path / "model", weights="q4", group_size=group, scale_dtype=scale_dtype, all_logits=True)
    program = folder.program(K2_ROUND)
    matrices = [tensor for _, tensor in program.graph.weights() if tensor.dtype is Dtype.Q4]
    assert {tensor.group for tensor in matrices} == {size for size in (32, 64, 128) if size <= group}
    stored = load_weights(program, folder.path)
    for tensor in matrices:
        assert tensor.group == max(size for size in (32, 64, 128) if size <= group and tensor.dims[1] % size == 0)
        assert tensor.scale_dtype is scale_dtype
        packed = stored[tensor.name]
        assert isinstance(packed, Packed) and packed.scales.shape == (tensor.dims[0], tensor.dims[1] // tensor.group)
        assert packed.scales.dtype == (np.float16 if scale_dtype is ScaleDtype.F16 else np.float32)
    entry = load_golden("tiny-rand")[2]
    model = from_checkpoint(TINY / "target", TINY / "assistant", form="q4", group=group, scale_dtype=scale_dtype)
    reference, seen = PlainModel(model, context=64), list[Any]()
    first = reference.prefill(entry["prompt"])
    plain = PlainProgram(interpreter.load(folder.program(TEXT_DECODER), folder.path),
                         lambda machine, position, rows: seen.append(machine.tensor("logits")))
    assert plain.prefill(entry["prompt"]) == first
    np.testing.assert_allclose(np.concatenate(seen), reference.logits[0], atol=1e-4)
    text = speculative(RoundProgram(interpreter.load(program, folder.path)), entry["prompt"], 8)
    assert text == speculative(RoundModel(model, context=64), entry["prompt"], 8)


def test_larger_groups_and_narrower_scales_are_smaller(tmp_path: Path) -> None:
    """Bits a weight of a matrix with 128 columns: 4 and a scale's over the group."""
    for group, scale_dtype in FORMS:
        program = _export(tmp_path / f"{group}{scale_dtype}", weights="q4", group_size=group,
                          scale_dtype=scale_dtype).program(TEXT_DECODER)
        table = next(index for index, tensor in program.graph.weights() if tensor.name.endswith("embed_tokens.weight"))
        scales = next(weight.scales for weight in program.weights if weight.tensor == table)
        assert scales is not None and scales.bytes == 1024 * 128 // group * scale_dtype.bytes


def test_command_line(tmp_path: Path, micro_pair: tuple[Path, Path]) -> None:
    """The receipt says what is not usual, and nothing of what is."""
    assert _run(micro_pair, tmp_path / "model", "--weights", "q4", "--group-size", "64", "--scale-dtype", "f32") == 0
    options = json.loads((tmp_path / "model/source.json").read_bytes())["options"]
    assert (options["group_size"], options["scale_dtype"]) == (64, "f32")
    groups = {tensor.group for _, tensor in open_folder(tmp_path / "model").program(K2_ROUND).graph.weights()
              if tensor.dtype is Dtype.Q4}
    assert groups == {32, 64}
    assert _run(micro_pair, tmp_path / "usual", "--weights", "q4", "--group-size", "32", "--scale-dtype", "f16") == 0
    assert _run(micro_pair, tmp_path / "default", "--weights", "q4") == 0
    for path in (tmp_path / "usual").iterdir():
        assert path.read_bytes() == (tmp_path / "default" / path.name).read_bytes(), path.name


@pytest.mark.parametrize("options", [("--group-size", "64"), ("--scale-dtype", "f32")])
def test_f32_weights_have_no_scales(tmp_path: Path, micro_pair: tuple[Path, Path], options: tuple[str, str],
                                    capsys: pytest.CaptureFixture[str]) -> None:
    assert _run(micro_pair, tmp_path / "model", *options) == UsageError.exit_code
    assert "--weights q4" in capsys.readouterr().err and not (tmp_path / "model").exists()


def test_packed_blocks_keep_their_groups(tmp_path: Path) -> None:
    """Q4_0 has groups of 32: others are refused, f32 scales have the values of the f16 ones."""
    story = {"target": FIXTURES / "story/story-target.gguf", "assistant": FIXTURES / "story/story-assistant.gguf"}
    with pytest.raises(UsageError, match=r"is Q4_0, whose groups have 32 columns, not 64") as caught:
        export(ExportOptions(**story, out=tmp_path / "wide", group_size=64))
    assert "leave out --group-size" in str(caught.value) and not (tmp_path / "wide").exists()
    stored = []
    for scale_dtype in ScaleDtype:
        folder = open_folder(export(ExportOptions(**story, out=tmp_path / scale_dtype.name, scale_dtype=scale_dtype)))
        stored.append(load_weights(folder.program(TEXT_DECODER), folder.path))
    compared = 0
    for name, narrow in stored[0].items():
        if isinstance(narrow, Packed):
            wide = stored[1][name]
            assert isinstance(wide, Packed) and wide.scales.dtype == np.float32
            assert np.array_equal(narrow.values, wide.values) and np.array_equal(narrow.scales, wide.scales)
            compared += 1
    assert compared > 50
