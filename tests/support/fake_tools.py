"""Stand-ins for the programs that a set-up starts: small scripts that answer as the real ones do."""

from __future__ import annotations

import sys
from pathlib import Path

LIBRARY = "libc.a"

_EMXX = f"""\
import json, os, pathlib, sys
words = sys.argv[1:]
log = os.environ.get("HOME", "")
config = {{}}
exec(pathlib.Path(os.environ["EM_CONFIG"]).read_text(), config)
assert os.environ["EM_CACHE"] == config["CACHE"], (os.environ["EM_CACHE"], config["CACHE"])
library = pathlib.Path(config["CACHE"]) / "sysroot" / "lib" / "{LIBRARY}"
ports = [word for word in words if word.startswith("--use-port=")]
if ports:
    library = library.with_name("libport.a")
if not library.exists():
    if config["FROZEN_CACHE"]:
        sys.exit("the cache is frozen and lacks " + library.name)
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_text("library")
failing = pathlib.Path(__file__).with_name("fail")
if failing.exists():
    sys.exit("em++: " + failing.read_text())
out = pathlib.Path(words[words.index("-o") + 1])
out.write_text("export default async function create() {{ return {{}}; }}\\n")
"""


def write_program(path: Path, text: str) -> Path:
    """An executable file; ``text`` begins with its interpreter line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def says(path: Path, text: str, *, code: int = 0) -> Path:
    """A program that prints ``text`` whatever it is asked."""
    return write_program(path, f"#!/bin/sh\n/bin/cat <<'END'\n{text}\nEND\nexit {code}\n")


def fake_sdk(folder: Path, version: str = "6.0.5", *, clang: str = "21.1.8") -> Path:
    """An Emscripten SDK as emsdk lays it out: ``upstream/{bin,emscripten}``."""
    root = folder / "upstream" / "emscripten"
    for inner in ("src", "system", "tools/ports", "third_party"):
        (root / inner).mkdir(parents=True)
    (root / "emscripten-version.txt").write_text(f'"{version}"\n', encoding="utf-8")
    (root / "em++.py").write_text(_EMXX, encoding="utf-8")
    (root / "src" / "library.js").write_text("// glue\n", encoding="utf-8")
    (root / "tools" / "ports" / "emdawnwebgpu.py").write_text(
        "TAG = 'v1'\nEXTERNAL_PORT = f'http://127.0.0.1:9/{TAG}.zip'\nSHA512 = '0' * 128\n"
        "PORT_FILE = 'emdawnwebgpu_pkg/emdawnwebgpu.port.py'\n", encoding="utf-8")
    says(folder / "upstream" / "bin" / "clang", f"clang version {clang} (https://example.org)")
    says(folder / "upstream" / "bin" / "wasm-ld", f"LLD {clang}")
    says(folder / "upstream" / "bin" / "wasm-opt", "wasm-opt version 131 (version_131)")
    return folder


def fake_flatbuffers(folder: Path, version: str = "25.2.10", *, headers: str | None = None) -> Path:
    """flatc under ``bin`` with headers under ``include``."""
    major, minor, revision = (headers or version).split(".")
    base = folder / "include" / "flatbuffers" / "base.h"
    base.parent.mkdir(parents=True, exist_ok=True)
    base.write_text(f"#define FLATBUFFERS_VERSION_MAJOR {major}\n#define FLATBUFFERS_VERSION_MINOR {minor}\n"
                    f"#define FLATBUFFERS_VERSION_REVISION {revision}\n", encoding="utf-8")
    return says(folder / "bin" / "flatc", f"flatc version {version}")


def fake_browser(path: Path, version: str = "156.0.1.2", *, page: str = "<html><p>started</p></html>") -> Path:
    """A browser that states a version and prints a page for ``--dump-dom``."""
    return write_program(path, f"""#!/bin/sh
case "$*" in
  *--version*) echo "Chromium {version} built on Debian" ;;
  *--dump-dom*) echo "{page}" ;;
esac
""")


def fake_package(folder: Path, text: str = "// js\n") -> Path:
    """A folder with the files that make an emdawnwebgpu package."""
    for inner, content in {
        "emdawnwebgpu.port.py": "LICENSE = ''\n", "webgpu/include/webgpu/webgpu.h": "#pragma once\n",
        "webgpu/src/library_webgpu.js": text,
    }.items():
        path = folder / inner
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return folder


def fake_npm(path: Path) -> Path:
    """npm whose ``ci`` installs what the lock in its ``--prefix`` folder lists, without any content."""
    return write_program(path, f"""#!{sys.executable}
import json, pathlib, sys
prefix = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1])
assert sys.argv[1] == "ci" and "--ignore-scripts" in sys.argv and "--fetch-retries=2" in sys.argv
for name, entry in json.loads((prefix / "package-lock.json").read_text())["packages"].items():
    if name:
        folder = prefix / name
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({{"name": name, "version": entry["version"]}}))
        (folder / "compiler").write_text("#!/bin/sh\\n")
""")


class Lines:
    """A progress that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, title: str) -> None:
        self.lines.append(f"begin {title}")

    def advance(self, title: str, share: float, detail: str) -> None:
        pass

    def end(self, title: str, seconds: float, failed: bool) -> None:
        self.lines.append(f"{'failed' if failed else 'end'} {title}")
