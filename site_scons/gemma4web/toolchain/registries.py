"""What comes from npm and PyPI: exact versions, checked against the hashes in ``pins.yaml`` by npm and pip themselves."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.files import sha256_bytes, write_atomic
from gemma4web.pins import NpmPackage, Pins, PypiFile, Version, parse_version, version_text
from gemma4web.process import run
from gemma4web.toolchain import reach
from gemma4web.toolchain.cache import ensure_folder
from gemma4web.toolchain.progress import SetUpProgress, folder_bytes, step

_NO_NETWORK: Final = ("connect this machine to a network, or set https_proxy to the proxy that it has to use, then run the "
                      "command again; finished downloads are kept")
_NPM_TIMEOUT_S: Final = 1800.0
_PIP_TIMEOUT_S: Final = 900.0
_MACHINES: Final = {"x86_64": "linux-x64", "aarch64": "linux-arm64"}
_CLOSURE_PACKAGES: Final = ("google-closure-compiler-linux", "google-closure-compiler-linux-arm64")
_TEST_GROUP: Final = "test"
BENCH_GROUP: Final = "bench"
"""Programs that kernels are measured against: only `bench-kernels` fetches them, into a folder of their own."""


def npm_platform() -> str:
    """npm's name of this machine. Raises ToolchainError on a machine that no native package is pinned for."""
    machine = platform.machine()
    if sys.platform != "linux" or machine not in _MACHINES:
        raise ToolchainError(
            f"this is {sys.platform} on {machine}; tools are set up on Linux on {' or '.join(_MACHINES)}",
            advice="build on such a machine; the finished bundle runs in any browser with WebGPU",
        )
    return _MACHINES[machine]


def find_node(least: Version) -> tuple[Path, str]:
    """Node.js on PATH and its version. Raises ToolchainError with what was found and what was wanted."""
    advice = f"install Node.js {version_text(least)} or newer with npm"
    found = shutil.which("node")
    if found is None:
        raise ToolchainError("no `node` on PATH", advice=advice)
    version = run([found, "--version"], what="node --version", timeout_s=60.0).strip()
    if parse_version(version) < least:
        raise ToolchainError(f"{found} is Node.js {version}, wanted {version_text(least)} or newer", advice=advice)
    return Path(found), version.lstrip("v")


def npm_documents(packages: list[NpmPackage]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The package.json and package-lock.json that make npm install exactly ``packages``; neither names a host."""
    wanted = {package.name: package.version for package in sorted(packages, key=lambda package: package.name)}
    manifest = {"name": "gemma4web-tools", "version": "0.0.0", "private": True, "dependencies": wanted}
    entries: dict[str, Any] = {"": {key: manifest[key] for key in ("name", "version", "dependencies")}}
    for package in packages:
        entries[f"node_modules/{package.name}"] = {"version": package.version, "integrity": package.integrity}
    lock = {"name": manifest["name"], "version": manifest["version"], "lockfileVersion": 3, "requires": True,
            "packages": dict(sorted(entries.items()))}
    return manifest, lock


def npm_modules(pins: Pins, cache: Path, progress: SetUpProgress) -> Path:
    """The folder with ``node_modules`` of everything that a build or a test needs, installed once. Raises FetchError."""
    return _installed([package for name, group in pins.npm.items() if name != BENCH_GROUP for package in group], cache,
                      progress, expected_bytes=145e6)


def bench_modules(pins: Pins, cache: Path, progress: SetUpProgress) -> Path:
    """The folder with ``node_modules`` of the bench group, installed once. Raises FetchError."""
    return _installed(pins.npm[BENCH_GROUP], cache, progress, expected_bytes=150e6)


def _installed(wanted: Sequence[NpmPackage], cache: Path, progress: SetUpProgress, *, expected_bytes: float) -> Path:
    here = npm_platform()
    packages = [package for package in wanted if package.platform in {None, here}]
    manifest, lock = npm_documents(packages)
    text = json.dumps(lock, sort_keys=True, indent=2) + "\n"
    inputs = {"lock": sha256_bytes(text.encode()), "platform": here}
    folder = cache / f"npm-{inputs['lock'][:12]}"

    def build(temporary: Path) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise FetchError("no `npm` on PATH", advice="install npm (on Debian: the package npm, or Node.js's own)")
        write_atomic(temporary / "package.json", json.dumps(manifest, indent=2) + "\n")
        write_atomic(temporary / "package-lock.json", text)
        silence = reach.unreachable(npm, temporary)
        if silence:
            progress.line(f"no network? {silence}")
        with step(progress, f"installing {len(packages)} npm packages",
                  measure=lambda: folder_bytes(temporary), total=expected_bytes):
            try:
                run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress",
                     *(reach.QUICK if silence else reach.PATIENT), "--prefix", temporary],
                    cwd=temporary, error=FetchError, what="npm ci", timeout_s=_NPM_TIMEOUT_S)
            except FetchError as error:
                raise FetchError(f"{error.args[0]}\n{silence}", advice=_NO_NETWORK) if silence else error from None

    def finish(final: Path) -> dict[str, Any]:
        for package in packages:
            check_npm_package(final / "node_modules", package)
        closure = closure_compiler(final)
        if closure is not None and not os.access(closure, os.X_OK):
            closure.chmod(0o755)
        return {package.name: package.version for package in packages}

    ensure_folder(folder, inputs, build, finish, progress)
    return folder


def shipped_versions(pins: Pins) -> dict[str, str]:
    """Name and version of every package for this machine that shapes a bundle; tools of the tests do not."""
    here = npm_platform()
    return {package.name: package.version for name, group in pins.npm.items() if name not in (_TEST_GROUP, BENCH_GROUP)
            for package in group if package.platform in {None, here}}


def check_npm_package(modules: Path, package: NpmPackage) -> None:
    """Raises FetchError when the installed package is absent or of another version than pinned."""
    try:
        found = json.loads((modules / package.name / "package.json").read_bytes())["version"]
    except (OSError, ValueError, KeyError):
        raise FetchError(f"npm installed no {package.name} into {modules}") from None
    if found != package.version:
        raise FetchError(f"npm installed {package.name} {found} into {modules}, wanted {package.version}")


def closure_compiler(modules: Path) -> Path | None:
    """The native Closure Compiler, where npm has one for this machine."""
    programs = [modules / "node_modules" / name / "compiler" for name in _CLOSURE_PACKAGES]
    return next((program for program in programs if program.is_file()), None)


def pip_download(pinned: PypiFile, folder: Path) -> Path:
    """Downloads one pinned wheel with pip, which enforces the hash. Raises FetchError."""
    requirement = f"{pinned.name}=={pinned.version} " + " ".join(f"--hash=sha256:{digest}" for digest in pinned.sha256)
    write_atomic(folder / "requirements.txt", requirement + "\n")
    run([sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes",
         "--quiet", "--disable-pip-version-check", "--dest", folder, "--requirement", folder / "requirements.txt"],
        error=FetchError, what=f"downloading {pinned.name} {pinned.version}", timeout_s=_PIP_TIMEOUT_S)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip downloaded {len(wheels)} wheels of {pinned.name}, wanted one")
    return wheels[0]


def webgpu_headers(pins: Pins, cache: Path, progress: SetUpProgress) -> Path:
    """An include folder with the standard ``webgpu/webgpu.h``. Raises FetchError."""
    pinned = pins.pypi["wgpu"]
    inputs: Mapping[str, Any] = {"wgpu": pinned.version, "sha256": list(pinned.sha256)}
    folder = cache / f"webgpu-headers-{pinned.version}"

    def build(temporary: Path) -> None:
        with step(progress, "fetching the standard webgpu.h"), tempfile.TemporaryDirectory() as scratch:
            wheel = pip_download(pinned, Path(scratch))
            try:
                with zipfile.ZipFile(wheel) as archive:
                    text = archive.read("wgpu/resources/webgpu.h")
            except (KeyError, zipfile.BadZipFile) as error:
                raise FetchError(f"{wheel.name} holds no webgpu.h: {error}") from None
            write_atomic(temporary / "webgpu" / "webgpu.h", text)

    def finish(final: Path) -> dict[str, Any]:
        return {"sha256": sha256_bytes((final / "webgpu" / "webgpu.h").read_bytes())}

    ensure_folder(folder, dict(inputs), build, finish, progress)
    return folder
