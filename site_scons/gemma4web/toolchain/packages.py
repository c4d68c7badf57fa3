"""The folders that Debian packages are unpacked into: the compiler with flatc, Chromium, and for tests a Vulkan driver."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import ToolchainError
from gemma4web.files import sha256_bytes, write_atomic
from gemma4web.pins import Pins
from gemma4web.process import run
from gemma4web.toolchain.apt_sources import AptSource, main_archives, os_codename, release_sources, system_sources
from gemma4web.toolchain.cache import ensure_folder
from gemma4web.toolchain.debian import DEBIAN_KEYRING, AptRoot, open_apt_root, unpack
from gemma4web.toolchain.emscripten import quote_launchers
from gemma4web.toolchain.prefix import library_folders, missing_libraries, patch_prefix
from gemma4web.toolchain.progress import SetUpProgress

_COMPILER_PROGRAMS: Final = (
    "usr/lib/llvm-*/bin/clang", "usr/lib/llvm-*/bin/wasm-ld", "usr/lib/llvm-*/bin/llvm-ar",
    "usr/lib/llvm-*/bin/llvm-nm", "usr/lib/llvm-*/bin/llvm-objcopy", "usr/bin/wasm-opt",
    "usr/bin/wasm-emscripten-finalize", "usr/bin/wasm-metadce", "usr/bin/flatc",
)
_BESIDE_EMCC: Final = ("acorn", "acorn-import-phases")
WRAPPER: Final = "run-chromium"
_DRIVER: Final = "libvulkan_lvp.so"
_DRIVER_MANIFEST: Final = "lavapipe.json"
_FONTS: Final = """\
<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "urn:fontconfig:fonts.dtd">
<fontconfig>
  <dir prefix="relative">usr/share/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir prefix="xdg">fontconfig</cachedir>
</fontconfig>
"""


def _suite_of(source: AptSource, suite: str) -> AptSource:
    keyring = str(DEBIAN_KEYRING) if DEBIAN_KEYRING.is_file() else source.signed_by
    return AptSource(uri=source.uri, suite=suite, components=("main",), signed_by=keyring)


def _pinned_suite(pins: Pins, name: str, cache: Path, progress: SetUpProgress) -> AptRoot:
    archives = main_archives(system_sources(), os_codename(), DEBIAN_KEYRING)
    return open_apt_root(cache, name, [[_suite_of(source, pins.debian_suite)] for source in archives], progress)


def _running_release(codename: str | None, name: str, cache: Path, progress: SetUpProgress) -> AptRoot:
    sources: Sequence[AptSource] = release_sources(system_sources(), codename) if codename else ()
    return open_apt_root(cache, name, [sources] if sources else [], progress)


def _try_programs(prefix: Path, patterns: Sequence[str]) -> None:
    """Raises ToolchainError when a program is absent, asks for a library that nothing provides, or does not start."""
    folders = library_folders(prefix)
    for pattern in patterns:
        programs = sorted(prefix.glob(pattern))
        if not programs:
            raise ToolchainError(f"the unpacked packages hold no {pattern}")
        missing = missing_libraries(programs[-1], folders, system_libc=False)
        if missing:
            raise ToolchainError(f"{programs[-1]} needs {', '.join(missing)}, which no unpacked package holds")
        run([programs[-1], "--version"], what=f"trying {programs[-1].name}", timeout_s=60.0)


def _inputs(pins: Pins, name: str, suite: str | None) -> dict[str, Any]:
    group = pins.debian[name]
    return {"suite": suite, "leave": list(group.leave),
            "roots": {package: list(version) for package, version in group.roots.items()}}


def _folder(cache: Path, what: str, inputs: dict[str, Any]) -> Path:
    """A folder for these inputs alone, so that checkouts with other pins share the cache without undoing each other."""
    return cache / f"{what}-{sha256_bytes(repr(sorted(inputs.items())).encode())[:12]}"


def compiler_prefix(pins: Pins, cache: Path, modules: Path, progress: SetUpProgress) -> tuple[Path, dict[str, Any]]:
    """Emscripten, LLVM, Binaryen and flatc of the pinned suite, made to run on this machine.

    Debian's emcc.py looks for its JavaScript parser beside itself; it is copied there from the npm folder ``modules``.
    Returns the folder and {"packages": {name: version}, "pristine": {path: sha256}}.
    Raises FetchError, ToolchainError.
    """
    beside = {package.name: package.version for package in pins.npm["compile"] if package.name in _BESIDE_EMCC}
    inputs = {**_inputs(pins, "emscripten", pins.debian_suite), "beside_emcc": beside}
    folder = _folder(cache, f"compiler-{pins.debian_suite}", inputs)
    found: dict[str, Any] = {}

    def build(temporary: Path) -> None:
        root = _pinned_suite(pins, "emscripten", cache, progress)
        found.update(_unpack_group(root, pins, "emscripten", temporary, progress, "the compiler"))
        found["pristine"] = patch_prefix(temporary, folder, progress)
        for name in _BESIDE_EMCC:
            shutil.copytree(modules / "node_modules" / name, temporary / "usr/share/emscripten/node_modules" / name)
        quote_launchers(temporary / "usr/share/emscripten")

    def finish(final: Path) -> dict[str, Any]:
        _try_programs(final, _COMPILER_PROGRAMS)
        return found

    return folder, ensure_folder(folder, inputs, build, finish, progress)


def flatbuffers_prefix(pins: Pins, cache: Path, progress: SetUpProgress) -> Path:
    """flatc and its headers alone, for a machine that has its own Emscripten."""
    inputs = _inputs(pins, "flatbuffers", pins.debian_suite)
    folder = _folder(cache, f"flatbuffers-{pins.debian_suite}", inputs)
    found: dict[str, Any] = {}

    def build(temporary: Path) -> None:
        root = _pinned_suite(pins, "flatbuffers", cache, progress)
        found.update(_unpack_group(root, pins, "flatbuffers", temporary, progress, "flatc"))
        found["pristine"] = patch_prefix(temporary, folder, progress)

    def finish(final: Path) -> dict[str, Any]:
        _try_programs(final, ("usr/bin/flatc",))
        return found

    ensure_folder(folder, inputs, build, finish, progress)
    return folder


def _unpack_group(root: AptRoot, pins: Pins, name: str, folder: Path, progress: SetUpProgress,
                  what: str) -> dict[str, Any]:
    """Fills ``folder``; the downloads and the index are dropped once they are unpacked, and kept until then."""
    packages = root.resolve(pins.debian[name])
    files = root.download(packages, progress, f"downloading {len(packages)} packages for {what}")
    unpack(files, folder, progress, f"unpacking {what}")
    shutil.rmtree(folder / "usr/share/doc", ignore_errors=True)
    shutil.rmtree(root.folder)
    return {"packages": {package.name: package.version for package in packages}}


def chromium_prefix(pins: Pins, cache: Path, progress: SetUpProgress) -> tuple[Path, dict[str, Any]]:
    """Chromium of the running release with its libraries and a font, started by ``run-chromium`` in the folder.

    Returns the folder and {"packages": ...}. Raises FetchError, ToolchainError.
    """
    codename = os_codename()
    inputs = _inputs(pins, "chromium", codename)
    folder = _folder(cache, f"chromium-{codename or 'unknown'}", inputs)
    found: dict[str, Any] = {}

    def build(temporary: Path) -> None:
        root = _running_release(codename, "chromium", cache, progress)
        found.update(_unpack_group(root, pins, "chromium", temporary, progress, "Chromium"))
        write_atomic(temporary / "fonts.conf", _FONTS)

    def finish(final: Path) -> dict[str, Any]:
        program = final / "usr/lib/chromium/chromium"
        chromium = final / "usr/lib/chromium"
        folders = [chromium, *(folder for folder in library_folders(final) if folder != chromium)]
        missing = missing_libraries(program, folders, system_libc=True)
        if missing:
            raise ToolchainError(f"{program} needs {', '.join(missing)}, which no unpacked package holds")
        write_atomic(final / WRAPPER, wrapper_text(final, folders))
        os.chmod(final / WRAPPER, 0o755)
        return found

    return folder, ensure_folder(folder, inputs, build, finish, progress)


def wrapper_text(root: Path, folders: Sequence[Path]) -> str:
    """A launcher that finds the unpacked libraries and fonts wherever it stands; ``folders`` lie under ``root``, its own."""
    places = ":".join(f"$here/{folder.relative_to(root).as_posix()}" for folder in folders)
    return (
        "#!/bin/sh\n"
        "# Starts the unpacked Chromium with the libraries and fonts beside it.\n"
        'here=$(cd "$(dirname "$0")" && pwd) || exit 1\n'
        f'export LD_LIBRARY_PATH="{places}"\n'
        'export FONTCONFIG_FILE="$here/fonts.conf"\n'
        'export CHROME_WRAPPER="$here/run-chromium"\n'
        'exec "$here/usr/lib/chromium/chromium" "$@"\n'
    )


def lavapipe_environment(pins: Pins, cache: Path, progress: SetUpProgress) -> dict[str, str]:
    """Variables with which a process finds Mesa's lavapipe, and no other Vulkan driver, unpacked in the cache.

    The libraries are of the running release and use the system's libc; they are searched first only in a process that is
    given these variables. Raises FetchError, ToolchainError.
    """
    codename = os_codename()
    inputs = _inputs(pins, "lavapipe", codename)
    folder = _folder(cache, f"lavapipe-{codename or 'unknown'}", inputs)
    found: dict[str, Any] = {}

    def build(temporary: Path) -> None:
        root = _running_release(codename, "lavapipe", cache, progress)
        found.update(_unpack_group(root, pins, "lavapipe", temporary, progress, "lavapipe"))

    def finish(final: Path) -> dict[str, Any]:
        _library(final, "libvulkan.so.1")
        write_atomic(final / _DRIVER_MANIFEST, driver_manifest(_library(final, _DRIVER).relative_to(final)))
        return found

    ensure_folder(folder, inputs, build, finish, progress)
    manifest = str(folder / _DRIVER_MANIFEST)
    # The second name is that of loaders before 1.3.207.
    return {"LD_LIBRARY_PATH": os.pathsep.join(map(str, library_folders(folder))),
            "VK_DRIVER_FILES": manifest, "VK_ICD_FILENAMES": manifest}


def _library(prefix: Path, name: str) -> Path:
    """A library that runs with the system's libc. Raises ToolchainError when it, or what it asks for, is absent."""
    folders = library_folders(prefix)
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        raise ToolchainError(f"the unpacked packages hold no {name}")
    missing = missing_libraries(found, folders, system_libc=True)
    if missing:
        raise ToolchainError(f"{found} needs {', '.join(missing)}, which no unpacked package holds")
    return found


def driver_manifest(library: Path) -> str:
    """A Vulkan driver manifest; ``library`` is relative to its folder. Debian's own names a place under /usr.

    https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderDriverInterface.md
    """
    return json.dumps({"file_format_version": "1.0.0",
                       "ICD": {"library_path": f"./{library.as_posix()}", "api_version": "1.3.0"}}, indent=2) + "\n"
