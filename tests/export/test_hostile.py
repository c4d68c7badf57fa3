"""P42, P43, P49, P50: checkpoints that were made to do harm are refused at once, in little memory, and nothing is written.

Time and memory are those of a process that does nothing else, beyond what the same process needs for a missing file.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_checkpoints as fuzz
import gguf
import numpy as np
import pytest
from micro_checkpoint import safetensors_bytes, target_config, target_tensors, write_checkpoint

from gemma4web.errors import CheckpointError
from gemma4web.export import json_file
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.gguf_file import GgufTensors
from gemma4web.program.ir import ScaleDtype

MAX_SECONDS, MAX_BYTES = 1.0, 100_000_000

_EXPORT = """
import json, resource, sys, time
from pathlib import Path
from gemma4web.errors import CheckpointError
from gemma4web.export.exporter import ExportOptions, export
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def refused(path):
    began = time.process_time()
    try:
        export(ExportOptions(target=Path(path), out=Path(sys.argv[1])))
    except CheckpointError as error:
        return str(error), time.process_time() - began
    return "exported", 0
refused("absent")
for path in sys.argv[2:]:
    before = peak()
    message, seconds = refused(path)
    print(json.dumps([message, seconds, peak() - before]))
"""


def _refuse(path: Path, tmp_path: Path) -> str:
    """The message of a process of its own, which keeps to time and memory."""
    out = tmp_path / "nowhere" / "model"
    done = subprocess.run([sys.executable, "-c", _EXPORT, str(out), str(path)], capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    message, seconds, grown = json.loads(done.stdout)
    assert str(path) in message and "\n  remedy: " in message and len(message) < 1500, message
    assert seconds <= MAX_SECONDS and grown <= MAX_BYTES, (seconds, grown)
    assert not out.parent.exists()
    return str(message)


def _header(text: bytes, length: int | None = None, data: bytes = b"") -> bytes:
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def _members(count: int, text: str) -> bytes:
    return b"{" + b",".join(f'"{number}":{text}'.encode() for number in range(count)) + b"}"


_SAFETENSORS: dict[str, tuple[Callable[[], bytes], str]] = {
    "length of 2^64-1": (lambda: _header(b"{}", (1 << 64) - 1), "too few for a header of 18446744073709551615"),
    "length of 2^63": (lambda: _header(b"{}", 1 << 63), "too few for a header"),
    "longer than the file": (lambda: _header(b"{}", 3), "too few for a header of 3"),
    "empty": (lambda: b"", "too few for a header"),
    "200 MB of brackets": (lambda: _header(b"[" * 200_000_000), "wanted at most 4194304"),
    "4 MB of brackets": (lambda: _header(b"[" * 4_000_000), "more than 50000 objects"),
    "nested": (lambda: _header(b'{"a":' * 50_000), "nested too deeply|more than"),
    "4 MB of empty lists": (lambda: _header(b'{"a":[' + b"[]," * 1_300_000 + b"[]]}"), "more than 50000 objects"),
    "4 MB of numbers": (lambda: _header(b'{"a":[' + b"1," * 2_000_000 + b"1]}"), "100000 members"),
    "as many members as go": (lambda: _header(_members(99_000, "0") + b","), "the header is not JSON|entry of|malformed"),
    "as many objects as go": (lambda: _header(_members(49_000, "{}")), "entry of .* is malformed"),
    "one text of 4 MB": (lambda: _header(b'{"' + "😀".encode() + b"a" * 4_000_000 + b'":0}'), "no name of a tensor"),
    "a number of 4 MB": (lambda: _header(b'{"a":' + b"9" * 4_000_000 + b"}"), "not JSON"),
    "shape of bignums": (lambda: _header(b'{"a":{"dtype":"F32","shape":[' + b",".join([b"9" * 4000] * 900) + b'],"data_offsets":[0,0]}}'),
                         "malformed shape"),
    "product overflow": (lambda: _header(
        b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'), "needs 73786976294838206464 bytes"),
    "BOM": (lambda: _header("\ufeff{}".encode()), "not JSON"),
    "UTF-16": (lambda: _header("{}".encode("utf-16")), "not JSON"),
    "no UTF-8": (lambda: _header(b'{"\xff":0}'), "not JSON"),
    "NaN": (lambda: _header(b'{"a":NaN}'), "NaN is no JSON number"),
    "trailing data": (lambda: _header(b"{}{}"), "not JSON"),
    "half a character": (lambda: _header(rb'{"\ud800":0}'), "not JSON"),
    "terminal escape": (lambda: _header(rb'{"\u001b[2J":0}'), r"no name of a tensor"),
}


@pytest.mark.parametrize("name", _SAFETENSORS)
def test_safetensors_header(tmp_path: Path, name: str) -> None:
    make, message = _SAFETENSORS[name]
    write_checkpoint(tmp_path / "target", target_config(), target_tensors())
    (tmp_path / "target" / "model.safetensors").write_bytes(make())
    found = _refuse(tmp_path / "target", tmp_path)
    assert "model.safetensors" in found and re.search(message, found), found


def test_sparse_file_of_terabytes(tmp_path: Path) -> None:
    """A header that is true of the file, and a table of embeddings that no memory holds."""
    config = target_config() | {"vocab_size": 1 << 30, "vocab_size_per_layer_input": 1 << 30}
    folder = write_checkpoint(tmp_path / "target", config, {"model.embed_tokens.weight": np.zeros((64, 32), np.float32)})
    text = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [1 << 30, 32], "data_offsets": [0, 1 << 37]}}).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(_header(text))
        stream.truncate(8 + len(text) + (1 << 37))
    assert "`vocab_size` is 1073741824, wanted an integer 1..1048576" in _refuse(folder, tmp_path)


def test_graph_of_more_layers_than_any_model(tmp_path: Path) -> None:
    config = target_config() | {"num_hidden_layers": 90_000, "layer_types": ["full_attention"] * 90_000}
    message = _refuse(write_checkpoint(tmp_path / "target", config, target_tensors()), tmp_path)
    assert "`num_hidden_layers` is 90000, wanted an integer 1..256" in message


def _gguf(*keys: bytes, tensors: int = 0, count: int | None = None, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys) if count is None else count) + b"".join(keys)


def _text(data: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(data) if length is None else length) + data


def _list(kind: int, count: int, data: bytes) -> bytes:
    return _text(b"a.list") + struct.pack("<IIQ", 9, kind, count) + data


def _info(name: bytes, *dims: int, kind: int = 0, offset: int = 0) -> bytes:
    return _text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


_GGUF: dict[str, tuple[Callable[[], bytes], str]] = {
    "2^64-1 tensors": (lambda: _gguf(tensors=(1 << 64) - 1), "18446744073709551615 tensors, wanted at most"),
    "2^63 keys": (lambda: _gguf(count=1 << 63), "9223372036854775808 metadata keys"),
    "key of 2^64-1 bytes": (lambda: _gguf(_text(b"a", (1 << 64) - 1)), "a string at byte 24 has 18446744073709551615 bytes"),
    "text beyond the end": (lambda: _gguf(_text(b"a") + struct.pack("<I", 8) + _text(b"abc", 4000)), "no complete GGUF file"),
    "list of 2^60 flags": (lambda: _gguf(_list(7, 1 << 60, b"")), "1152921504606846976 elements in a list"),
    "50 MB of flags": (lambda: _gguf(_list(7, 50_000_000, bytes(50_000_000))), "50000000 elements in a list"),
    "50 MB of empty texts": (lambda: _gguf(_list(8, 6_000_000, bytes(48_000_000))), "6000000 elements in a list"),
    "as many texts as go": (lambda: _gguf(_list(8, 1 << 20, _text(b"abcdef") * (1 << 20))), "`general.architecture` is nothing"),
    "lists in lists": (lambda: _gguf(_text(b"a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000), "holds lists"),
    "longest texts": (lambda: _gguf(*(_text(b"%d" % n) + struct.pack("<I", 8) + _text("😀".encode() + b"a" * 1_000_000)
                                      for n in range(40))), "header reaches beyond byte"),
    "key twice": (lambda: _gguf(*[_text(b"a") + struct.pack("<IB", 0, 1)] * 2), "key a stands twice"),
    "unknown value type": (lambda: _gguf(_text(b"a") + struct.pack("<I", 77)), "unknown type 77"),
    "flag of 2": (lambda: _gguf(_text(b"a") + struct.pack("<IB", 7, 2)), "neither 0 nor 1"),
    "no UTF-8": (lambda: _gguf(_text(b"\xff") + struct.pack("<IB", 0, 1)), "no UTF-8"),
    "terminal escape": (lambda: _gguf(_text(b"\x1b[2J") + struct.pack("<IB", 0, 1)), "no name of a key or tensor"),
    "alignment 0": (lambda: _gguf(_text(b"general.alignment") + struct.pack("<II", 4, 0)), "wanted a power of two"),
    "alignment 2^31": (lambda: _gguf(_text(b"general.alignment") + struct.pack("<II", 4, 1 << 31)), "wanted a power of two"),
    "alignment of text": (lambda: _gguf(_text(b"general.alignment") + struct.pack("<I", 8) + _text(b"32")), "power of two"),
    "rank of 2^32-1": (lambda: _gguf(_text(b"t") + struct.pack("<I", (1 << 32) - 1), tensors=1, count=0), "4294967295 dimensions"),
    "dimension of 0": (lambda: _gguf(_info(b"t", 0, 4), tensors=1, count=0), r"dimensions \[0, 4\]"),
    "product of 2^126": (lambda: _gguf(_info(b"t", 1 << 63, 1 << 63), tensors=1, count=0), "no complete GGUF file"),
    "product of 2^64": (lambda: _gguf(_info(b"t", 1 << 32, 1 << 32, kind=0), tensors=1, count=0), "no complete GGUF file"),
    "offset of 2^64-32": (lambda: _gguf(_info(b"t", 8, offset=(1 << 64) - 32), tensors=1, count=0) + bytes(96), "no complete"),
    "unknown tensor type": (lambda: _gguf(_info(b"t", 32, kind=99), tensors=1, count=0), "unknown type 99"),
    "part of a block": (lambda: _gguf(_info(b"t", 33, 2, kind=2), tensors=1, count=0), "the first a multiple of 32"),
    "tensor twice": (lambda: _gguf(_info(b"t", 1), _info(b"t", 1, offset=32), tensors=2, count=0) + bytes(128), "t stands twice"),
    "overlap": (lambda: _gguf(_info(b"t", 16), _info(b"u", 16), tensors=2, count=0) + bytes(256), "tensor u .* begins at byte"),
    "gap": (lambda: _gguf(_info(b"t", 8), _info(b"u", 8, offset=64), tensors=2, count=0) + bytes(256), "tensor u .* begins at"),
}


@pytest.mark.parametrize("name", _GGUF)
def test_gguf_header(tmp_path: Path, name: str) -> None:
    make, message = _GGUF[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(make())
    found = _refuse(path, tmp_path)
    assert re.search(message, found), found


_NAMES = ["../x.safetensors", "/etc/passwd", "a/../../x.safetensors", "C:\\x.safetensors", "a\\..\\x.safetensors",
          "x\0.safetensors", "", ".", "..", "x.safetensors/", "\ud800.safetensors", "x" * 300 + ".safetensors", "config.json",
          3, None, ["model.safetensors"]]


@pytest.mark.parametrize("name", _NAMES, ids=map(ascii, range(len(_NAMES))))
def test_index_that_names_other_files(tmp_path: Path, name: Any) -> None:
    """P49: nothing outside the folder is read, not even to see whether it is there."""
    (tmp_path / "x.safetensors").write_bytes(safetensors_bytes(target_tensors()))
    folder = write_checkpoint(tmp_path / "target", target_config(), target_tensors())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match=r"index.json (names|is no safetensors index)") as caught:
        export(ExportOptions(target=folder, out=tmp_path / "model"))
    assert str(caught.value).isprintable() or "\n" in str(caught.value)
    str(caught.value).encode()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["target", "x.safetensors"]


def test_index_of_another_download(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "target", target_config(), target_tensors(), shards=3)
    index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    for change in ({"model.extra": "model-00001-of-00003.safetensors"},
                   {"model.norm.weight": next(file for file in sorted(set(index["weight_map"].values()))
                                              if file != index["weight_map"]["model.norm.weight"])}):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index["weight_map"] | change}))
        with pytest.raises(CheckpointError, match="which it does not"):
            export(ExportOptions(target=folder, out=tmp_path / "model"))


@pytest.mark.parametrize("text", ['{"vocab_size": 64, "vocab_size": 65}', '{"a": NaN}', '{"a": Infinity}', '\ufeff{}', '{} {}',
                                  '{"a": "\\ud800"}', '{"a": ' * 9000])
def test_json_that_two_readers_take_differently(tmp_path: Path, text: str) -> None:
    """P50: in every JSON file of a checkpoint."""
    for name in ("config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"):
        folder = write_checkpoint(tmp_path / f"in {name}", target_config(), target_tensors())
        (folder / name).write_text(text, encoding="utf-8")
        with pytest.raises(CheckpointError, match=f"{name} is no"):
            export(ExportOptions(target=folder, out=tmp_path / "model"))
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("name", ["\0", "\x1b[2J", "x" * 5000])
def test_names_of_fields_are_shown_safely(tmp_path: Path, name: str) -> None:
    """A name of the file stands in the message, and reaches a terminal."""
    config = target_config()
    config["rope_parameters"]["full_attention"][name] = 1
    folder = write_checkpoint(tmp_path / "target", config, target_tensors())
    with pytest.raises(CheckpointError, match="RoPE scaling is not supported") as caught:
        export(ExportOptions(target=folder, out=tmp_path / "model"))
    assert str(caught.value).replace("\n", "").isprintable() and len(str(caught.value)) < 1000


@pytest.mark.parametrize("value", [1e308, 10**400, 1e-300])
@pytest.mark.parametrize("name", ["rms_norm_eps", "final_logit_softcapping", "rope_theta"])
def test_numbers_that_no_f32_holds(tmp_path: Path, name: str, value: float) -> None:
    """A program stores f32: such a number would be none, infinite or zero there."""
    config = target_config()
    (config["rope_parameters"]["full_attention"] if name == "rope_theta" else config)[name] = value
    folder = write_checkpoint(tmp_path / "target", config, target_tensors())
    with pytest.raises(CheckpointError, match=f"{name}` is .*, wanted a finite number > 0 that an f32 holds"):
        export(ExportOptions(target=folder, out=tmp_path / "model"))


def test_a_scale_that_is_too_large_is_of_a_file(tmp_path: Path) -> None:
    tensors = target_tensors()
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e38
    folder = write_checkpoint(tmp_path / "target", target_config(), tensors)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: model\.layers\.0\.self_attn\.q_proj\.weight: a value of magnitude 1e\+38"):
        export(ExportOptions(target=folder, out=tmp_path / "model", weights="q4"))


def test_files_that_are_too_large(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "target", target_config(), target_tensors())
    with (folder / "tokenizer.json").open("wb") as stream:
        stream.truncate(1 << 40)
    assert "tokenizer.json has more than 67108864 bytes" in _refuse(folder, tmp_path)
    with (folder / "config.json").open("wb") as stream:
        stream.truncate(1 << 40)
    assert f"wanted at most {json_file.MAX_BYTES}" in _refuse(folder, tmp_path)


def test_links_and_other_things_that_are_no_files(tmp_path: Path) -> None:
    """A cache of downloads has links for files: they are followed. A pipe or a device would hang the export."""
    folder = write_checkpoint(tmp_path / "target", target_config(), target_tensors())
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert export(ExportOptions(target=folder, out=tmp_path / "model", context=8)).is_dir()
    for make in (lambda: weights.symlink_to("/dev/zero"), lambda: os.mkfifo(weights), weights.mkdir):
        weights.unlink()
        make()
        with pytest.raises(CheckpointError, match="no regular file"):
            export(ExportOptions(target=folder, out=tmp_path / "other"))
        if weights.is_dir():
            weights.rmdir()
            weights.touch()


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers(tmp_path: Path, dtype: str, value: float) -> None:
    """P43: in a matrix or a norm, in either form of weights; named, and nothing written."""
    for name in ("model.layers.1.mlp.up_proj.weight", "model.norm.weight"):
        tensors = target_tensors()
        tensors[name].reshape(-1)[-1] = value
        folder = write_checkpoint(tmp_path / f"{name}", target_config(), tensors, dtype=dtype)
        for weights in ("q4", "f32"):
            with pytest.raises(CheckpointError, match=f"{name} holds a NaN or infinity"):
                export(ExportOptions(target=folder, out=tmp_path / "model", weights=weights))
    assert not (tmp_path / "model").exists() and not (tmp_path / ".model.partial").exists()


@pytest.mark.parametrize("dtype", ["Q4_0", "Q8_0", "Q6_K"])
def test_steps_that_are_no_numbers(tmp_path: Path, dtype: str) -> None:
    width, at = {"Q4_0": (18, 0), "Q8_0": (34, 0), "Q6_K": (210, 208)}[dtype]
    raw = np.zeros((3, 256 // {18: 32, 34: 32, 210: 256}[width] * width), np.uint8)
    raw[:, at::width] = 1
    raw[2, at : at + 2] = np.array([np.nan], "<f2").view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "w.gguf", "gemma4")
    writer.add_tensor("token_embd.weight", raw, raw_dtype=gguf.GGMLQuantizationType[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GgufTensors(tmp_path / "w.gguf") as tensors:
        for read in (lambda: tensors.float_rows("model.embed_tokens.weight", (3, 256), slice(None)),
                     lambda: tensors.q4_rows("model.embed_tokens.weight", (3, 256), slice(None), label="w", group=32,
                                             scale_dtype=ScaleDtype.F16)):
            with pytest.raises(CheckpointError, match=r"NaN or infinity \(first in row 2\)"):
                read()
        tensors.float_rows("model.embed_tokens.weight", (3, 256), slice(0, 2))


def test_fuzzed_inputs() -> None:
    """A slice of what tests/export/fuzz_checkpoints.py runs; every kind is refused and exported at times."""
    report = fuzz.run(seed=7, numbers=range(400))
    assert report.findings == []
    assert sum(counts.total() for counts in report.outcomes.values()) == 400
    for counts in (*(report.outcomes[kind] for kind, _ in fuzz.KINDS), report.roles["target"], report.roles["assistant"]):
        assert counts["refused"] > 20 and counts["exported"] > 0, report.outcomes
    assert len(report.changes) > 30 and all(counts["refused"] for counts in report.changes.values())
    assert len(report.messages) > 100


def test_the_judge_notices() -> None:
    """What the run calls a finding: a crash, a message without a file or a remedy, something left behind, time and memory."""
    def broken(kind: str) -> Callable[[ExportOptions], None]:
        def export_(options: ExportOptions) -> None:
            if kind == "crash":
                raise ValueError("x")
            if kind == "left":
                options.out.mkdir()
            if kind == "slow":
                began = time.process_time()
                while time.process_time() - began < fuzz.MAX_SECONDS:
                    pass
            if kind == "large":
                bytes(range(256)) * (fuzz.MAX_BYTES // 200)
            raise CheckpointError("no name" if kind == "no name" else f"{options.target}\x1b" if kind == "escape" else str(options.target),
                                  advice=None if kind == "no remedy" else "do")
        return export_

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        for kind, finding in (("crash", "ValueError: x"), ("no name", "names no file of the input"), ("left", "left ['model']"),
                              ("escape", "is no short printable text"), ("no remedy", "names no remedy"), ("large", "took "),
                              ("slow", "took "), ("sound", None), ("large", "took ")):
            patch.setattr(fuzz, "export", broken(kind))
            found = fuzz.judge(Path("in"), Path(name)).finding
            assert found == finding or (finding == "took " and str(found).startswith(finding)), (kind, found)
