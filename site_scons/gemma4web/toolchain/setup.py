"""Puts the parts together: finds or fetches every tool in its order, tries it, and writes down what was found."""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import DiskFullError, Gemma4WebError, ToolchainError
from gemma4web.files import sha256_bytes, sha256_file
from gemma4web.pins import Pins, Version, load_pins, parse_version, version_text
from gemma4web.process import run
from gemma4web.toolchain import model
from gemma4web.toolchain.browsers import find_browser
from gemma4web.toolchain.cache import disk_full, other_cache
from gemma4web.toolchain.emscripten import (
    CONFIG_NAME,
    LIBRARIES_NAME,
    Emscripten,
    base_libraries,
    inspect,
    locate_root,
    provider_libraries,
)
from gemma4web.toolchain.model import Browser, ProviderKind, Toolchain
from gemma4web.toolchain.options import ToolchainOptions
from gemma4web.toolchain.packages import compiler_prefix, flatbuffers_prefix
from gemma4web.toolchain.progress import SetUpProgress
from gemma4web.toolchain.provider import find_provider
from gemma4web.toolchain.registries import closure_compiler, find_node, npm_modules, shipped_versions, webgpu_headers

_BASE_H: Final = re.compile(r"#define\s+FLATBUFFERS_VERSION_(MAJOR|MINOR|REVISION)\s+(\d+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class FlatBuffers:
    """flatc and the headers of the same version, in an include folder that holds nothing else."""

    flatc: Path
    include: Path
    version: str


def header_version(include: Path) -> Version | None:
    """The version that ``flatbuffers/base.h`` under ``include`` states, or None where there is none."""
    path = include / "flatbuffers" / "base.h"
    if not path.is_file():
        return None
    parts = dict(_BASE_H.findall(path.read_text(encoding="utf-8", errors="replace")))
    if parts.keys() != {"MAJOR", "MINOR", "REVISION"}:
        return None
    return int(parts["MAJOR"]), int(parts["MINOR"]), int(parts["REVISION"])


def flatc_version(program: Path) -> Version:
    text = run([program, "--version"], what="flatc --version", timeout_s=60.0)
    return parse_version(text.rsplit(" ", 1)[-1])


def include_alone(headers: Path, cache: Path) -> Path:
    """A folder with nothing but a link to ``headers``: a system's include folder must never reach em++."""
    folder = cache / f"flatbuffers-include-{sha256_bytes(str(headers).encode())[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "flatbuffers").symlink_to(headers)
    return folder


def installed_flatbuffers(pins: Pins, cache: Path, progress: SetUpProgress) -> FlatBuffers | None:
    """flatc on PATH with headers of its very version beside it; anything less is passed over with a line."""
    found = shutil.which("flatc")
    if found is None:
        return None
    least = pins.minimum["flatc"]
    include = Path(found).resolve().parent.parent / "include"
    try:
        version = flatc_version(Path(found))
    except Gemma4WebError as error:
        progress.line(f"passing over {found}: {str(error.args[0]).splitlines()[0]}")
        return None
    headers = header_version(include)
    if version < least or headers != version:
        progress.line(f"passing over {found}: version {version_text(version)} with headers "
                      f"{version_text(headers) if headers else 'missing'}, wanted both at {version_text(least)} or newer")
        return None
    return FlatBuffers(flatc=Path(found), include=include_alone(include / "flatbuffers", cache),
                       version=version_text(version))


def unpacked_flatbuffers(prefix: Path, cache: Path) -> FlatBuffers:
    """flatc and headers of an unpacked prefix. Raises ToolchainError when their versions differ."""
    flatc, include = prefix / "usr" / "bin" / "flatc", prefix / "usr" / "include"
    version, headers = flatc_version(flatc), header_version(include)
    if version != headers:
        raise ToolchainError(f"{flatc} is version {version_text(version)} and the headers in {include} are "
                             f"{version_text(headers) if headers else 'missing'}, wanted one version")
    return FlatBuffers(flatc=flatc, include=include_alone(include / "flatbuffers", cache), version=version_text(version))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Compiler:
    emscripten: Emscripten
    prefix: Path | None
    packages: Mapping[str, str]


def _find_compiler(options: ToolchainOptions, pins: Pins, cache: Path, node: Path, modules: Path,
                   progress: SetUpProgress) -> _Compiler:
    """EMSDK as option or environment variable, then emcc on PATH, then Debian's packages."""
    least = pins.minimum["emcc"]
    closure = closure_compiler(modules)
    named = options.emsdk_named()
    if named:
        root = locate_root(Path(named).expanduser())
        found = inspect(root, origin="EMSDK", node=node, closure=closure, least=least)
        return _Compiler(emscripten=found, prefix=None, packages={})
    on_path = shutil.which("emcc")
    if on_path is not None:
        try:
            root = locate_root(Path(on_path))
            found = inspect(root, origin="emcc on PATH", node=node, closure=closure, least=least)
            return _Compiler(emscripten=found, prefix=None, packages={})
        except ToolchainError as error:
            progress.line(f"passing over {on_path}: {str(error.args[0]).splitlines()[0]}")
    prefix, facts = compiler_prefix(pins, cache, modules, progress)
    pristine = {str((prefix / name).resolve()): digest for name, digest in facts["pristine"].items()}
    found = inspect(prefix / "usr/share/emscripten", origin="Debian packages in the cache", node=node, closure=closure,
                    least=least, pristine=pristine)
    return _Compiler(emscripten=found, prefix=prefix, packages=facts["packages"])


def set_up(options: ToolchainOptions, out: Path, progress: SetUpProgress) -> Toolchain:
    """Finds or fetches every tool and writes ``out`` (build/toolchain.json), browser.json and the status file beside it.

    A file is written only when its content changed. Two set-ups that share a cache wait for each other's parts.
    Raises ToolchainError (a tool is missing, too old or does not work), FetchError (a registry did not deliver) and
    DiskFullError.
    """
    cache = options.cache_folder()
    try:
        return _set_up(options, cache, out, progress)
    except DiskFullError as error:
        raise disk_full(cache, error.args[0]) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise disk_full(cache, f"the disk is full ({error})") from error
        raise ToolchainError(f"setting up the tools in {cache} failed: {error}",
                             advice=f"correct that or {other_cache(cache)}, then run the command again; "
                                    "what is finished is kept") from error


def _set_up(options: ToolchainOptions, cache: Path, out: Path, progress: SetUpProgress) -> Toolchain:
    pins = load_pins()
    node, node_version = find_node(pins.minimum["node"])
    modules = npm_modules(pins, cache, progress)
    compiler = _find_compiler(options, pins, cache, node, modules, progress)
    emscripten = compiler.emscripten
    progress.line(f"Emscripten {emscripten.version} at {emscripten.root} ({emscripten.origin})")
    flatbuffers = installed_flatbuffers(pins, cache, progress)
    if flatbuffers is None:
        prefix = compiler.prefix or flatbuffers_prefix(pins, cache, progress)
        flatbuffers = unpacked_flatbuffers(prefix, cache)
    headers = webgpu_headers(pins, cache, progress)
    provider = find_provider(
        options.provider, Path(options.emdawnwebgpu_pkg).expanduser() if options.emdawnwebgpu_pkg else None,
        emscripten=emscripten, checkout=Path(options.checkout), webgpu_include=headers, cache=cache,
        progress=progress)
    progress.line(f"WebGPU provider {provider.kind}: {model.port_file(provider.port)}")
    base = base_libraries(emscripten, cache, progress)
    libraries = provider_libraries(emscripten, base, provider.port, provider.sha256, progress)
    browser = find_browser(Path(options.browser) if options.browser else None, pins, cache, progress)
    progress.line(f"Chromium {browser.version} at {browser.executable} ({browser.origin})")
    toolchain = Toolchain(
        emcc=emscripten.emcc, em_config=libraries / CONFIG_NAME, em_cache=libraries / LIBRARIES_NAME,
        emscripten_root=emscripten.root, llvm_root=emscripten.llvm, binaryen_root=emscripten.binaryen, node=node,
        flatc=flatbuffers.flatc, flatbuffers_include=flatbuffers.include, webgpu_include=headers,
        closure=emscripten.closure, npm_modules=modules / "node_modules", provider=provider,
        versions=_versions(pins, emscripten, node_version, flatbuffers, headers), packages=compiler.packages,
    )
    model.write_files(out, toolchain, browser, options.recorded())
    return toolchain


def _versions(pins: Pins, emscripten: Emscripten, node: str, flatbuffers: FlatBuffers, headers: Path) -> dict[str, Any]:
    return {
        **emscripten.identity, "node": node, "flatc": flatbuffers.version, "npm": shipped_versions(pins),
        "webgpu_h_sha256": sha256_file(headers / "webgpu" / "webgpu.h"),
    }


def _npm_version(versions: Mapping[str, Any], program: Path | None) -> str:
    return "" if program is None else str(versions["npm"].get(program.parent.name, ""))


def found_rows(toolchain: Toolchain, browser: Browser) -> list[tuple[str, str, str]]:
    """(tool, version, place) for a person."""
    versions = toolchain.versions
    kind = toolchain.provider.kind
    return [
        ("Emscripten", str(versions["emcc"]), str(toolchain.emscripten_root)),
        ("clang, wasm-ld", str(versions["clang"]), str(toolchain.llvm_root)),
        ("wasm-opt", str(versions["wasm_opt"]), str(toolchain.binaryen_root)),
        ("Closure Compiler", _npm_version(versions, toolchain.closure), str(toolchain.closure or "none")),
        ("Node.js", str(versions["node"]), str(toolchain.node)),
        ("flatc", str(versions["flatc"]), str(toolchain.flatc)),
        ("webgpu.h", str(versions["webgpu_h_sha256"])[:12], str(toolchain.webgpu_include)),
        (f"provider {kind}" if kind is ProviderKind.OWN else str(kind), toolchain.provider.sha256[:12],
         str(model.port_file(toolchain.provider.port))),
        ("library cache", "", str(toolchain.em_cache)),
        ("npm packages", str(len(versions["npm"])), str(toolchain.npm_modules)),
        ("Chromium", browser.version, str(browser.executable)),
    ]
