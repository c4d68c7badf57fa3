"""What people get wrong when they export: each mistake has an error that says what to do, and nothing is written.

The commands run as processes of their own without root's right to read everything, in folders made for the mistake.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from micro_checkpoint import assistant_config, assistant_tensors, target_config, write_checkpoint, write_pair

from gemma4web import __main__ as command_line
from gemma4web.errors import CheckpointError, DiskFullError, PublishError, UsageError
from gemma4web.export.exporter import ExportOptions, export

_ORDINARY: Final = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
"""Root without its privileges, whom permissions concern as anybody else."""
_EXPORT: Final = [*_ORDINARY, sys.executable, "-m", "gemma4web", "export"]


def _run(*words: str, cwd: Path, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{shell}; exec "$@"', "sh", *words] if shell else list(words)
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, errors="surrogateescape", timeout=120, check=False,
                          env={**os.environ, **environment})


def _tree(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def _refused(folder: Path, target: str, *more: str, code: int, out: str = "model", shell: str = "") -> str:
    """Standard error of an export that has to be refused, and to leave everything as it was."""
    before = _tree(folder)
    done = _run(*_EXPORT, "--target", target, "--out", out, *more, cwd=folder, shell=shell)
    assert done.returncode == code, done.stderr
    assert "\n  remedy: " in done.stderr and "Traceback" not in done.stderr and not done.stderr.startswith("\n"), done.stderr
    assert _tree(folder) == before
    return done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the micro pair's checkpoints in it."""
    write_pair(tmp_path)
    return tmp_path


def _config(change: dict[str, Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / "target/config.json"
        path.write_text(json.dumps(json.loads(path.read_bytes()) | change))
    return apply


def _holding(*names: str, keep: tuple[str, ...] = ("config.json",)) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        for path in (folder / "target").iterdir():
            if path.name not in keep:
                path.unlink()
        for name in names:
            (folder / "target" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "target" / name).write_bytes(b"x")
    return apply


_QUANTISED = {"quantization_config": {"quant_method": "awq", "bits": 4}}
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12345\n"
_FOLDERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "Llama": (_config({"model_type": "llama"}), "no other family of models is supported"),
    "Gemma 3": (_config({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}), "no other family"),
    "Gemma 3n": (_config({"model_type": "gemma3n", "text_config": {"model_type": "gemma3n_text"}}), "no other family"),
    "experts": (_config({"enable_moe_block": True}), "name a dense one, as E2B, E4B"),
    "quantised": (_config(_QUANTISED), "export from the unquantised checkpoint"),
    "quantised, multimodal": (lambda folder: (folder / "target/config.json").write_text(json.dumps(
        {"model_type": "gemma4", "text_config": target_config(), **_QUANTISED})), "export from the unquantised checkpoint"),
    "LoRA": (_holding("adapter_config.json", "adapter_model.safetensors", keep=()), "merge it into its model"),
    "pytorch": (_holding("pytorch_model.bin"), "save_pretrained, which writes safetensors"),
    "GGUF files": (_holding("b.gguf", "a.gguf"), "name a GGUF file of it: a.gguf, b.gguf"),
    "shards without index": (_holding("model-00001-of-00002.safetensors"), "fetch its model.safetensors.index.json too"),
    "another name": (_holding("gemma.safetensors"), "name its weights model.safetensors, if gemma.safetensors is"),
    "download goes on": (_holding("model.safetensors.part"), "its download was not finished"),
    "hub's cache": (_holding("snapshots/0123/config.json", keep=()), "name the folder of a commit in its snapshots"),
    "folder above": (_holding("e2b/config.json", "e4b/config.json", keep=()), "name a folder in it: e2b, e4b"),
    "empty": (_holding(keep=()), "name a checkpoint's folder with config.json and safetensors"),
    "no config": (_holding(keep=("model.safetensors",)), "name the folder that holds config.json"),
    "missing shard": (lambda folder: (folder / "target/model.safetensors.index.json").write_text(json.dumps(
        {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}})), "fetch the missing shard"),
    "Git LFS": (lambda folder: (folder / "target/model.safetensors").write_bytes(_LFS), "`git lfs pull`"),
    "error page": (lambda folder: (folder / "target/model.safetensors").write_bytes(b"<!DOCTYPE html>"), "it is a web page"),
    "a header of 60 bytes, cut": (lambda folder: (folder / "target/model.safetensors").write_bytes(b"<\0\0\0\0\0\0\0{}"),
                                  "was not downloaded completely"),
    "cut": (lambda folder: os.truncate(folder / "target/model.safetensors", 5000), "was not downloaded completely"),
}


@pytest.mark.parametrize("name", _FOLDERS)
def test_another_folder(folder: Path, name: str) -> None:
    change, remedy = _FOLDERS[name]
    change(folder)
    assert remedy in _refused(folder, "target", code=CheckpointError.exit_code)


@pytest.mark.parametrize(("name", "data", "remedy"), [
    ("x.gguf", _LFS, "`git lfs pull`"), ("x.gguf", b"<html>", "it is a web page"), ("x.gguf", b"PK\3\4", "or a GGUF file"),
    ("x.safetensors", b"\0" * 100, "name its folder, "), ("x.bin", b"\0" * 100, "name its folder, ")])
def test_another_file(folder: Path, name: str, data: bytes, remedy: str) -> None:
    (folder / name).write_bytes(data)
    assert remedy in _refused(folder, name, code=CheckpointError.exit_code)


@pytest.mark.parametrize(("target", "assistant", "remedy"), [
    ("assistant", "target", "it is an assistant: name it with --assistant"),
    ("target", "target", "name a Gemma 4 assistant checkpoint with --assistant"),
    ("target", "absent", "name a checkpoint's folder")])
def test_another_pair(folder: Path, target: str, assistant: str, remedy: str) -> None:
    assert remedy in _refused(folder, target, "--assistant", assistant, code=CheckpointError.exit_code)


@pytest.mark.parametrize(("target", "remedy"), [
    ("https://example.org/google/gemma-4-E2B-it", "spell it owner/name@revision"), ("google/gemma-4-E2B-it", "add the commit to fetch")])
def test_a_name_that_no_hub_has(folder: Path, target: str, remedy: str) -> None:
    assert remedy in _refused(folder, target, code=UsageError.exit_code)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "generation_config.json", "tokenizer.json", "."])
def test_without_permission_to_read(folder: Path, name: str) -> None:
    for file in ("generation_config.json", "tokenizer.json"):
        (folder / "target" / file).write_text("{}")
    (folder / "target" / name).chmod(0)
    assert "Permission denied\n  remedy: let your user read it" in _refused(folder, "target", code=CheckpointError.exit_code)
    (folder / "target" / name).chmod(0o755)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_disk_that_fails(folder: Path, name: str) -> None:
    """/proc/self/mem is a regular file whose first byte cannot be read."""
    (folder / "target" / name).unlink(missing_ok=True)
    (folder / "target" / name).symlink_to("/proc/self/mem")
    assert f"{name} cannot be read: Input/output error" in _refused(folder, "target", code=CheckpointError.exit_code)


def test_data_that_fails_once_it_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the input is not called one of the destination."""
    class Failing:
        def seek(self, place: int) -> None:
            raise OSError(5, "Input/output error")

        def close(self) -> None:
            pass

    def opened(path: Path, *words: Any) -> Any:
        return Failing() if path.name == "model.safetensors" and sys._getframe(1).f_code.co_name == "_bytes" else real(path, *words)

    real = Path.open
    monkeypatch.setattr(Path, "open", opened)
    with pytest.raises(CheckpointError, match=r"target/model\.safetensors cannot be read: Input/output error"):
        export(ExportOptions(target=folder / "target", out=folder / "model"))
    assert not (folder / "model").exists()


@pytest.mark.parametrize(("out", "says"), [
    ("target/model", "would lie inside the checkpoint target"), ("target/deep/model", "would lie inside the checkpoint target"),
    ("linked/model", "would lie inside the checkpoint target"), ("target", "target exists"), ("target/config.json/x", "Not a directory"),
    ("closed/model", "closed: Permission denied"), ("closed/deep/model", "closed: Permission denied"), ("dark/model", "Permission denied"),
    ("/proc/model", "/proc: Permission denied"), ("x" * 300, "File name too long"), ("x" * 250, "File name too long"),
    ("deep/" + "x" * 250, "File name too long"), ("dangling", "dangling exists")])
def test_destination(folder: Path, out: str, says: str) -> None:
    (folder / "closed").mkdir(mode=0o555)
    (folder / "dark").mkdir(mode=0)
    (folder / "linked").symlink_to("target")
    (folder / "dangling").symlink_to("nowhere")
    for more in ((), ("--dry-run",)):
        assert says in _refused(folder, "target", *more, out=out, code=PublishError.exit_code)
    (folder / "dark").chmod(0o755)


def test_checkpoint_that_lies_beside(folder: Path) -> None:
    """Only folders that are a checkpoint are closed: a model may lie beside a GGUF file."""
    shutil.copy(Path(__file__).resolve().parents[2] / "fixtures/story/story-target.gguf", folder / "target/story.gguf")
    done = _run(*_EXPORT, "--target", "story.gguf", "--out", "model", cwd=folder / "target")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("shell", "says"), [("ulimit -f 8", "File too large"), ("mkdir gone; cd gone; rmdir ../gone", "No such file")])
def test_where_nothing_can_be_written(folder: Path, shell: str, says: str) -> None:
    assert says in _refused(folder, str(folder / "target"), shell=shell, code=PublishError.exit_code)


def test_disk_that_is_too_small(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is read, not when the disk is full; a dry run tells what there is."""
    usage = shutil.disk_usage(folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100_000))
    with pytest.raises(PublishError, match=r"the model needs 0 MB in .*, 0 MB are free\n  remedy: .*free some space"):
        export(ExportOptions(target=folder / "target", out=folder / "model"))
    assert command_line.main(["export", "--target", str(folder / "target"), "--out", str(folder / "deep/model"), "--dry-run"]) == 0
    assert re.search(r"to be written .* 0\.\d MB .*\n.*free on that disk .* 0\.1 MB ", capsys.readouterr().out)
    assert sorted(path.name for path in folder.iterdir()) == ["assistant", "target"]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "F64"])
def test_dtype_that_is_not_read(folder: Path, dtype: str) -> None:
    """Found by a dry run, before a single shard is written."""
    path, name = folder / "target/model.safetensors", "model.layers.4.mlp.up_proj.weight"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8:end]), data[end:]
    entries = sorted(((key, value) for key, value in header.items() if key != "__metadata__"), key=lambda pair: pair[1]["data_offsets"])
    size = {"F8_E4M3": 1, "I8": 1, "F64": 8}[dtype]
    parts, place = [], 0
    for key, value in entries:
        begin, stop = value["data_offsets"]
        part = body[begin:stop]
        if key == name:
            value["dtype"], part = dtype, bytes(len(part) // 4 * size)
        value["data_offsets"] = [place, place + len(part)]
        place += len(part)
        parts.append(part)
    text = json.dumps(dict(entries)).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    for more in (("--dry-run",), ()):
        shown = _refused(folder, "target", *more, code=CheckpointError.exit_code)
        assert f"{name} is {dtype}, wanted one of F32, F16, BF16" in shown and "write weights" not in shown


@pytest.mark.parametrize("spelled", ["mödel ✓ [bold]x", "a b", "new\nline", os.fsdecode(b"\xff")])
def test_unusual_names(folder: Path, spelled: str) -> None:
    """Of checkpoint and destination; what the terminal cannot show is shown as an escape."""
    (folder / "target").rename(folder / spelled)
    for encoding in ("utf-8", "ascii"):
        out = f"{spelled} {encoding}"
        planned = _run(*_EXPORT, "--target", spelled, "--out", out, "--dry-run", cwd=folder, PYTHONIOENCODING=encoding)
        done = _run(*_EXPORT, "--target", spelled, "--out", out, cwd=folder, PYTHONIOENCODING=encoding)
        assert (planned.returncode, done.returncode) == (0, 0), planned.stderr + done.stderr
        receipt = json.loads((folder / out / "model.json").read_text(encoding="utf-8"))
        assert receipt["name"] == spelled.encode(errors="surrogateescape").decode(errors="backslashreplace")


def test_home(folder: Path) -> None:
    """`--out=~/x` reaches the program as it is typed."""
    done = _run(*_EXPORT, "--target=~/target", "--out=~/model", cwd=folder / "assistant", HOME=str(folder))
    assert done.returncode == 0 and (folder / "model/model.json").is_file(), done.stderr


@pytest.mark.parametrize(("shell", "code"), [("exec > /dev/full", DiskFullError.exit_code), ("exec >&-", 0)])
def test_output_that_goes_nowhere(folder: Path, shell: str, code: int) -> None:
    done = _run(*_EXPORT, "--target", "target", "--out", "model", cwd=folder, shell=shell)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    assert (folder / "model/model.json").is_file()


def test_reader_that_leaves(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*_EXPORT, "--target", "target", "--out", "model"], cwd=folder, stdout=writer, stderr=subprocess.PIPE,
                          text=True, timeout=120, check=False)
    os.close(writer)
    assert done.returncode == 141 and "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr


def test_twice_at_once(folder: Path) -> None:
    """One is published whole, the other says that something is there."""
    words = [*_EXPORT, "--target", "target", "--assistant", "assistant", "--out", "model"]
    running = [subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    ended = [(process.communicate(timeout=120)[1], process.returncode) for process in running]
    assert sorted(code for _, code in ended) == [0, PublishError.exit_code, PublishError.exit_code], ended
    for errors, code in ended:
        assert code == 0 or ("remedy: " in errors and "Traceback" not in errors)
    assert _run(*_EXPORT[:-1], "verify", "model", cwd=folder).returncode == 0
    assert not (folder / ".model.partial").exists()


def test_assistant_of_another_format(folder: Path) -> None:
    """A GGUF assistant of another model beside a safetensors target: what differs is named."""
    shutil.copy(Path(__file__).resolve().parents[2] / "fixtures/story/story-assistant.gguf", folder / "x.gguf")
    shown = _refused(folder, "target", "--assistant", "x.gguf", code=CheckpointError.exit_code)
    assert "wanted the target's 64" in shown and "made for each other" in shown
    write_checkpoint(folder / "wide", assistant_config() | {"backbone_hidden_size": 64}, assistant_tensors())
    assert "made for each other" in _refused(folder, "target", "--assistant", "wide", code=CheckpointError.exit_code)
