"""Rules of the tree that no single module can break unnoticed. Contract codes: V10, V11, V12, STYLE."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_project import CHECKOUT

from gemma4web.variants import VARIANTS

PACKAGE = CHECKOUT / "site_scons/gemma4web"
ORDER = ("errors", "files", "process", "variants", "pins", "toolchain", "kernels", "program", "export", "oracle",
         "manifest", "receipts", "compile", "closure", "link", "verification", "staging", "serve", "chromium", "record", "page_result", "summary", "report",
         "launching", "kernel_bench", "browser", "run_command", "preflight", "bench", "__main__", "__init__")
"""A module imports only what stands before it; a package counts as one."""

LAYERS = ("base", "gpu", "ops", "program", "decode", "api")


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "generated" not in path.parts and "__pycache__" not in path.parts:
            yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, by its full name; `from package import name` gives package.name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_import_order() -> None:
    """Parts import downwards only, and none is missing from the order."""
    assert {part for part, _ in modules()} <= set(ORDER)
    wrong = [f"{path.relative_to(PACKAGE)} imports {name}" for part, path in modules() for name in imported(path)
             if name.startswith("gemma4web.") and (other := name.split(".")[1]) in ORDER
             and ORDER.index(other) > ORDER.index(part)]
    assert wrong == []


def test_package_never_imports_scons() -> None:
    assert [path for _, path in modules() if any(name.split(".")[0] == "SCons" for name in imported(path))] == []


def test_layers_of_the_runtime() -> None:
    """Each C++ layer includes only itself and those before it; raw WebGPU stays in gpu/."""
    wrong = []
    for path in sorted((CHECKOUT / "runtime_cpp/src").rglob("*.[ch]*")):
        layer = path.relative_to(CHECKOUT / "runtime_cpp/src").parts[0]
        text = path.read_text(encoding="utf-8")
        for include in re.findall(r'^#include "([^"/]+)/', text, flags=re.MULTILINE):
            if LAYERS.index(include) > LAYERS.index(layer):
                wrong.append(f"{path.name} of {layer} includes {include}")
        if layer != "gpu" and "<webgpu/webgpu.h>" in text:
            wrong.append(f"{path.name} of {layer} includes webgpu.h")
        if layer != "api" and 'extern "C"' in text:
            wrong.append(f'{path.name} of {layer} has extern "C"')
    assert wrong == []


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_file_sizes() -> None:
    """SConstruct and site tools <= 120 lines, any other source <= 600."""
    limits = {path: 120 for path in (CHECKOUT / "site_scons/site_tools").glob("*.py")} | {CHECKOUT / "SConstruct": 120}
    for folder in ("site_scons/gemma4web", "runtime_cpp", "web", "tests"):
        for pattern in ("*.py", "*.cc", "*.h", "*.js", "*.wgsl"):
            limits |= {path: 600 for path in (CHECKOUT / folder).rglob(pattern)
                       if "generated" not in path.parts and "__pycache__" not in path.parts}
    assert [f"{path.relative_to(CHECKOUT)}: {lines(path)} lines, at most {limit}" for path, limit in limits.items()
            if lines(path) > limit] == []


def test_function_sizes() -> None:
    long = [f"{path.relative_to(CHECKOUT)}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
            for _, path in modules() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
            and node.end_lineno - node.lineno >= 60]
    assert long == []


def test_names() -> None:
    """No drawer for everything."""
    bad = {"utils", "helpers", "common", "misc", "new", "util", "helper"}
    folders = ("site_scons", "runtime_cpp", "web", "tests")
    assert [path for folder in folders for path in (CHECKOUT / folder).rglob("*")
            if path.stem.lower() in bad and "__pycache__" not in path.parts] == []


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=CHECKOUT, capture_output=True, text=True, timeout=30, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [CHECKOUT / name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file()]


def test_repository_stays_small() -> None:
    """All tracked files together stay below 30 MB, and nothing that was built is among them."""
    files = tracked()
    assert sum(path.stat().st_size for path in files) < 30_000_000
    assert [path for path in files if path.suffix in (".o", ".a", ".wasm", ".so", ".pyc")] == []
    assert [path for path in files if path.relative_to(CHECKOUT).parts[0] == "build"] == []


def test_no_internal_path_or_host() -> None:
    """V11: nothing of the place where this was written is in it, and no registry's host name."""
    pattern = re.compile(rb"/wo" rb"rk/main|/tmp/sp" rb"ec|regis" rb"try\.npmjs\.org|files\.python" rb"hosted\.org")
    texts = (".py", ".cc", ".h", ".js", ".md", ".json", ".yaml", ".wgsl", ".html", ".toml", ".txt", "")
    assert [str(path.relative_to(CHECKOUT)) for path in tracked() if path.suffix in texts
            and pattern.search(path.read_bytes())] == []


def test_readme_has_the_matrix() -> None:
    """V12: the README's table of variants is the matrix."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    for variant in VARIANTS:
        assert f"| `{variant.name}` | `{variant.factory}` | `{variant.stem}.js`, `{variant.stem}.wasm` |" in readme


def test_readme_commands_are_those_of_ci() -> None:
    readme, ci = ((CHECKOUT / name).read_text(encoding="utf-8") for name in ("README.md", ".ci/run"))
    assert "python3 -m venv .venv && .venv/bin/pip install -e '.[test]' && .venv/bin/scons run" in readme
    assert ".venv/bin/scons test" in readme
    assert ".venv/bin/scons test" in ci


def test_licence_is_named_everywhere() -> None:
    text = (CHECKOUT / "LICENSE").read_text(encoding="utf-8")
    assert text.startswith("MIT License")
    assert "The gemma4web authors" in text
    assert "MIT" in (CHECKOUT / "README.md").read_text(encoding="utf-8")
