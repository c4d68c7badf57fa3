"""What a set-up ends with, and its files: build/toolchain.json for compiling, build/browser.json for running.

The two are apart so that another browser recompiles nothing. A third file records size and time of every tool, for the
cheap check at the start of a build; nothing depends on it. None of them holds a clock or a host name.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import RecordError, ToolchainError
from gemma4web.files import dump_json, load_json, provider_files, sha256_bytes, sha256_file, write_if_changed
from gemma4web.pins import PINS_PATH

SCHEMA: Final = 1
BROWSER_NAME: Final = "browser.json"
STATUS_NAME: Final = "toolchain-status.json"


class ProviderKind(StrEnum):
    PACKAGE = "emdawnwebgpu-package"
    PORT = "emdawnwebgpu-port"
    OWN = "webgpu_port"


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    """An implementation of ``webgpu.h``: ``port`` is the value of ``--use-port=``, ``sha256`` covers all its files."""

    kind: ProviderKind
    port: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Browser:
    """A Chromium that starts headless here; ``env`` is added to the environment that it gets."""

    executable: Path
    env: Mapping[str, str]
    version: str
    origin: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    """Every tool that compiles or links, found and tried. ``emcc`` is the argv of the C++ front end.

    ``versions`` has what identifies the tools: versions and hashes, never a path. ``packages`` has the Debian packages
    that were found, where the compiler comes from them; another revision of one with the same content changes nothing.
    """

    emcc: tuple[str, ...]
    em_config: Path
    em_cache: Path
    emscripten_root: Path
    llvm_root: Path
    binaryen_root: Path
    node: Path
    flatc: Path
    flatbuffers_include: Path
    webgpu_include: Path
    closure: Path | None
    npm_modules: Path
    provider: Provider
    versions: Mapping[str, Any]
    packages: Mapping[str, str]

    def environment(self) -> dict[str, str]:
        """The whole environment of a compile or link: nothing of the caller's own leaks into it."""
        return {
            "PATH": search_path(self.node, Path(self.emcc[0])), "HOME": str(self.em_cache.parent), "EM_CONFIG": str(self.em_config),
            "EM_CACHE": str(self.em_cache), "SOURCE_DATE_EPOCH": "0",
        }


def search_path(node: Path, python: Path) -> str:
    """PATH of a compile or link: emcc's shell launchers look for ``python3`` there, its JavaScript for ``node``."""
    return os.pathsep.join(dict.fromkeys([str(node.parent), str(python.parent), "/usr/local/bin", "/usr/bin", "/bin"]))


def identity(toolchain: Toolchain) -> dict[str, Any]:
    """What a receipt says of the tools: equal on two machines exactly when the tools are."""
    return {**toolchain.versions,
            "provider": {"kind": str(toolchain.provider.kind), "sha256": toolchain.provider.sha256}}


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def _document(value: Toolchain | Browser) -> dict[str, Any]:
    document = _plain(asdict(value))
    assert isinstance(document, dict)
    return {"schema": SCHEMA, **document}


def write_files(out: Path, toolchain: Toolchain, browser: Browser, options: Mapping[str, Any]) -> None:
    """Writes the three files beside each other, each only when its content changed."""
    write_if_changed(out, dump_json(_document(toolchain)))
    write_if_changed(out.with_name(BROWSER_NAME), dump_json(_document(browser)))
    status = {
        "schema": SCHEMA, "options": dict(options), "pins_sha256": sha256_file(PINS_PATH),
        "toolchain_sha256": sha256_file(out), "browser_sha256": sha256_file(out.with_name(BROWSER_NAME)),
        "files": {str(path): file_status(path) for path in sorted(watched_files(toolchain, browser))},
    }
    write_if_changed(out.with_name(STATUS_NAME), dump_json(status))


def file_status(path: Path) -> list[int] | None:
    """Size and modification time [bytes, ns] of what a path leads to, or None when it leads nowhere."""
    try:
        found = path.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def watched_files(toolchain: Toolchain, browser: Browser) -> set[Path]:
    """Every file whose change means that the set-up must run again."""
    root = toolchain.emscripten_root
    found = {
        root / "em++.py", root / "emscripten-version.txt", toolchain.em_config, toolchain.node, toolchain.flatc,
        toolchain.llvm_root / "clang", toolchain.llvm_root / "wasm-ld", toolchain.binaryen_root / "bin" / "wasm-opt",
        toolchain.webgpu_include / "webgpu" / "webgpu.h", toolchain.flatbuffers_include / "flatbuffers" / "base.h",
        toolchain.npm_modules.parent / "package-lock.json", browser.executable,
    }
    if toolchain.closure is not None:
        found.add(toolchain.closure)
    return found | set(provider_files(port_file(toolchain.provider.port).parent))


def port_file(port: str) -> Path:
    """The file that a ``--use-port=`` value names: everything before the first colon."""
    return Path(port.split(":", 1)[0])


def port_value(path: Path, **options: str | Path) -> str:
    """The ``--use-port=`` value for a port file and its options. Raises ToolchainError when emcc could not read it.

    emcc ends the path at its first colon; in an option's value a colon is written twice.
    """
    if ":" in str(path):
        raise ToolchainError(f"the WebGPU provider is at {path}, and emcc takes no colon in a port's path",
                             advice="move it to a folder without a colon in its name")
    return ":".join([str(path), *(f"{name}={str(value).replace(':', '::')}" for name, value in options.items())])


def hash_files(folder: Path, paths: Iterable[Path]) -> str:
    """One hash over names (relative to ``folder``) and contents of files, independent of where the folder is."""
    lines = [f"{sha256_file(path)}  {path.relative_to(folder).as_posix()}\n" for path in sorted(paths)]
    return sha256_bytes("".join(lines).encode())


def _load(path: Path, what: str) -> dict[str, Any]:
    try:
        document = load_json(path, schema=SCHEMA)
    except RecordError as error:
        raise ToolchainError(f"the set-up's file for {what} is missing or of another kind: {error.args[0]}") from None
    document.pop("schema")
    return document


def _need(path: Path, what: str, source: Path) -> Path:
    if not path.exists():
        raise ToolchainError(f"{source} names {what} at {path}, which does not exist any more")
    return path


def load(path: Path) -> Toolchain:
    """Reads build/toolchain.json. Raises ToolchainError when it, or a tool that it names, has vanished."""
    document = _load(path, "compiling")
    try:
        provider = document["provider"]
        places = {name: Path(document[name]) for name in _PATH_FIELDS}
        toolchain = Toolchain(
            emcc=tuple(document["emcc"]), closure=Path(document["closure"]) if document["closure"] else None,
            provider=Provider(kind=ProviderKind(provider["kind"]), port=provider["port"], sha256=provider["sha256"]),
            versions=document["versions"], packages=document["packages"], **places,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ToolchainError(f"{path} is malformed: {error!r}") from None
    for name, place in places.items():
        _need(place, name, path)
    _need(Path(toolchain.emcc[0]), "the Python that runs emcc", path)
    _need(Path(toolchain.emcc[-1]), "emcc", path)
    _need(port_file(toolchain.provider.port), "the WebGPU provider", path)
    if toolchain.closure is not None:
        _need(toolchain.closure, "the Closure Compiler", path)
    _check_status(path)
    return toolchain


_PATH_FIELDS: Final = tuple(
    field.name for field in fields(Toolchain) if field.type == "Path"
)


def load_browser(path: Path) -> Browser:
    """Reads build/browser.json. Raises ToolchainError when it, or the browser that it names, has vanished."""
    document = _load(path, "the browser")
    try:
        browser = Browser(executable=Path(document["executable"]), env=dict(document["env"]),
                          version=document["version"], origin=document["origin"])
    except (KeyError, TypeError, ValueError) as error:
        raise ToolchainError(f"{path} is malformed: {error!r}") from None
    _need(browser.executable, "the browser", path)
    return browser


def _check_status(path: Path) -> None:
    """Raises ToolchainError when a compile tool's size or time differs from what the set-up saw."""
    status = _load(path.with_name(STATUS_NAME), "the tools' state")
    browser = load_json(path.with_name(BROWSER_NAME), schema=SCHEMA)["executable"]
    for name, recorded in status["files"].items():
        if name != browser and file_status(Path(name)) != recorded:
            raise ToolchainError(f"{name} has changed since the set-up that wrote {path}")


def is_current(path: Path, options: Mapping[str, Any]) -> bool:
    """Whether the files of a set-up still describe the tools: reads three small files and asks for sizes and times."""
    try:
        status = load_json(path.with_name(STATUS_NAME), schema=SCHEMA)
        return (
            status["options"] == dict(options)
            and status["pins_sha256"] == sha256_file(PINS_PATH)
            and status["toolchain_sha256"] == sha256_file(path)
            and status["browser_sha256"] == sha256_file(path.with_name(BROWSER_NAME))
            and all(file_status(Path(name)) == recorded for name, recorded in status["files"].items())
        )
    except (RecordError, OSError, KeyError, AttributeError):
        return False
