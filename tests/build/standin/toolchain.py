"""Stands in for gemma4web.toolchain in the tiny project: tools are scripts of the test, found at once.

The tools' version is the content of ``tools.txt`` in the project's root, so that a test can change the toolchain.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4web.errors import ToolchainError
from gemma4web.files import dump_json, load_json, sha256_bytes, write_if_changed

_ROOT = Path(__file__).resolve().parents[3]
_TOOLS = _ROOT / "tools"


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolchainOptions:
    emsdk: Path | None = None
    emdawnwebgpu_pkg: Path | None = None
    provider: str = "auto"
    browser: Path | None = None
    cache: Path | None = None
    checkout: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provider:
    kind: str
    port: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Toolchain:
    emcc: tuple[str, ...]
    em_cache: Path
    closure: None
    flatc: Path
    flatbuffers_include: Path
    provider: Provider
    npm_modules: Path
    version: str

    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "STANDIN_LOG": str(_ROOT / "compiler.log")}


def _version() -> str:
    return (_ROOT / "tools.txt").read_text(encoding="utf-8").strip()


def set_up(options: ToolchainOptions, out: Path, progress: Any) -> Toolchain:
    with (_ROOT / "compiler.log").open("a", encoding="utf-8") as log:
        log.write("set-up\n")
    write_if_changed(out, dump_json({"schema": 1, "version": _version(), "provider": options.provider}))
    for name in ("browser.json", "toolchain-status.json"):
        write_if_changed(out.with_name(name), dump_json({"schema": 1}))
    return load(out)


def load(path: Path) -> Toolchain:
    if not path.is_file():
        raise ToolchainError(f"{path} does not exist")
    document = load_json(path, schema=1)
    return Toolchain(
        emcc=(sys.executable, str(_TOOLS / "emxx.py")), em_cache=_ROOT / "cache", closure=None, flatc=_TOOLS / "flatc",
        flatbuffers_include=_ROOT / "cache/include", npm_modules=_ROOT / "node_modules", version=document["version"],
        provider=Provider(kind=document["provider"], port="standin.port.py",
                          sha256=sha256_bytes(document["provider"].encode())),
    )


def is_current(path: Path, options: ToolchainOptions) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return False
    return (document["version"], document["provider"]) == (_version(), options.provider)


def identity(toolchain: Toolchain) -> dict[str, Any]:
    return {"version": toolchain.version,
            "provider": {"kind": toolchain.provider.kind, "sha256": toolchain.provider.sha256}}
