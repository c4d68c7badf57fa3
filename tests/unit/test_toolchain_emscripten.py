"""Finding an Emscripten: layouts, versions, identity, and the library caches (P08, P12)."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest
from fake_tools import LIBRARY, Lines, fake_sdk, says, write_program

from gemma4web.errors import ToolchainError
from gemma4web.process import run
from gemma4web.toolchain import emscripten as module
from gemma4web.toolchain.emscripten import (
    CONFIG_NAME,
    LIBRARIES_NAME,
    Emscripten,
    base_libraries,
    inspect,
    locate_root,
    provider_libraries,
    quote_launchers,
    read_sdk_config,
)

LEAST = (6, 0, 0)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return says(tmp_path / "node folder" / "node", "v20.1.0")


def find(folder: Path, node: Path, **pristine: str) -> Emscripten:
    return inspect(locate_root(folder), origin="EMSDK", node=node, closure=None, least=LEAST, pristine=pristine)


@pytest.mark.parametrize("inner", ["", "upstream", "upstream/emscripten", "upstream/emscripten/emcc"])
def test_an_sdk_is_found_by_any_of_its_folders_and_by_emcc(tmp_path: Path, inner: str) -> None:
    sdk = fake_sdk(tmp_path / "emsdk mit Umlaut ä")
    write_program(sdk / "upstream/emscripten/emcc", "#!/bin/sh\n")
    assert locate_root(sdk / inner) == sdk / "upstream" / "emscripten"


def test_emcc_behind_a_link_is_found(tmp_path: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    real = write_program(sdk / "upstream/emscripten/emcc", "#!/bin/sh\n")
    (tmp_path / "emcc").symlink_to(real)
    assert locate_root(tmp_path / "emcc") == sdk / "upstream" / "emscripten"


def test_a_folder_without_an_sdk_is_named_with_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="emscripten-version.txt") as caught:
        locate_root(tmp_path / "nothing")
    assert str(tmp_path / "nothing") in str(caught.value) and "activated SDK" in caught.value.advice


def test_parts_and_identity_of_an_sdk(tmp_path: Path, node: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    found = find(sdk, node)
    assert found.llvm == sdk / "upstream" / "bin" and found.binaryen == sdk / "upstream"
    assert found.version == found.identity["emcc"] == "6.0.5"
    assert (found.identity["clang"], found.identity["wasm_opt"]) == ("21.1.8", "131")
    assert found.emcc == (sys.executable, "-E", str(sdk / "upstream/emscripten/em++.py"))
    assert str(tmp_path) not in repr(found.identity)


def test_the_identity_is_the_same_in_every_folder(tmp_path: Path, node: Path) -> None:
    assert find(fake_sdk(tmp_path / "a"), node).identity == find(fake_sdk(tmp_path / "b c"), node).identity


@pytest.mark.parametrize("changed", ["upstream/emscripten/src/library.js", "upstream/emscripten/em++.py",
                                     "upstream/bin/wasm-ld"])
def test_any_part_that_shapes_an_output_changes_the_identity(tmp_path: Path, node: Path, changed: str) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    before = find(sdk, node).identity
    path = sdk / changed
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    assert find(sdk, node).identity != before


def test_caches_of_python_do_not_change_the_identity(tmp_path: Path, node: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    before = find(sdk, node).identity
    compiled = sdk / "upstream/emscripten/tools/__pycache__/x.cpython-311.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"compiled")
    assert find(sdk, node).identity == before


def test_the_pristine_hash_stands_for_a_patched_program(tmp_path: Path, node: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    clang = str((sdk / "upstream/bin/clang").resolve())
    assert find(sdk, node, **{clang: "f" * 64}).identity["clang_sha256"] == "f" * 64


def test_an_old_emscripten_is_refused_with_path_versions_and_remedy(tmp_path: Path, node: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk", "3.1.69")
    with pytest.raises(ToolchainError) as caught:
        find(sdk, node)
    text = str(caught.value)
    for word in ("EMSDK", str(sdk / "upstream/emscripten"), "version 3.1.69", "wanted 6.0.0 or newer", "emsdk install"):
        assert word in text


@pytest.mark.parametrize(("missing", "word"), [("clang", "clang"), ("wasm-opt", "wasm-opt"), ("wasm-ld", "wasm-ld")])
def test_a_missing_part_is_named(tmp_path: Path, node: Path, missing: str, word: str) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    (sdk / "upstream/bin" / missing).unlink()
    with pytest.raises(ToolchainError, match=word):
        find(sdk, node)


def test_settings_of_an_sdk_are_read_without_running_them(tmp_path: Path) -> None:
    sdk = fake_sdk(tmp_path / "emsdk")
    (sdk / ".emscripten").write_text(
        "import os\nemsdk_path = os.path.dirname(os.environ.get('EM_CONFIG'))\n"
        "NODE_JS = emsdk_path + '/node/bin/node'  # theirs\nLLVM_ROOT = emsdk_path + '/upstream/bin'\n"
        "BROKEN = os.system('false')\nLLVM_ADD_VERSION = '21'\n", encoding="utf-8")
    assert read_sdk_config(sdk / "upstream/emscripten") == {
        "NODE_JS": f"{sdk}/node/bin/node", "LLVM_ROOT": f"{sdk}/upstream/bin", "LLVM_ADD_VERSION": "21"}


def test_a_distributions_layout_takes_the_llvm_that_it_asks_for(tmp_path: Path, node: Path) -> None:
    """LLVM 9 must not win over 21 by its spelling, nor 22 over the one that the packages name."""
    sdk = fake_sdk(tmp_path / "made")
    (tmp_path / "usr/share").mkdir(parents=True)
    (sdk / "upstream/emscripten").rename(tmp_path / "usr/share/emscripten")
    for version in ("9", "21", "22"):
        for name in ("clang", "wasm-ld"):
            says(tmp_path / f"usr/lib/llvm-{version}/bin" / name, f"clang version {version}.0.0")
    says(tmp_path / "usr/bin/wasm-opt", "wasm-opt version 131")
    root = tmp_path / "usr/share/emscripten"
    assert inspect(root, origin="PATH", node=node, closure=None, least=LEAST).identity["clang"] == "22.0.0"
    (root / ".emscripten").write_text("LLVM_ADD_VERSION = '21'\n", encoding="utf-8")
    found = inspect(root, origin="PATH", node=node, closure=None, least=LEAST)
    assert found.identity["clang"] == "21.0.0" and found.binaryen == tmp_path / "usr"


def test_the_environment_is_closed(tmp_path: Path, node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPATH", "/somewhere")
    found = find(fake_sdk(tmp_path / "emsdk"), node).environment(tmp_path / "libraries")
    assert set(found) == {"PATH", "HOME", "EM_CONFIG", "EM_CACHE", "SOURCE_DATE_EPOCH"}
    assert found["PATH"].split(os.pathsep)[0] == str(node.parent)


@pytest.fixture
def compiler(tmp_path: Path) -> Emscripten:
    node = write_program(tmp_path / "bin" / "node", "#!/bin/sh\nexit 0\n")
    return find(fake_sdk(tmp_path / "emsdk"), node)


def test_libraries_are_built_once_and_then_frozen(tmp_path: Path, compiler: Emscripten) -> None:
    """P08: what builds use refuses to be written to, and the provider's library is already in it."""
    cache, progress = tmp_path / "cache mit ä", Lines()
    base = base_libraries(compiler, cache, progress)
    folder = provider_libraries(compiler, base, "/port.py", "a" * 64, progress)
    names = sorted(path.name for path in (folder / LIBRARIES_NAME / "sysroot" / "lib").iterdir())
    assert names == [LIBRARY, "libport.a"]
    config = runpy.run_path(str(folder / CONFIG_NAME))
    assert config["FROZEN_CACHE"] is True and config["CACHE"] == str(folder / LIBRARIES_NAME)
    assert not (base / LIBRARIES_NAME / "sysroot/lib/libport.a").exists()
    started = len(progress.lines)
    assert base_libraries(compiler, cache, progress) == base
    assert provider_libraries(compiler, base, "/port.py", "a" * 64, progress) == folder
    assert len(progress.lines) == started


def test_another_provider_gets_another_cache(tmp_path: Path, compiler: Emscripten) -> None:
    base = base_libraries(compiler, tmp_path, Lines())
    one = provider_libraries(compiler, base, "/port.py", "a" * 64, Lines())
    assert provider_libraries(compiler, base, "/elsewhere/port.py", "a" * 64, Lines()) == one
    assert provider_libraries(compiler, base, "/port.py", "b" * 64, Lines()) != one


def test_a_file_system_without_hard_links_is_copied_to(
    tmp_path: Path, compiler: Emscripten, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(source: str, target: str) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(module.os, "link", refuse)
    base = base_libraries(compiler, tmp_path, Lines())
    folder = provider_libraries(compiler, base, "/port.py", "a" * 64, Lines())
    assert (folder / LIBRARIES_NAME / "sysroot" / "lib" / LIBRARY).stat().st_nlink == 1


def test_a_compiler_that_fails_is_reported_with_its_words_and_leaves_nothing(
    tmp_path: Path, compiler: Emscripten,
) -> None:
    (compiler.root / "fail").write_text("no space left", encoding="utf-8")
    cache = tmp_path / "cache"
    with pytest.raises(ToolchainError, match="em\\+\\+: no space left"):
        base_libraries(compiler, cache, Lines())
    assert [path.name for path in cache.iterdir() if not path.name.endswith(".lock")] == []


LAUNCHER = '#!/bin/sh\nexec python3 -E "$(readlink -f $0).py" "$@"\n'


def test_launchers_of_a_prefix_work_in_a_folder_with_spaces(tmp_path: Path) -> None:
    root = fake_sdk(tmp_path / "mit ä und raum") / "upstream/emscripten"
    for name in ("em++", "emar"):
        write_program(root / name, LAUNCHER)
        (root / f"{name}.py").write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    quote_launchers(root)
    for name in ("em++", "emar"):
        assert run([root / name, "a b"], env={"PATH": "/usr/bin:/bin"}).strip() == "['a b']"


def test_an_sdk_whose_launchers_cannot_work_there_is_refused(tmp_path: Path, node: Path) -> None:
    sdk = fake_sdk(tmp_path / "with space")
    write_program(sdk / "upstream/emscripten/em++", LAUNCHER)
    with pytest.raises(ToolchainError, match="do not work in a folder with spaces") as caught:
        find(sdk, node)
    assert "without spaces" in caught.value.advice
    moved = sdk.rename(tmp_path / "emsdk")
    assert find(moved, node).version == "6.0.5"
