"""The page's sources: types, no view of wasm memory kept, nothing absolute, and a list of what is vendored (P05, P07, P13)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from tests.support.fake_bundle import WEB

from gemma4web.kernel_bench.server import PAGE

SOURCES = sorted(WEB.glob("*.js"))
HEAP = re.compile(r"\bHEAP[A-Z]*\d+\b")
# A whole statement that uses a view and lets it go: a copy in, a copy out, a search, a length.
USES = re.compile(r"\.HEAPU8\.(?:set\(|slice\(|indexOf\(|byteLength\b)")


def statements(path: Path) -> list[tuple[int, str]]:
    """Lines without comments."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), path.read_text(), flags=re.DOTALL)
    return [(number, re.sub(r"(?<!:)//.*", "", line)) for number, line in enumerate(text.splitlines(), start=1)]


def kept_views(path: Path) -> list[str]:
    """Uses of a heap view that are not over within one call: kept in a name, passed on, or made a subarray."""
    return [f"{path.name}:{number}: {line.strip()}" for number, line in statements(path)
            if len(HEAP.findall(line)) != len(USES.findall(line))]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_view_of_wasm_memory_is_kept(path: Path) -> None:
    """P05: memory may move at every export call and across every await."""
    assert kept_views(path) == []


@pytest.mark.parametrize("line", [
    "const heap = module.HEAPU8;", "const part = module.HEAPU8.subarray(0, 4);", "this.heap = m.HEAP32;", "use(module.HEAPF32);",
    "const view = new DataView(module.HEAPU8.buffer);", "const { HEAPU8 } = module;",
])
def test_the_lint_finds_a_kept_view(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.js"
    path.write_text(f"/* HEAPU8 */\n{line} // HEAPU8\n")
    assert len(kept_views(path)) == 1


@pytest.mark.parametrize("path", [*SOURCES, *sorted(WEB.glob("*.html")), *sorted(WEB.glob("*.css"))], ids=lambda path: path.name)
def test_nothing_is_root_absolute_or_remote(path: Path) -> None:
    """P13: the bundle works under any path; and the page asks nobody else for anything."""
    text = path.read_text()
    assert not re.search(r"""(?:from|import\(|import|src=|href=|new URL\()\s*['"]/""", text)
    assert not re.search(r"""url\(\s*['"]?/""", text)
    remote = set(re.findall(r"https?://[^\s'\"`)]+", text)) - {"http://www.w3.org/2000/svg"}
    assert {address for address in remote if not re.match(r"https?://(?:localhost|127\.0\.0\.1|,|$)", address)} <= {"https://,"}


def test_every_import_is_there_or_vendored() -> None:
    vendored = {entry["as"] for entry in json.loads((WEB / "vendor.json").read_bytes())["files"]}
    for path in SOURCES:
        for target in re.findall(r"""(?:from|import)\s+'\./([^']+)'""", path.read_text()):
            assert (WEB / target).is_file() or target in vendored, f"{path.name} imports {target}"


def test_every_vendored_module_is_closed(npm_modules: Path) -> None:
    """What a vendored file imports is vendored beside it, and each package brings its licence."""
    entries = json.loads((WEB / "vendor.json").read_bytes())["files"]
    targets = {entry["as"] for entry in entries}
    packages = {entry["package"] for entry in entries}
    assert {entry["package"] for entry in entries if entry["file"].startswith("LICENSE")} == packages
    for entry in entries:
        source = npm_modules / entry["package"] / entry["file"]
        assert source.is_file(), source
        if source.suffix in (".js", ".mjs"):
            for target in re.findall(r"""^\s*(?:import|export)[^'"\n]*from\s*['"]([^'"]+)['"]""", source.read_text(), re.MULTILINE):
                assert target.startswith("./"), f"{source} imports {target}"
                assert str(Path(entry["as"]).parent / target.removeprefix("./")) in targets


@pytest.mark.parametrize("folder", [WEB, PAGE], ids=["page", "kernel page"])
def test_types(npm_modules: Path, folder: Path) -> None:
    """`tsc --noEmit` over the JSDoc types."""
    found = subprocess.run(["node", npm_modules / "typescript/bin/tsc", "-p", folder], capture_output=True, text=True, timeout=120, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def test_the_type_check_is_alive(npm_modules: Path, tmp_path: Path) -> None:
    for source in WEB.iterdir():
        if source.is_file():
            (tmp_path / source.name).write_bytes(source.read_bytes())
    (tmp_path / "errors.js").write_text((WEB / "errors.js").read_text().replace("this.code = code;", "this.code = 7;"))
    found = subprocess.run(["node", npm_modules / "typescript/bin/tsc", "-p", tmp_path], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode != 0
    assert "errors.js" in found.stdout


def test_session_uses_what_the_module_exports() -> None:
    """P07 a, on the sources: the page's list of exports and exports.txt name the same functions."""
    listed = (WEB.parent / "runtime_cpp" / "exports.txt").read_text().splitlines()
    exported = {line for line in listed if line and not line.startswith("#")}
    text = (WEB / "session.js").read_text()
    declared = set(re.findall(r"@property \{.*\} _(\w+)\b", text))
    used = set(re.findall(r"\b_(g4_\w+|malloc|free)\(", text))
    assert declared == used
    assert used == exported
