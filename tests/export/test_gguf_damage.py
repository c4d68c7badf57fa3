"""GGUF files that are damaged, or not what they are named for: one error with file, found, wanted and remedy."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import loose_files
import numpy as np
import pytest
import tiny_story
from fixtures.story.training import pack
from gguf import GGMLQuantizationType as Type

from gemma4web import __main__ as command_line
from gemma4web.errors import CheckpointError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.gguf_file import GgufTensors
from gemma4web.export.gguf_source import GgufSource

Change = Callable[[pack.File], None]

TARGET, ASSISTANT = 0, 1
VOCAB = 512


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tiny_story.written(tiny_story.story_files(VOCAB), tmp_path_factory.mktemp("story"))


def _key(name: str, value: Any = None) -> Change:
    """Replaces or, with None, drops a key behind the architecture's name."""
    def change(file: pack.File) -> None:
        own = name.split(".")[0] not in ("general", "tokenizer", "split")
        key = f"{file.architecture}.{name}" if own else name
        file.metadata.pop(key, None)
        if value is not None:
            file.metadata[key] = value
    return change


def _tensor(name: str, values: np.ndarray | None, type_: Type = Type.F32) -> Change:
    def change(file: pack.File) -> None:
        del file.tensors[name]
        if values is not None:
            file.tensors[name] = values, type_
    return change


def _more(name: str, values: np.ndarray, type_: Type) -> Change:
    def change(file: pack.File) -> None:
        file.tensors[name] = values, type_
    return change


def _both(*changes: Change) -> Change:
    def change(file: pack.File) -> None:
        for one in changes:
            one(file)
    return change


_FREQS = pack.rope_freqs(64)
_LARGE_STEP = np.full((32, 64), 0x7C, np.uint8)


@pytest.mark.parametrize(("role", "change", "message"), [
    (TARGET, _key("block_count"), r"`gemma4.block_count` is nothing, wanted a value"),
    (TARGET, _key("attention.key_length"), "`gemma4.attention.key_length` is nothing, wanted a value"),
    (TARGET, _key("attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon` is nothing"),
    (TARGET, _key("attention.key_length", [-1000.0] * 512), r"key_length` is \[.{,210}, wanted an integer"),
    (TARGET, _key("feed_forward_length"), "feed_forward_length` is nothing"),
    (TARGET, _key("feed_forward_length", [32, 32, 64, 96]), "wanted one width for 2 layers, the same or twice as much"),
    (TARGET, _key("feed_forward_length", [32, 32, 64]), "wanted one width for 2 layers"),
    (TARGET, _key("attention.head_count", [2, 2, 4, 4]), "wanted one number for all 4 layers"),
    (TARGET, _key("attention.sliding_window_pattern", [True, False]), "wanted 4 times true for a sliding"),
    (TARGET, _key("attention.sliding_window_pattern", 2), "wanted 4 times true for a sliding"),
    (TARGET, _key("attention.value_length", 32), "`gemma4.attention.value_length` is 32, wanted null or 64"),
    (TARGET, _key("rope.dimension_count_swa", 16), "rope.dimension_count_swa` is 16, wanted null or 32"),
    (TARGET, _key("rope.scaling.type", "yarn"), "RoPE scaling is not supported"),
    (TARGET, _key("rope.scaling.factor", 8.0), r"`gemma4.rope.scaling.factor` is 8.0"),
    (TARGET, _key("rope.freq_base_swa"), "rope.freq_base_swa` is nothing"),
    (TARGET, _key("expert_count", 128), r"mixture-of-experts models \(26B-A4B\) are not supported"),
    (TARGET, _key("context_length"), "`gemma4.context_length` is nothing"),
    (TARGET, _key("attention.head_count", 4), r"blk.0.attn_q.weight has shape \[64, 32\], wanted \[128, 32\]"),
    (TARGET, _key("block_count", 2**31 - 1), "wanted 2147483647 times true"),
    (TARGET, _key("split.count", 3), "is one of 3 parts, wanted a whole model"),
    (TARGET, _key("tokenizer.ggml.tokens", ["<pad>", "<eos>", "<bos>"]), "wanted 512 pieces, .* found 3"),
    (TARGET, _key("tokenizer.ggml.model", "llama"), "only Gemma 4's own tokenizer is supported"),
    (TARGET, _key("tokenizer.ggml.eos_token_id", 5000), "`tokenizer.ggml.eos_token_id` is 5000, wanted token ids below 512"),
    (TARGET, _tensor("token_embd.weight", None), "tensor token_embd.weight is missing"),
    (TARGET, _tensor("blk.3.ffn_up.weight", None), "tensor blk.3.ffn_up.weight is missing"),
    (TARGET, _tensor("rope_freqs.weight", None), "tensor rope_freqs.weight is missing"),
    (TARGET, _tensor("rope_freqs.weight", _FREQS[::-1].copy()),
     r"rope_freqs.weight is 1e\+30 at 0, wanted 8 times 1, then 24 times"),
    (TARGET, _tensor("rope_freqs.weight", np.ones(32, np.float32)), "rope_freqs.weight is 1 at 8"),
    (TARGET, _tensor("rope_freqs.weight", np.ones(16, np.float32)), r"rope_freqs.weight has shape \[16\], wanted \[32\]"),
    (TARGET, _tensor("output_norm.weight", np.ones(31, np.float32)), r"output_norm.weight has shape \[31\], wanted \[32\]"),
    (TARGET, _tensor("output_norm.weight", np.full(32, np.nan, np.float32)), "output_norm.weight holds a NaN or infinity"),
    (TARGET, _tensor("output_norm.weight", np.ones(32, np.int32), Type.I32), "output_norm.weight is I32, wanted one of F32"),
    (TARGET, _tensor("blk.0.attn_output.weight", np.repeat(_LARGE_STEP, 18, axis=1)[:, :36], Type.Q4_0),
     r"blk.0.attn_output.weight holds a NaN or infinity \(first in row 0\)"),
    (TARGET, _more("output.weight", np.ones((VOCAB, 32), np.float32), Type.F32), "output.weight differs from token_embd.weight"),
    (TARGET, _tensor("blk.0.inp_gate.weight", np.zeros((32, 144), np.uint8), Type.Q4_K),
     "tensor blk.0.inp_gate.weight is Q4_K, wanted one of F32, F16, BF16, I32, Q4_0, Q6_K, Q8_0"),
    (TARGET, _more("extra.weight", np.zeros((1, 84), np.uint8), Type.Q2_K), "tensor extra.weight is Q2_K"),
    (TARGET, _tensor("token_embd.weight", np.full((VOCAB, 34), 0x7F, np.uint8), Type.Q8_0),
     r"token_embd.weight holds a NaN or infinity \(first in row 0\)"),
    (ASSISTANT, _tensor("masked_embd_ordering", None), "tensor masked_embd_ordering is missing"),
    (ASSISTANT, _tensor("masked_embd_centroids.weight", None), "tensor masked_embd_centroids.weight is missing"),
    (ASSISTANT, _more("output.weight", np.ones((VOCAB, 64), np.float32), Type.F32), "output.weight differs from token_embd.weight"),
    (ASSISTANT, _key("attention.head_count_kv", 2), "`gemma4-assistant.attention.head_count_kv` is 2, wanted in layer 0 the target's 1"),
    (ASSISTANT, _tensor("masked_embd_ordering", np.zeros(VOCAB, np.int32), Type.I32),
     "masked_embd_ordering is no permutation of 0..511"),
    (ASSISTANT, _tensor("masked_embd_ordering", np.zeros(VOCAB, np.float32)),
     "masked_embd_ordering is F32, wanted one of I64, I32"),
    (ASSISTANT, _tensor("nextn.pre_projection.weight", None), "tensor nextn.pre_projection.weight is missing"),
    (ASSISTANT, _tensor("token_embd.weight", np.ones((256, 64), np.float32)),
     "rows of token_embd.weight` is 256, wanted the target's 512"),
    (ASSISTANT, _key("n_centroids", 32), "`gemma4-assistant.n_centroids` is 32, wanted null or 64"),
    (ASSISTANT, _key("centroid_top_k", 65), "`gemma4-assistant.centroid_top_k` is 65, wanted an integer 1..64"),
    (ASSISTANT, _key("embedding_length_out"), "`gemma4-assistant.embedding_length_out` is nothing"),
    (ASSISTANT, _key("embedding_length_out", 64),
     "`gemma4-assistant.embedding_length_out` is 64, wanted the target's hidden_size 32"),
    (ASSISTANT, _key("attention.sliding_window", 8),
     "`gemma4-assistant.attention.sliding_window` is 8, wanted the target's 4"),
    (ASSISTANT, _key("rope.freq_base", 1e5), "`gemma4-assistant.rope.freq_base` is .*, wanted the target's"),
    (ASSISTANT, _key("attention.shared_kv_layers", 1), "`gemma4-assistant.attention.shared_kv_layers` is 1, wanted 0 or 2"),
])
def test_refused(story: tuple[Path, Path], tmp_path: Path, role: int, change: Change, message: str,
                 capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code of a bad checkpoint, the file and the trouble named, nothing left behind."""
    file = tiny_story.story_files(VOCAB)[role]
    change(file)
    bad = tmp_path / "bad.gguf"
    file.write(bad)
    pair = [bad if number == role else path for number, path in enumerate(story)]
    words = ["export", "--target", str(pair[0]), "--assistant", str(pair[1]), "--out", str(tmp_path / "model")]
    assert command_line.main(words) == CheckpointError.exit_code
    errors = capsys.readouterr().err
    assert re.search(message, errors.replace("\n", " ")) and str(bad) in errors and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == [bad]


def test_remedies(story: tuple[Path, Path], tmp_path: Path) -> None:
    """What to do instead, where somebody will meet the error with a sound file."""
    def advice(target: Path, assistant: Path | None = None) -> str:
        with pytest.raises(CheckpointError) as caught:
            export(ExportOptions(target=target, assistant=assistant, out=tmp_path / "model"))
        return str(caught.value.advice)

    assert advice(story[1]) == "it is an assistant: name it with --assistant"
    assert advice(story[0], story[0]) == "it is a target: name it with --target"
    file = tiny_story.story_files(VOCAB)[TARGET]
    file.metadata["gemma4.expert_count"] = 128
    file.write(tmp_path / "experts.gguf")
    assert advice(tmp_path / "experts.gguf").startswith("mixture-of-experts models (26B-A4B) are not supported")
    other = pack.File(architecture="llama", metadata={}, tensors={"rope_freqs.weight": (_FREQS, Type.F32)})
    other.write(tmp_path / "llama.gguf")
    assert advice(tmp_path / "llama.gguf") == "name a Gemma 4 text model or its assistant"
    (tmp_path / "notes.txt").write_text("hello")
    assert advice(tmp_path / "notes.txt") == "name a checkpoint's folder with config.json and safetensors, or a GGUF file"
    more = pack.File(architecture="gemma4", metadata={}, tensors={"a": (np.zeros((1, 144), np.uint8), Type.Q4_K)})
    more.write(tmp_path / "q4_k.gguf")
    assert advice(tmp_path / "q4_k.gguf").startswith("name a file whose matrices are Q4_0, Q6_K, Q8_0, BF16, F16 or F32")


@pytest.mark.parametrize("name", ["rope.freq_base", "attention.layer_norm_rms_epsilon", "final_logit_softcapping"])
def test_number_that_no_f32_holds(tmp_path: Path, name: str) -> None:
    """Refused by name, and no arithmetic warns on the way."""
    keys, parts = loose_files.gguf_parts(tiny_story.story_files(VOCAB)[TARGET])
    (tmp_path / "large.gguf").write_bytes(loose_files.write_gguf(keys | {f"gemma4.{name}": 1e308}, parts))
    with pytest.raises(CheckpointError, match=f"`gemma4.{name}` is "):
        export(ExportOptions(target=tmp_path / "large.gguf", out=tmp_path / "model"))


@pytest.mark.parametrize("path", ["absent.gguf", "absent"])
def test_nothing_there(tmp_path: Path, path: str) -> None:
    with pytest.raises(CheckpointError, match=f"{path} (cannot be read|is neither a folder nor a file)"):
        export(ExportOptions(target=tmp_path / path, out=tmp_path / "model"))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A whole file of some hundred bytes: every kind of metadata, three tensors with padding between them."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    metadata = {"gemma4.block_count": 2, "general.name": "Klein ü", "a.list": [1, 2, 3], "a.flags": [True, False],
                "a.words": ["x", "yz"], "a.ratio": 0.5, "general.alignment": 32}
    pack.File(architecture="gemma4", metadata=metadata, tensors={
        "token_embd.weight": (np.zeros((2, 18), np.uint8), Type.Q4_0), "output_norm.weight": (np.ones(3, np.float32), Type.F32),
        "rope_freqs.weight": (np.ones(8, np.float32), Type.F32)}).write(path)
    return path.read_bytes()


def test_every_truncation(small: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(small)
    assert GgufTensors(path).metadata["a.words"] == ["x", "yz"]
    for length in range(len(small)):
        path.write_bytes(small[:length])
        with pytest.raises(CheckpointError, match=re.escape(str(path))):
            GgufTensors(path)
    path.write_bytes(small + b"\0")
    with pytest.raises(CheckpointError, match="wanted no more than"):
        GgufTensors(path)


def test_every_flipped_byte(small: bytes, tmp_path: Path) -> None:
    """Whatever a byte of the header becomes, the file is read or refused: no other error, no endless loop."""
    path, refused = tmp_path / "flipped.gguf", 0
    for place in range(len(small)):
        for value in (0xFF, small[place] ^ 1):
            path.write_bytes(small[:place] + bytes([value]) + small[place + 1 :])
            try:
                with GgufSource(path) as source:
                    source.target()
            except CheckpointError as error:
                refused += 1
                assert str(path) in str(error)
    assert refused > len(small) // 2


def test_tensors_may_not_overlap(small: bytes, tmp_path: Path) -> None:
    begin = small.index(b"rope_freqs.weight") + len(b"rope_freqs.weight") + 4 + 8 + 4
    (offset,) = struct.unpack_from("<Q", small, begin)
    assert offset == 96
    path = tmp_path / "overlap.gguf"
    path.write_bytes(small[:begin] + struct.pack("<Q", 64) + small[begin + 8 :])
    with pytest.raises(CheckpointError, match="rope_freqs.weight .* begins at byte"):
        GgufTensors(path)


def test_big_endian(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "gemma4", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="is a big-endian GGUF file"):
        GgufTensors(tmp_path / "big.gguf")


def test_another_version_is_no_damage(story: tuple[Path, Path], tmp_path: Path) -> None:
    data = bytearray(story[0].read_bytes())
    data[4] = 4
    newer = tmp_path / "newer.gguf"
    newer.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"is a GGUF file of version 4, wanted one of 2, 3") as refused:
        export(ExportOptions(target=newer, out=tmp_path / "model"))
    assert "convert the model again" in str(refused.value.advice)
