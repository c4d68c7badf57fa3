"""Finds an implementation of ``webgpu.h``: a package that the user names, the one that Emscripten names, or our own."""

from __future__ import annotations

import hashlib
import runpy
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import requests

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.files import provider_files, write_atomic
from gemma4web.toolchain.cache import ensure_folder
from gemma4web.toolchain.emscripten import Emscripten
from gemma4web.toolchain.model import Provider, ProviderKind, hash_files, port_value
from gemma4web.toolchain.progress import SetUpProgress, step

PORT_NAME: Final = "emdawnwebgpu.port.py"
OWN_PORT: Final = "runtime_cpp/webgpu_port/webgpu_port.port.py"
CHOICES: Final = ("auto", "emdawnwebgpu", "webgpu_port")
_PORT_OPTIONS: Final = {"cpp_bindings": "false"}  # only the C API is used
_CONNECT_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S: Final = 20.0
_LARGEST_PACKAGE_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotePort:
    """Where this Emscripten says that its emdawnwebgpu package is, and the sha512 that the archive must have."""

    url: str
    sha512: str
    inner: PurePosixPath


def package_provider(named: Path) -> Provider:
    """The real emdawnwebgpu from a local folder. Raises ToolchainError when it is not one."""
    folder = named.parent if named.name == PORT_NAME else named
    folder = next((place for place in (folder, folder / "emdawnwebgpu_pkg") if (place / PORT_NAME).is_file()), folder)
    if not (folder / PORT_NAME).is_file():
        raise ToolchainError(
            f"EMDAWNWEBGPU_PKG={named}: no {PORT_NAME} there",
            advice=f"name the unpacked folder emdawnwebgpu_pkg, the one with {PORT_NAME} in it",
        )
    if not (folder / "webgpu" / "include" / "webgpu" / "webgpu.h").is_file():
        raise ToolchainError(
            f"EMDAWNWEBGPU_PKG={named}: {folder} has no webgpu/include/webgpu/webgpu.h",
            advice="name a built package (a source tree of Dawn lacks the generated header)",
        )
    return _provider(ProviderKind.PACKAGE, folder, port_value((folder / PORT_NAME).absolute(), **_PORT_OPTIONS))


def _provider(kind: ProviderKind, folder: Path, port: str) -> Provider:
    return Provider(kind=kind, port=port, sha256=hash_files(folder, provider_files(folder)))


def own_provider(checkout: Path, webgpu_include: Path) -> Provider:
    """The compute subset in this checkout. Raises ToolchainError when the checkout is incomplete."""
    path = (checkout / OWN_PORT).absolute()
    if not path.is_file():
        raise ToolchainError(f"{path} does not exist", advice="restore the checkout's runtime_cpp/webgpu_port folder")
    return _provider(ProviderKind.OWN, path.parent, port_value(path, include=webgpu_include))


def remote_port(emscripten: Emscripten) -> RemotePort:
    """Reads the compiler's own description of emdawnwebgpu. Raises ToolchainError when it has none."""
    path = emscripten.root / "tools" / "ports" / "emdawnwebgpu.py"
    try:
        names = runpy.run_path(str(path), run_name="emdawnwebgpu")
        inner = PurePosixPath(names["PORT_FILE"])
        found = RemotePort(url=str(names["EXTERNAL_PORT"]), sha512=str(names["SHA512"]), inner=inner)
    except (OSError, KeyError, SyntaxError) as error:
        raise ToolchainError(
            f"Emscripten {emscripten.version} at {emscripten.root} names no emdawnwebgpu package ({error!r})",
            advice="give one with EMDAWNWEBGPU_PKG=, or build with PROVIDER=webgpu_port",
        ) from None
    if inner.is_absolute() or ".." in inner.parts or inner.name != PORT_NAME:
        raise ToolchainError(f"{path} names {inner} as its port file, wanted {PORT_NAME} in a folder of the archive")
    return found


def download_package(remote: RemotePort, target: Path) -> None:
    """Fetches the archive to ``target`` and checks its hash; nothing is left when it differs. Raises FetchError."""
    advice = "give a local package with EMDAWNWEBGPU_PKG=, or build with PROVIDER=webgpu_port"
    digest = hashlib.sha512()
    blocks: list[bytes] = []
    size = 0
    try:
        with requests.get(remote.url, stream=True, timeout=(_CONNECT_TIMEOUT_S, _READ_TIMEOUT_S)) as answer:
            answer.raise_for_status()
            for block in answer.iter_content(1 << 16):
                size += len(block)
                if size > _LARGEST_PACKAGE_BYTES:
                    raise FetchError(f"the emdawnwebgpu package is larger than {_LARGEST_PACKAGE_BYTES >> 20} MiB",
                                     advice=advice)
                digest.update(block)
                blocks.append(block)
    except requests.RequestException as error:
        raise FetchError(f"the emdawnwebgpu package cannot be downloaded: {type(error).__name__}", advice=advice) from None
    if digest.hexdigest() != remote.sha512:
        raise FetchError(f"the emdawnwebgpu package has sha512 {digest.hexdigest()}, wanted {remote.sha512}",
                         advice=advice)
    write_atomic(target, b"".join(blocks))


def unpack_package(archive: Path, folder: Path) -> None:
    """Unpacks a package; an entry that would land outside ``folder`` is refused. Raises FetchError."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for name in packed.namelist():
                if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                    raise FetchError(f"{archive.name} holds {name}, which would land outside its folder")
            packed.extractall(folder)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{archive.name} is no zip archive: {error}") from None


def port_provider(emscripten: Emscripten, cache: Path, progress: SetUpProgress) -> Provider:
    """The emdawnwebgpu package that the compiler itself would download, kept in the cache and checked.

    Raises FetchError, ToolchainError.
    """
    remote = remote_port(emscripten)
    folder = cache / f"emdawnwebgpu-{remote.sha512[:12]}"

    def build(temporary: Path) -> None:
        with step(progress, "downloading the emdawnwebgpu package"):
            download_package(remote, temporary / "package.zip")
        unpack_package(temporary / "package.zip", temporary)
        (temporary / "package.zip").unlink()

    def finish(final: Path) -> dict[str, Any]:
        if not (final / remote.inner).is_file():
            raise FetchError(f"the emdawnwebgpu package holds no {remote.inner}")
        return {"sha512": remote.sha512}

    ensure_folder(folder, {"sha512": remote.sha512}, build, finish, progress)
    port = folder / remote.inner
    return _provider(ProviderKind.PORT, port.parent, port_value(port, **_PORT_OPTIONS))


def find_provider(choice: str, package: Path | None, *, emscripten: Emscripten, checkout: Path, webgpu_include: Path,
                  cache: Path, progress: SetUpProgress) -> Provider:
    """The provider for a choice of ``auto``, ``emdawnwebgpu`` or ``webgpu_port``.

    ``auto`` takes a named package, else tries the download once and shortly, else our own port, and says so. Raises ToolchainError, FetchError.
    """
    if choice not in CHOICES:
        raise ToolchainError(f"PROVIDER={choice}: no such WebGPU provider", advice=f"wanted one of {', '.join(CHOICES)}")
    if package is not None:
        if choice == "webgpu_port":
            raise ToolchainError("EMDAWNWEBGPU_PKG= and PROVIDER=webgpu_port contradict each other",
                                 advice="leave one of them out")
        return package_provider(package)
    if choice == "webgpu_port":
        return own_provider(checkout, webgpu_include)
    try:
        return port_provider(emscripten, cache, progress)
    except (FetchError, ToolchainError) as error:
        if choice == "emdawnwebgpu":
            raise
        progress.line(f"{error.args[0]}; using the project's own webgpu_port instead")
        return own_provider(checkout, webgpu_include)
