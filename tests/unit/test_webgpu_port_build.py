"""The WebGPU port inside Emscripten: caches, folders, options, and what must not link.

P07: a port flag missing from the link, and functions outside the subset, give an error that names them. P08: links in
parallel share one cache. P12: folders with spaces and other alphabets; equal output from two folders.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from provider_probe import PORT, Compiler, make_compiler, own_port, set_up_toolchain

from gemma4web.errors import ToolchainError
from gemma4web.files import sha256_file
from gemma4web.process import run

pytestmark = pytest.mark.emcc

ODD_NAME: Final = "a folder ünï ✓ 'q' $x"
PROGRAM: Final = """
#include <emscripten/emscripten.h>
#include <webgpu/webgpu.h>
extern "C" EMSCRIPTEN_KEEPALIVE int start() {
  WGPUInstance instance = wgpuCreateInstance(nullptr);
  const bool made = instance != nullptr;
  wgpuInstanceRelease(instance);
  return made;
}
"""
FLAGS: Final = ("-std=c++20", "-O1", "-fno-exceptions", "-fno-rtti")
LINK: Final = (*FLAGS, "--no-entry", "-sMODULARIZE=1", "-sEXPORT_ES6=1", "-sENVIRONMENT=web,worker,node")


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return make_compiler(set_up_toolchain(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def object_file(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("program")
    (folder / "program.cc").write_text(PROGRAM, encoding="utf-8")
    compiler.run(*FLAGS, own_port(compiler.toolchain), "-c", folder / "program.cc", "-o", folder / "program.o")
    assert compiler.libraries() == [], "compiling needs the header alone"
    return folder / "program.o"


@pytest.fixture
def odd_port(compiler: Compiler, tmp_path: Path) -> Iterator[str]:
    """The option for a copy of the port and of the header in folders with odd names."""
    folder = tmp_path / ODD_NAME
    shutil.copytree(PORT.parent, folder / "webgpu_port", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(compiler.toolchain.webgpu_include / "webgpu", folder / "with: colon" / "webgpu")
    include = str(folder / "with: colon").replace(":", "::")
    yield f"--use-port={folder / 'webgpu_port' / PORT.name}:include={include}"


def link(compiler: Compiler, object_file: Path, folder: Path, port: str, **env: str) -> tuple[str, str]:
    """Hashes of the JS and the WASM file."""
    folder.mkdir(exist_ok=True)
    module = folder / "program.mjs"
    compiler.run(*LINK, port, object_file, "-o", module, **env)
    return sha256_file(module), sha256_file(module.with_suffix(".wasm"))


def test_links_in_parallel_share_one_cache(compiler: Compiler, object_file: Path, odd_port: str, tmp_path: Path) -> None:
    """P08, P12, and a rebuild when a source of the port changes."""
    with ThreadPoolExecutor(3) as pool:
        hashes = set(pool.map(lambda i: link(compiler, object_file, tmp_path / f"out {i} ß", odd_port), range(3)))
    assert len(hashes) == 1
    first = compiler.libraries()
    assert len(first) == 1, first

    assert link(compiler, object_file, tmp_path / "plain", own_port(compiler.toolchain)) in hashes
    assert compiler.libraries() == first, "the same sources in another folder are the same library"

    changed = tmp_path / ODD_NAME / "webgpu_port" / "imports.h"
    changed.write_text(changed.read_text(encoding="utf-8") + "// edited\n", encoding="utf-8")
    assert link(compiler, object_file, tmp_path / "edited", odd_port) in hashes
    assert len(compiler.libraries()) == 2


def test_a_frozen_cache_without_the_library_is_enough(compiler: Compiler, object_file: Path, odd_port: str,
                                                      tmp_path: Path) -> None:
    unfrozen = link(compiler, object_file, tmp_path / "unfrozen", own_port(compiler.toolchain))
    changed = tmp_path / ODD_NAME / "webgpu_port" / "callbacks.cc"
    changed.write_text(changed.read_text(encoding="utf-8") + "// edited for the frozen cache\n", encoding="utf-8")
    before = compiler.libraries()
    assert link(compiler, object_file, tmp_path / "frozen", odd_port, EM_FROZEN_CACHE="1") == unfrozen
    assert compiler.libraries() == before


def test_the_module_is_imported_in_node(compiler: Compiler, object_file: Path, tmp_path: Path) -> None:
    """Nothing touches the browser while the module loads."""
    link(compiler, object_file, tmp_path / "node", own_port(compiler.toolchain))
    script = "const m = await (await import('./program.mjs')).default(); console.log(m._start());"
    said = run([compiler.toolchain.node, "--input-type=module", "-e", script], cwd=tmp_path / "node", timeout_s=60)
    assert said.strip() == "1"


@pytest.mark.parametrize(("option", "words"), [
    ("", "add `:include=<folder>` to --use-port, or set WEBGPU_PORT_INCLUDE"),
    (":include=/nowhere", "no webgpu/webgpu.h in this folder"),
    (":inclde=/nowhere", "`inclde` is not supported"),
])
def test_a_missing_header_is_said(compiler: Compiler, object_file: Path, tmp_path: Path, option: str, words: str) -> None:
    with pytest.raises(ToolchainError, match=re.escape(words)) as refused:
        compiler.run(*FLAGS, f"--use-port={PORT}{option}", "-c", object_file.with_suffix(".cc"), "-o", tmp_path / "program.o")
    assert "Traceback" not in str(refused.value)


def test_the_header_may_come_from_the_environment(compiler: Compiler, object_file: Path, tmp_path: Path) -> None:
    compiler.run(*FLAGS, f"--use-port={PORT}", "-c", object_file.with_suffix(".cc"), "-o", tmp_path / "program.o",
                 WEBGPU_PORT_INCLUDE=str(compiler.toolchain.webgpu_include))
    assert (tmp_path / "program.o").stat().st_size > 0


def test_a_function_outside_the_subset_does_not_link(compiler: Compiler, tmp_path: Path) -> None:
    source = tmp_path / "program.cc"
    source.write_text(PROGRAM.replace("const bool made = instance != nullptr;",
                                      "const bool made = wgpuDeviceCreateTexture(nullptr, nullptr) != nullptr;"),
                      encoding="utf-8")
    with pytest.raises(ToolchainError, match="undefined symbol: wgpuDeviceCreateTexture"):
        compiler.run(*LINK, own_port(compiler.toolchain), source, "-o", tmp_path / "program.mjs")


def test_a_link_without_the_port_names_the_functions(compiler: Compiler, object_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="undefined symbol: wgpuCreateInstance"):
        compiler.run(*LINK, object_file, "-o", tmp_path / "program.mjs")


@pytest.mark.parametrize("setting", ["MEMORY64", "SHARED_MEMORY", "GROWABLE_ARRAYBUFFERS"])
def test_settings_that_cannot_work_are_refused(compiler: Compiler, object_file: Path, tmp_path: Path, setting: str) -> None:
    with pytest.raises(ToolchainError, match=f"webgpu_port does not support -s{setting}") as refused:
        compiler.run(*LINK, f"-s{setting}=1", own_port(compiler.toolchain), object_file, "-o", tmp_path / "program.mjs")
    assert "Traceback" not in str(refused.value)


LATER: Final = {11: "ImmediateAddressSpace", 12: "BufferView"}
"""WGSL's names by the numbers of a later webgpu.h than the one that is set up."""


@pytest.mark.parametrize(("enum", "listed"), [
    ("WGPUFeatureName", " featureNames: ["), ("WGPUWGSLLanguageFeatureName", " languageFeatureNames: ["),
])
def test_feature_names_are_the_headers(compiler: Compiler, enum: str, listed: str) -> None:
    """Every standard name of the enum has the browser's name at its number."""
    header = (compiler.toolchain.webgpu_include / "webgpu" / "webgpu.h").read_text(encoding="utf-8")
    numbered = {int(value, 16): name for name, value in
                re.findall(rf"\b{enum}_(\w+) = (0x[0-9A-F]{{8}})", header) if int(value, 16) < 0x1000}
    library = (PORT.parent / "library_webgpu_port.js").read_text(encoding="utf-8")
    names = re.findall(r"'([\w-]+)'", library.split(listed, 1)[1].split("]", 1)[0])

    def plain(name: str) -> str:
        return re.sub("[-_]", "", name).lower()

    named = (LATER if "WGSL" in enum else {}) | numbered
    assert [plain(name) for name in names] == [plain(named[number]) for number in range(1, len(names) + 1)]
