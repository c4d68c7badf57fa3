"""npm and PyPI: only pinned content gets in, and a lock names no host (TOOLCHAIN)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from fake_tools import Lines, fake_npm, says, write_program

from gemma4web.errors import FetchError, ToolchainError
from gemma4web.pins import NpmPackage, load_pins
from gemma4web.toolchain import registries
from gemma4web.toolchain.registries import (
    bench_modules,
    check_npm_package,
    closure_compiler,
    find_node,
    npm_documents,
    npm_modules,
    npm_platform,
    shipped_versions,
)

PACKAGE = NpmPackage(name="@scope/pkg", version="1.2.3", integrity="sha512-x")


def test_the_lock_has_exact_versions_and_hashes_and_no_host() -> None:
    manifest, lock = npm_documents([PACKAGE])
    assert manifest["dependencies"] == {"@scope/pkg": "1.2.3"}
    assert lock["packages"]["node_modules/@scope/pkg"] == {"version": "1.2.3", "integrity": "sha512-x"}
    assert "://" not in json.dumps([manifest, lock])


def test_only_this_machines_packages_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_npm(tmp_path / 'npm').parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    folder = npm_modules(load_pins(), tmp_path / "cache", Lines())
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    other = "linux-arm64" if npm_platform() == "linux-x64" else "linux-x64"
    for name, package in ((name, package) for name, group in load_pins().npm.items() for package in group):
        wanted = name != "bench" and package.platform != other
        assert (f"node_modules/{package.name}" in lock["packages"]) is wanted, package.name
    closure = closure_compiler(folder)
    assert closure is not None and os.access(closure, os.X_OK)


def test_the_peer_of_kernel_measurements_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake_npm(tmp_path / 'npm').parent}{os.pathsep}/usr/bin{os.pathsep}/bin")
    folder = bench_modules(load_pins(), tmp_path / "cache", Lines())
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    assert set(lock["packages"]) == {"", "node_modules/onnxruntime-web"}


def test_a_failing_npm_leaves_nothing_and_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "bin" / "npm", "#!/bin/sh\necho 'EINTEGRITY sha512 mismatch' >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    with pytest.raises(FetchError, match="EINTEGRITY"):
        npm_modules(load_pins(), tmp_path / "cache", Lines())
    assert [path.name for path in (tmp_path / "cache").iterdir() if not path.name.endswith(".lock")] == []


def test_a_missing_npm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="no `npm` on PATH"):
        npm_modules(load_pins(), tmp_path / "cache", Lines())


def test_an_installed_package_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no @scope/pkg"):
        check_npm_package(tmp_path, PACKAGE)
    path = tmp_path / "@scope/pkg/package.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"version": "1.2.4"}', encoding="utf-8")
    with pytest.raises(FetchError, match="1.2.4 .*wanted 1.2.3"):
        check_npm_package(tmp_path, PACKAGE)


def test_what_only_tests_use_is_not_part_of_a_bundles_identity() -> None:
    names = shipped_versions(load_pins())
    assert {"@huggingface/tokenizers", "@noble/hashes", "uplot", "acorn"} <= set(names)
    assert not {"esbuild", "typescript", "@wllama/wllama", "onnxruntime-web"} & set(names)


@pytest.mark.parametrize(("answer", "words"), [("v16.20.0", "v16.20.0, wanted 18.3.0"), ("nonsense", "not a version")])
def test_an_unfit_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, words: str) -> None:
    says(tmp_path / "node", answer)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")
    with pytest.raises(ToolchainError, match=words):
        find_node((18, 3, 0))


def test_a_missing_node_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match="no `node` on PATH") as caught:
        find_node((18, 3, 0))
    assert "18.3.0" in caught.value.advice


def test_an_unknown_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries.platform, "machine", lambda: "riscv64")
    with pytest.raises(ToolchainError, match="riscv64"):
        npm_platform()
