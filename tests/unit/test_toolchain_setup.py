"""A whole set-up with stand-in tools: what it writes, when it writes, and what makes it run again (X, P08, P12)."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_tools import Lines, fake_browser, fake_flatbuffers, fake_npm, fake_package, fake_sdk, says, write_program

from gemma4web.errors import DiskFullError, ToolchainError
from gemma4web.files import write_atomic
from gemma4web.pins import PypiFile, load_pins
from gemma4web.toolchain import (
    ToolchainOptions,
    cache,
    emscripten,
    identity,
    is_current,
    load,
    load_browser,
    main,
    registries,
    set_up,
)
from gemma4web.toolchain.model import BROWSER_NAME, STATUS_NAME
from gemma4web.toolchain.setup import header_version, installed_flatbuffers

Options = Callable[..., ToolchainOptions]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Options:
    """A machine with an SDK, flatc, Node, npm and a browser of its own; nothing is fetched."""
    home = tmp_path / "Rechner mit ä"
    node = says(home / "bin" / "node", "v20.11.0")
    fake_npm(home / "bin" / "npm")
    fake_flatbuffers(home)
    sdk = fake_sdk(home / "emsdk")
    package = fake_package(home / "emdawnwebgpu_pkg")
    browser = fake_browser(home / "opt" / "chrome")
    monkeypatch.setenv("PATH", f"{node.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.delenv("EMSDK", raising=False)

    def no_wheel(pinned: PypiFile, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "wgpu.whl", "w") as archive:
            archive.writestr("wgpu/resources/webgpu.h", "#pragma once\n")
        return folder / "wgpu.whl"

    monkeypatch.setattr(registries, "pip_download", no_wheel)
    # One link each instead of eight: which flags are warmed does not matter here.
    monkeypatch.setattr(emscripten, "WARM_FLAGS", emscripten.WARM_FLAGS[:1])
    monkeypatch.setattr(emscripten, "PROVIDER_FLAGS", emscripten.PROVIDER_FLAGS[:1])

    def make(**changes: Any) -> ToolchainOptions:
        chosen: dict[str, Any] = {"emsdk": sdk, "emdawnwebgpu_pkg": package, "browser": browser, "cache": home / "cache"}
        return ToolchainOptions(**{**chosen, **changes})

    return make


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "checkout mit ö" / "build" / "toolchain.json"


def written(out: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in sorted(out.parent.iterdir())}


def test_a_set_up_writes_three_files_and_the_second_changes_none(options: Options, out: Path) -> None:
    made = set_up(options(), out, Lines())
    first = written(out)
    assert set(first) == {BROWSER_NAME, STATUS_NAME, "toolchain.json"}
    assert set_up(options(), out, Lines()) == made == load(out)
    assert written(out) == first
    assert load_browser(out.with_name(BROWSER_NAME)).version == "156.0.1.2"


def test_the_check_before_a_build_starts_no_process(
    options: Options, out: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_up(options(), out, Lines())

    def refuse(*words: object, **more: object) -> None:
        raise AssertionError(f"started {words}")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert is_current(out, options())
    assert not is_current(out, options(provider="emdawnwebgpu"))
    assert not is_current(out.with_name("absent.json"), options())


@pytest.mark.parametrize("tool", [
    "emsdk/upstream/bin/clang", "emsdk/upstream/bin/wasm-ld", "emsdk/upstream/bin/wasm-opt", "bin/node", "bin/flatc",
    "emsdk/upstream/emscripten/emscripten-version.txt", "emdawnwebgpu_pkg/webgpu/src/library_webgpu.js", "opt/chrome",
])
def test_a_tool_that_changed_or_vanished_is_noticed(options: Options, out: Path, tool: str) -> None:
    set_up(options(), out, Lines())
    path = Path(options().cache_folder()).parent / tool
    with path.open("a", encoding="utf-8") as stream:
        stream.write("\n")
    assert not is_current(out, options())
    if tool != "opt/chrome":
        with pytest.raises(ToolchainError, match="has changed since the set-up") as caught:
            load(out)
        assert str(path) in str(caught.value) and "scons toolchain" in caught.value.advice
    path.unlink()
    assert not is_current(out, options())


def test_a_new_file_in_the_provider_is_part_of_the_next_set_up(options: Options, out: Path) -> None:
    before = identity(set_up(options(), out, Lines()))
    (Path(options().cache_folder()).parent / "emdawnwebgpu_pkg/webgpu/src/more.js").write_text("//\n", encoding="utf-8")
    after = identity(set_up(options(), out, Lines()))
    assert before["provider"]["kind"] == after["provider"]["kind"]
    assert before["provider"]["sha256"] != after["provider"]["sha256"]


def test_another_browser_does_not_touch_what_compiling_depends_on(options: Options, out: Path, tmp_path: Path) -> None:
    set_up(options(), out, Lines())
    before = written(out)
    other = options(browser=fake_browser(tmp_path / "other chrome", "157.0.0.1"))
    assert not is_current(out, other)
    set_up(other, out, Lines())
    after = written(out)
    assert after["toolchain.json"] == before["toolchain.json"]
    assert after[BROWSER_NAME][0] != before[BROWSER_NAME][0]
    assert is_current(out, other)


def test_a_touched_tool_with_the_same_content_recompiles_nothing(options: Options, out: Path) -> None:
    set_up(options(), out, Lines())
    before = written(out)
    os.utime(Path(options().cache_folder()).parent / "emsdk/upstream/bin/clang", ns=(1, 1))
    assert not is_current(out, options())
    set_up(options(), out, Lines())
    assert written(out)["toolchain.json"] == before["toolchain.json"]
    assert is_current(out, options())


def test_the_identity_names_no_place(options: Options, out: Path, tmp_path: Path) -> None:
    found = identity(set_up(options(), out, Lines()))
    assert str(tmp_path) not in json.dumps(found)
    assert {"emcc", "clang_sha256", "wasm_ld_sha256", "wasm_opt_sha256", "node", "flatc", "provider", "npm",
            "webgpu_h_sha256", "emscripten_sha256"} <= set(found)
    assert "esbuild" not in found["npm"] and "@noble/hashes" in found["npm"]


def test_two_checkouts_share_the_cache(options: Options, out: Path, tmp_path: Path) -> None:
    first = set_up(options(), out, Lines())
    progress = Lines()
    second = set_up(options(), tmp_path / "second" / "toolchain.json", progress)
    assert second == first
    assert not [line for line in progress.lines if line.startswith("begin")], "nothing is made again"


def test_the_log_names_path_and_version_of_the_compiler(options: Options, out: Path) -> None:
    """P12: with two SDKs about, the log says which one is used."""
    progress = Lines()
    set_up(options(), out, progress)
    root = Path(options().cache_folder()).parent / "emsdk/upstream/emscripten"
    assert f"Emscripten 6.0.5 at {root} (EMSDK)" in progress.lines


def test_an_activated_sdk_is_taken_from_the_environment(
    options: Options, out: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMSDK", str(options().emsdk))
    made = set_up(options(emsdk=None), out, Lines())
    assert made.emscripten_root.is_relative_to(Path(str(options().emsdk)))
    monkeypatch.delenv("EMSDK")
    assert not is_current(out, options(emsdk=None)), "without the variable another compiler would be found"


def test_an_emcc_on_path_is_used_when_it_is_new_enough(
    options: Options, out: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    emcc = write_program(Path(str(options().emsdk)) / "upstream/emscripten/emcc", "#!/bin/sh\n")
    monkeypatch.setenv("PATH", f"{emcc.parent}{os.pathsep}{os.environ['PATH']}")
    progress = Lines()
    set_up(options(emsdk=None), out, progress)
    assert any("(emcc on PATH)" in line for line in progress.lines)


def test_a_named_sdk_that_is_too_old_is_an_error_not_a_reason_to_fetch(options: Options, out: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="version 3.1.69, wanted 6.0.0"):
        set_up(options(emsdk=fake_sdk(tmp_path / "old", "3.1.69")), out, Lines())
    assert not out.exists()


@pytest.mark.parametrize("how", ["npm", "python"])
def test_a_full_disk_is_said_with_the_space_that_is_left(options: Options, out: Path, monkeypatch: pytest.MonkeyPatch,
                                                         how: str) -> None:
    """V14: neither the network nor a tool is at fault."""
    chosen = options()
    if how == "npm":
        npm = Path(os.environ["PATH"].split(os.pathsep)[0]) / "npm"
        write_program(npm, "#!/bin/sh\necho 'npm error code ENOSPC' >&2\nexit 228\n")
    else:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(cache, "write_stamp", full)
    with pytest.raises(DiskFullError, match=r"the disk is full.*; \d+ MB are free there") as caught:
        set_up(chosen, out, Lines())
    assert str(chosen.cache_folder()) in str(caught.value)
    assert "free some space or name another folder than" in caught.value.advice


def test_a_closed_folder_is_an_error_of_the_tree(options: Options, out: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(ToolchainError) as caught:
        set_up(options(cache=tmp_path / "file" / "cache"), out, Lines())
    assert "CACHE=" in caught.value.advice


@pytest.mark.parametrize("damage", ["{", '{"schema": 2}', '{"schema": 1}'])
def test_a_damaged_file_is_an_error_with_a_remedy(options: Options, out: Path, damage: str) -> None:
    set_up(options(), out, Lines())
    for path, read in ((out, load), (out.with_name(BROWSER_NAME), load_browser)):
        write_atomic(path, damage)
        with pytest.raises(ToolchainError) as caught:
            read(path)
        assert "scons toolchain" in caught.value.advice
    assert not is_current(out, options())


def test_without_a_set_up_the_remedy_is_named(tmp_path: Path) -> None:
    for read in (load, load_browser):
        with pytest.raises(ToolchainError, match="does not exist") as caught:
            read(tmp_path / "toolchain.json")
        assert "scons toolchain" in caught.value.advice


def test_a_system_include_folder_never_reaches_the_compiler(options: Options, out: Path) -> None:
    made = set_up(options(), out, Lines())
    assert [path.name for path in made.flatbuffers_include.iterdir()] == ["flatbuffers"]
    assert header_version(made.flatbuffers_include) == (25, 2, 10)


@pytest.mark.parametrize(("version", "headers", "words"), [
    ("2.0.8", "2.0.8", "wanted both at 23.5.26"), ("25.2.10", "24.3.25", "headers 24.3.25"),
])
def test_a_flatc_that_does_not_fit_is_passed_over_with_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, headers: str, words: str,
) -> None:
    flatc = fake_flatbuffers(tmp_path, version, headers=headers)
    monkeypatch.setenv("PATH", f"{flatc.parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    progress = Lines()
    assert installed_flatbuffers(load_pins(), tmp_path / "cache", progress) is None
    assert len(progress.lines) == 1 and words in progress.lines[0] and str(flatc) in progress.lines[0]


def test_the_command_prints_what_was_found_where(
    options: Options, out: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    chosen = options()
    assert main(["--emsdk", str(chosen.emsdk), "--emdawnwebgpu-pkg", str(chosen.emdawnwebgpu_pkg), "--browser",
                 str(chosen.browser), "--cache", str(chosen.cache), "--out", str(out)]) == 0
    shown = capsys.readouterr()
    for word in ("Emscripten", "6.0.5", "clang", "21.1.8", "flatc", "25.2.10", "emdawnwebgpu-package", "156.0.1.2"):
        assert word in shown.out
    assert "installing" in shown.err and load(out).versions["node"] == "20.11.0"
