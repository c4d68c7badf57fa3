"""Builds the WebGPU provider probe with a provider and runs its cases in headless Chromium."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Error, Page, sync_playwright

from gemma4web.chromium import RunningBrowser, bounded
from gemma4web.errors import ToolchainError
from gemma4web.process import run
from gemma4web.toolchain import Toolchain, load

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PORT: Final = CHECKOUT / "runtime_cpp/webgpu_port/webgpu_port.port.py"
SOURCES: Final = tuple(CHECKOUT / "tests/support" / name for name in ("webgpu_port_probe.cc", "webgpu_port_cases.cc"))
COMPILE_FLAGS: Final = ("-std=c++20", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror")
LINK_FLAGS: Final = (
    "-fno-exceptions", "-fno-rtti", "--no-entry", "-sMODULARIZE=1", "-sEXPORT_ES6=1", "-sFILESYSTEM=0",
    "-sALLOW_MEMORY_GROWTH=1", "-sINITIAL_MEMORY=2MB", "-sENVIRONMENT=web,worker,node",
)
# The same program as a debugger, a size measurement and the product see it (P01). Strict mode is for our own port alone:
# the real one reads a setting that strict mode hides.
MODES: Final[dict[str, tuple[str, ...]]] = {
    "debug": ("-O1", "-g", "-sASSERTIONS=2", "-sSTRICT=1"),
    "release": ("-Oz",),
    "closure": ("-Oz", "--closure", "1"),
}
CASES: Final = (
    "add", "scopes", "pipeline_error", "lost", "released", "timestamps", "growth", "mapped_write", "unmapped", "uncaptured",
    "refused", "unknown_feature", "describe",
)
_COMPILE_S: Final = 300.0
_PAGE_S: Final = 300.0
_CASE_MS: Final = 30_000
# After the last case: the loss callbacks of closed devices, and errors that nobody caught.
_SETTLE_MS: Final = 300
_INDEX: Final = (
    '<!doctype html><meta charset="utf-8"><title>provider probe</title><link rel="icon" href="data:,">'
    '<script type="module" src="provider_page.js"></script>'
)


def set_up_toolchain() -> Toolchain:
    """The tools that set-up recorded; skips the test when there are none."""
    try:
        return load(CHECKOUT / "build/toolchain.json")
    except ToolchainError as error:
        pytest.skip(f"no toolchain is set up: run `scons toolchain` ({error.args[0]})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compiler:
    """em++ with a library cache of its own, which it may add to. The system libraries in it are links to the set-up's."""

    toolchain: Toolchain
    cache: Path

    def environment(self) -> dict[str, str]:
        return {**self.toolchain.environment(), "EM_CACHE": str(self.cache), "EM_FROZEN_CACHE": "0"}

    def run(self, *words: str | Path, **env: str) -> str:
        return run([*self.toolchain.emcc, *words], env={**self.environment(), **env}, timeout_s=_COMPILE_S, what="em++")

    def libraries(self) -> list[str]:
        """Names of the port libraries in the cache."""
        return sorted(path.name for path in (self.cache / "sysroot").rglob("libwebgpu_port-*"))


def make_compiler(toolchain: Toolchain, folder: Path) -> Compiler:
    source = toolchain.em_cache / "sysroot"
    for path in source.rglob("*"):
        target = folder / "sysroot" / path.relative_to(source)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not path.name.startswith(("libwebgpu_port", "libemdawnwebgpu")):
            target.symlink_to(path)
    for path in toolchain.em_cache.iterdir():
        if path.is_file() and path.name != "cache.lock":
            shutil.copy2(path, folder / path.name)
    return Compiler(toolchain=toolchain, cache=folder)


def own_port(toolchain: Toolchain, port: Path = PORT) -> str:
    return f"--use-port={port}:include={toolchain.webgpu_include}"


def providers(toolchain: Toolchain) -> dict[str, str]:
    """Name to option: our own port, and the real emdawnwebgpu where it is given or set up."""
    found = {"webgpu_port": own_port(toolchain)}
    package = os.environ.get("EMDAWNWEBGPU_PKG")
    if package:
        found["emdawnwebgpu"] = f"--use-port={Path(package) / 'emdawnwebgpu.port.py'}:cpp_bindings=false"
    elif toolchain.provider.kind != "webgpu_port":
        found["emdawnwebgpu"] = f"--use-port={toolchain.provider.port}"
    return found


def build_probe(compiler: Compiler, port: str, mode: str, folder: Path, extra: Sequence[str] = ()) -> Path:
    """Compiles and links the probe to ``folder/<mode>.mjs``."""
    objects: list[Path] = []
    for source in SOURCES:
        target = folder / f"{mode}-{source.stem}.o"
        compiler.run(*COMPILE_FLAGS, MODES[mode][0], port, "-c", source, "-o", target)
        objects.append(target)
    methods = "ccall,webgpuPort" if mode == "debug" and "webgpu_port" in port else "ccall"
    module = folder / f"{mode}.mjs"
    compiler.run(*LINK_FLAGS, *MODES[mode], f"-sEXPORTED_RUNTIME_METHODS={methods}", port, *extra, *objects, "-o", module)
    return module


def write_page(folder: Path) -> None:
    shutil.copy(CHECKOUT / "tests/support/provider_page.js", folder / "provider_page.js")
    (folder / "index.html").write_text(_INDEX, encoding="utf-8")


def run_case_and_crash(running: RunningBrowser, url: str, module: str) -> dict[str, Any]:
    """The answer of the case ``crash``: the browser's GPU process is made to crash while it waits."""
    job = {"module": f"./{module}", "cases": ["crash"], "limitMs": _CASE_MS, "settleMs": _SETTLE_MS}

    def work() -> dict[str, Any]:
        with sync_playwright() as driver:
            browser = driver.chromium.connect_over_cdp(running.endpoint)
            page = browser.new_page()
            page.goto(url)
            page.wait_for_function("window.providerPage")
            page.evaluate("(job) => { window.crashed = providerPage.run(job); }", job)
            page.wait_for_function("providerPage.devices > 0")
            # The command kills the process that would answer it, so nothing waits for an answer.
            with contextlib.suppress(Error):
                browser.new_browser_cdp_session().send("Browser.crashGpuProcess")
            answers: dict[str, Any] = page.evaluate("window.crashed")
        return answers

    return bounded(work, deadline_s=_PAGE_S, what="the provider probe", kill=running.kill)


def run_cases(running: RunningBrowser, url: str, module: str, cases: Sequence[str], *, worker: bool = False,
              fake: str | None = None, call: str | None = None, limit_ms: int = _CASE_MS) -> dict[str, Any]:
    """Answers of the cases, with the key ``page errors`` for what the page threw by itself."""
    job = {"module": f"./{module}", "cases": list(cases), "limitMs": limit_ms, "settleMs": _SETTLE_MS, "fake": fake}
    function = call or ("runInWorker" if worker else "run")

    def work() -> dict[str, Any]:
        errors: list[str] = []
        with sync_playwright() as driver:
            page: Page = driver.chromium.connect_over_cdp(running.endpoint).new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("crash", lambda _: errors.append("the page crashed"))
            page.goto(url)
            page.wait_for_function("window.providerPage")
            answers: dict[str, Any] = page.evaluate("([name, job]) => providerPage[name](job)", [function, job])
            page.close()
        return {**answers, "page errors": errors}

    return bounded(work, deadline_s=_PAGE_S, what="the provider probe", kill=lambda: None)
