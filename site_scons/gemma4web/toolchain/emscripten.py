"""Finds an Emscripten that is new enough, or unpacks Debian's, and prepares a library cache that builds only read.

Three layers, so that a change costs only what it must: the compiler itself, the system libraries built by it (about two
minutes, shared by every checkout), and a cheap hard-linked copy of those with the WebGPU provider's library added.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import ToolchainError
from gemma4web.files import sha256_bytes, sha256_file, write_atomic
from gemma4web.pins import Version, parse_version, version_text
from gemma4web.process import run
from gemma4web.toolchain.cache import ensure_folder
from gemma4web.toolchain.model import hash_files, search_path
from gemma4web.toolchain.progress import SetUpProgress, folder_bytes, step

_UNQUOTED: Final = b"$(readlink -f $0)"
CONFIG_NAME: Final = "em_config.py"
LIBRARIES_NAME: Final = "libraries"
_LIBRARY_TIMEOUT_S: Final = 1800.0

# A translation unit that pulls in what the runtime uses of libc, libc++ and compiler-rt.
_WARM_SOURCE: Final = """\
#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
extern "C" int warm(int count) {
  std::map<std::string, std::vector<double>> rows;
  std::function<double(double)> wave = [](double x) { return std::sin(x) + std::exp2(x); };
  for (int i = 0; i < count; ++i) rows[std::to_string(i)].push_back(wave(i));
  assert(rows.size() <= static_cast<size_t>(count));
  auto total = std::make_unique<double>(0.0);
  for (const auto& [name, row] : rows) *total += row.front() + std::strtod(name.c_str(), nullptr);
  std::printf("%.3f\\n", *total);
  return static_cast<int>(rows.size());
}
int main() { return warm(3) == 3 ? 0 : 1; }
"""

# Every set of flags that picks different system libraries; the modules and the host tests use these and no others.
WARM_FLAGS: Final[tuple[tuple[str, ...], ...]] = (
    ("-Oz", "-sMALLOC=emmalloc"),
    ("-O3",),
    ("-O0", "-g", "-sASSERTIONS=2"),
    ("-O1", "-sASSERTIONS=1", "-sMALLOC=emmalloc"),
    ("-O1", "-g", "-sASSERTIONS=1", "-sSTACK_OVERFLOW_CHECK=2", "-sENVIRONMENT=node", "-sNODERAWFS=1"),
    ("-O1", "-g", "-fsanitize=undefined"),
)
# Ports build a library for each of these: what the modules are linked with, for release and with assertions.
PROVIDER_FLAGS: Final[tuple[tuple[str, ...], ...]] = (
    ("-Oz",),
    ("-O1", "-g", "-sASSERTIONS=2", "-sSTACK_OVERFLOW_CHECK=2"),
)
# Only for the progress bar: about what the finished caches weigh.
_LIBRARIES_BYTES: Final = 35e6
_PROVIDER_BYTES: Final = 1e6
_COMMON_FLAGS: Final = (
    "-std=c++20", "-fno-exceptions", "-fno-rtti", "-sMODULARIZE=1", "-sEXPORT_ES6=1", "-sALLOW_MEMORY_GROWTH=1",
    "-sEXPORTED_FUNCTIONS=_main,_warm,_malloc,_free",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Emscripten:
    """A compiler that was found: where its parts are and what identifies it, without any path in the identity."""

    origin: str
    root: Path
    llvm: Path
    binaryen: Path
    node: Path
    closure: Path | None
    version: str
    identity: dict[str, str]

    @property
    def emcc(self) -> tuple[str, ...]:
        """Launcher of the C++ front end; the interpreter is the one that runs this package."""
        return (sys.executable, "-E", str(self.root / "em++.py"))

    def config(self, cache: Path, *, frozen: bool) -> str:
        """Text of the configuration file that EM_CONFIG names."""
        entries: dict[str, object] = {
            "LLVM_ROOT": str(self.llvm), "BINARYEN_ROOT": str(self.binaryen), "NODE_JS": [str(self.node)],
            "CACHE": str(cache), "FROZEN_CACHE": frozen,
        }
        if self.closure is not None:
            entries["CLOSURE_COMPILER"] = [str(self.closure)]
        return "".join(f"{name} = {value!r}\n" for name, value in entries.items())

    def environment(self, folder: Path) -> dict[str, str]:
        """The whole environment of a compiler run that uses the library cache in ``folder``."""
        return {
            "PATH": search_path(self.node, Path(self.emcc[0])),
            "HOME": str(folder), "EM_CONFIG": str(folder / CONFIG_NAME), "EM_CACHE": str(folder / LIBRARIES_NAME),
            "SOURCE_DATE_EPOCH": "0",
        }


def emscripten_version(root: Path) -> Version:
    """The version that an Emscripten folder says it is. Raises ToolchainError when it is not one."""
    try:
        text = (root / "emscripten-version.txt").read_text(encoding="utf-8").strip().strip('"')
    except OSError:
        raise ToolchainError(f"{root} is no Emscripten: it has no emscripten-version.txt") from None
    if not (root / "em++.py").is_file():
        raise ToolchainError(f"{root} is no Emscripten: it has no em++.py")
    return parse_version(text)


def check_version(root: Path, least: Version, *, named_by: str) -> Version:
    """Raises ToolchainError with the path, the version found and the version wanted when it is too old."""
    found = emscripten_version(root)
    if found < least:
        raise ToolchainError(
            f"{named_by}: Emscripten at {root} is version {version_text(found)}, wanted {version_text(least)} or newer",
            advice=f"install a newer one (`emsdk install latest && emsdk activate latest`), or leave out {named_by.split()[0]} "
                   "so that a fitting one is set up",
        )
    return found


def locate_root(named: Path) -> Path:
    """The folder with emcc.py for whatever a user names: an SDK, its ``upstream/emscripten``, or emcc itself."""
    resolved = named.resolve()
    candidates = [named / "upstream" / "emscripten", named / "emscripten", named]
    if resolved.is_file():
        candidates = [resolved.parent]
    for candidate in candidates:
        if (candidate / "emscripten-version.txt").is_file():
            return candidate.absolute()
    raise ToolchainError(
        f"EMSDK={named}: no Emscripten there (looked for emscripten-version.txt in "
        f"{', '.join(str(candidate) for candidate in candidates)})",
        advice="name the folder of an installed and activated SDK, the one with `upstream/emscripten` in it",
    )


def quote_launchers(root: Path) -> None:
    """Lets the shell launchers beside emcc.py work in a folder with spaces: ports and libraries are built through them."""
    for path in sorted(root.iterdir()):
        if path.suffix or not path.is_file() or path.is_symlink():
            continue
        text = path.read_bytes()
        if text.startswith(b"#!/bin/sh") and _UNQUOTED in text:
            path.write_bytes(text.replace(_UNQUOTED, b'$(readlink -f "$0")'))


def _check_launcher(root: Path, origin: str) -> None:
    """Raises ToolchainError when an Emscripten that is not ours to change cannot work where it stands."""
    launcher = root / "em++"
    if any(letter.isspace() for letter in str(root)) and launcher.is_file() and _UNQUOTED in launcher.read_bytes():
        raise ToolchainError(f"{origin}: the launchers of Emscripten {root} do not work in a folder with spaces",
                             advice="move the SDK to a folder without spaces in its path")


def read_sdk_config(root: Path) -> dict[str, Any]:
    """Settings of the SDK's own configuration file: plain assignments only, ``emsdk_path`` and ``os.path`` understood."""
    folder = next((place for place in (root, root.parent.parent) if (place / ".emscripten").is_file()), None)
    if folder is None:
        return {}
    found: dict[str, Any] = {}
    text = (folder / ".emscripten").read_text(encoding="utf-8", errors="replace")
    for name, value in re.findall(r"^([A-Z_]+)\s*=\s*(.+?)\s*(?:#.*)?$", text, re.MULTILINE):
        plain = re.sub(r"emsdk_path\s*\+\s*(['\"])", lambda match: match[1] + str(folder), value)
        try:
            found[name] = ast.literal_eval(plain)
        except (ValueError, SyntaxError):
            continue
    return found


def _first(*folders: Path | None, holding: str) -> Path | None:
    return next((folder for folder in folders if folder is not None and (folder / holding).is_file()), None)


def source_files(root: Path) -> list[Path]:
    """What an Emscripten itself contributes to an output: its Python, its JavaScript and the system libraries' sources."""
    top = [path for path in root.glob("*.py") if path.is_file()]
    return top + [
        path for folder in ("src", "system", "tools", "third_party") for path in (root / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]


def program_version(program: Path) -> str:
    """The number after the word ``version`` that a program prints for ``--version``. Raises ToolchainError."""
    text = run([program, "--version"], what=f"{program.name} --version", timeout_s=60.0)
    match = re.search(r"version (\d[\w.]*)", text)
    if match is None:
        raise ToolchainError(f"{program} states no version: {text.strip()[:200]!r}")
    return match[1]


def inspect(root: Path, *, origin: str, node: Path, closure: Path | None, least: Version,
            pristine: dict[str, str] | None = None) -> Emscripten:
    """Finds the parts that belong to the Emscripten at ``root``.

    ``pristine`` gives the hashes of programs that were patched for this machine, keyed by absolute path.
    Raises ToolchainError when a part is missing.
    """
    version = check_version(root, least, named_by=origin)
    _check_launcher(root, origin)
    settings = read_sdk_config(root)

    def setting(name: str) -> Path | None:
        value = settings.get(name)
        return Path(value[0] if isinstance(value, list) else value) if value else None

    prefix = root.parent.parent.parent
    wanted = str(settings.get("LLVM_ADD_VERSION", "*"))
    llvms = sorted((prefix / "usr" / "lib").glob(f"llvm-{wanted}/bin"), key=lambda path: parse_version(path.parent.name[5:]))
    llvm = _first(root.parent / "bin", setting("LLVM_ROOT"), *reversed(llvms), holding="clang")
    binaryen = _first(*(folder and folder / "bin" for folder in (
        root.parent, setting("BINARYEN_ROOT"), prefix / "usr", root.parent.parent)), holding="wasm-opt")
    if llvm is None or binaryen is None:
        raise ToolchainError(
            f"{origin}: Emscripten at {root} has no {'clang' if llvm is None else 'wasm-opt'} beside it",
            advice="activate the SDK (`emsdk activate latest`), or leave EMSDK out so that one is set up",
        )
    programs = {"clang": llvm / "clang", "wasm_ld": llvm / "wasm-ld", "wasm_opt": binaryen / "wasm-opt"}
    identity = {"emcc": version_text(version), "emscripten_sha256": hash_files(root, source_files(root))}
    for name, path in programs.items():
        real = path.resolve()
        if not real.is_file():
            raise ToolchainError(f"{origin}: {path} does not exist")
        identity[f"{name}_sha256"] = (pristine or {}).get(str(real)) or sha256_file(real)
    for name in ("clang", "wasm_opt"):
        identity[name] = program_version(programs[name])
    return Emscripten(
        origin=origin, root=root, llvm=llvm, binaryen=binaryen.parent, node=node, closure=closure,
        version=version_text(version), identity=identity,
    )


def _warm(emscripten: Emscripten, folder: Path, flag_sets: Sequence[Sequence[str]], extra: Sequence[str],
          expected_bytes: float, progress: SetUpProgress, title: str) -> None:
    """Links a small program with every set of flags, one after the other; emcc builds what is missing on the way."""
    libraries = folder / LIBRARIES_NAME / "sysroot" / "lib"
    before = folder_bytes(libraries)
    with tempfile.TemporaryDirectory(prefix="gemma4web-warm-") as scratch, step(
        progress, title, measure=lambda: folder_bytes(libraries) - before, total=expected_bytes,
    ):
        source = Path(scratch) / "warm.cc"
        write_atomic(source, _WARM_SOURCE)
        for flags in flag_sets:
            run([*emscripten.emcc, *_COMMON_FLAGS, *flags, *extra, source, "-o", Path(scratch) / "warm.mjs"],
                env=emscripten.environment(folder), cwd=Path(scratch), timeout_s=_LIBRARY_TIMEOUT_S,
                what=f"building Emscripten's system libraries ({' '.join(flags)})")


def _try_module(emscripten: Emscripten, folder: Path) -> None:
    """Compiles, optimises with Closure and runs a small program, in the frozen cache."""
    with tempfile.TemporaryDirectory(prefix="gemma4web-try-") as scratch:
        source, module = Path(scratch) / "try.cc", Path(scratch) / "try.mjs"
        write_atomic(source, _WARM_SOURCE)
        closure = ("--closure=1",) if emscripten.closure is not None else ()
        run([*emscripten.emcc, *_COMMON_FLAGS, "-Oz", "-sMALLOC=emmalloc", *closure, source, "-o", module],
            env=emscripten.environment(folder), cwd=Path(scratch), what="trying the compiler", timeout_s=300.0)
        script = f"import create from './{module.name}'; await create();"
        write_atomic(Path(scratch) / "start.mjs", script)
        run([emscripten.node, Path(scratch) / "start.mjs"], cwd=Path(scratch), what="trying the compiled module",
            timeout_s=120.0)


def base_libraries(emscripten: Emscripten, cache: Path, progress: SetUpProgress) -> Path:
    """The folder with the system libraries of this compiler, built once; builds use a copy of it, made by ``provider_libraries``."""
    inputs: dict[str, Any] = {
        "emscripten": emscripten.identity, "root": str(emscripten.root), "common": list(_COMMON_FLAGS),
        "flags": [list(flags) for flags in WARM_FLAGS], "source": sha256_bytes(_WARM_SOURCE.encode()),
    }
    key = sha256_bytes(repr(sorted(inputs.items())).encode())[:12]
    folder = cache / f"libraries-{emscripten.version}-{key}"

    def build(temporary: Path) -> None:
        write_atomic(temporary / CONFIG_NAME, emscripten.config(temporary / LIBRARIES_NAME, frozen=False))
        _warm(emscripten, temporary, WARM_FLAGS, (), _LIBRARIES_BYTES, progress,
              "building Emscripten's system libraries (once)")

    def finish(final: Path) -> dict[str, Any]:
        (final / CONFIG_NAME).unlink()
        return {"emscripten": emscripten.version}

    ensure_folder(folder, inputs, build, finish, progress)
    return folder


def link_or_copy(source: str, target: str) -> None:
    """A hard link where the file system has them: emcc only adds libraries, so nothing is written through it."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def provider_libraries(emscripten: Emscripten, base: Path, port: str, provider_sha256: str,
                       progress: SetUpProgress) -> Path:
    """A copy of ``base`` (hard links) in which the provider's library has been built too.

    Emscripten keeps a port's library under the port's name, whatever its content, so each content gets a cache of its
    own.
    """
    inputs: dict[str, Any] = {
        "base": base.name, "provider": provider_sha256, "node": str(emscripten.node), "closure": str(emscripten.closure),
        "flags": [list(flags) for flags in PROVIDER_FLAGS],
    }
    key = sha256_bytes(repr(sorted(inputs.items())).encode())[:12]
    folder = base.with_name(f"{base.name}-{key}")

    def build(temporary: Path) -> None:
        shutil.copytree(base / LIBRARIES_NAME, temporary / LIBRARIES_NAME, copy_function=link_or_copy, symlinks=True)
        write_atomic(temporary / CONFIG_NAME, emscripten.config(temporary / LIBRARIES_NAME, frozen=False))
        _warm(emscripten, temporary, PROVIDER_FLAGS, (f"--use-port={port}",), _PROVIDER_BYTES, progress,
              "building the WebGPU provider's library")

    def finish(final: Path) -> dict[str, Any]:
        write_atomic(final / CONFIG_NAME, emscripten.config(final / LIBRARIES_NAME, frozen=True))
        _try_module(emscripten, final)
        return {"provider": provider_sha256}

    ensure_folder(folder, inputs, build, finish, progress)
    return folder
