"""Every WebGPU provider answers one compute program alike, in a window and in a worker, from debug to Closure builds.

G9: the same sources over <webgpu/webgpu.h> with each provider. P01: the same cases on debug, release and Closure builds.
P05: memory growth between copies. P14: browsers that lack a part of WebGPU.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import brotli
import pytest
from provider_probe import (
    CASES,
    MODES,
    Compiler,
    build_probe,
    make_compiler,
    providers,
    run_case_and_crash,
    run_cases,
    set_up_toolchain,
    write_page,
)

from gemma4web.chromium import Chromium, RunningBrowser, launch_flags, launched
from gemma4web.errors import ToolchainError
from gemma4web.serve import serving

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

BUILDS: Final = tuple(f"webgpu_port-{mode}" for mode in MODES) + ("emdawnwebgpu-closure",)
PLACES: Final = ("window", "worker")

Answers = dict[str, Any]
Run = Callable[..., Answers]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return make_compiler(set_up_toolchain(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def browser(chromium: Chromium) -> Iterator[RunningBrowser]:
    with launched(chromium, launch_flags(gpu=os.environ.get("GEMMA4WEB_GPU") == "1")) as running:
        yield running


@pytest.fixture(scope="module")
def built(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The module of a build; each is tried once, when first asked for."""
    folder = tmp_path_factory.mktemp("probe")
    write_page(folder)
    made: dict[str, Path | ToolchainError] = {}

    def build(name: str) -> Path:
        provider, mode = name.split("-")
        port = providers(compiler.toolchain).get(provider)
        if port is None:
            pytest.skip("no emdawnwebgpu package: set EMDAWNWEBGPU_PKG=")
        if name not in made:
            (folder / provider).mkdir(exist_ok=True)
            try:
                made[name] = build_probe(compiler, port, mode, folder / provider)
            except ToolchainError as error:
                made[name] = error
        module = made[name]
        if isinstance(module, ToolchainError):
            raise module
        return module

    return build


@pytest.fixture(scope="module")
def run_in_page(browser: RunningBrowser, built: Callable[[str], Path]) -> Iterator[Run]:
    root = built("webgpu_port-debug").parents[1]
    with serving(root) as server:
        def run(build: str, cases: tuple[str, ...], **options: Any) -> Answers:
            module = built(build).relative_to(root).as_posix()
            return run_cases(browser, server.url, module, cases, **options)
        yield run


@pytest.fixture(scope="module")
def answers(run_in_page: Run) -> Callable[[str, str], Answers]:
    """All cases of one build in one place, run once."""
    known: dict[tuple[str, str], Answers] = {}

    def get(build: str, place: str) -> Answers:
        if (build, place) not in known:
            known[build, place] = run_in_page(build, CASES, worker=place == "worker")
        return known[build, place]

    return get


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("build", BUILDS)
def test_nothing_escapes_to_the_page(answers: Callable[[str, str], Answers], build: str, place: str) -> None:
    assert answers(build, place)["page errors"] == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("build", BUILDS)
def test_case(answers: Callable[[str, str], Answers], build: str, place: str, case: str) -> None:
    answer = answers(build, place)[case]
    assert answer["passed"], answer["detail"]


@pytest.mark.parametrize("build", BUILDS)
def test_adapter_limits_and_features_equal_the_browsers(answers: Callable[[str, str], Answers], run_in_page: Run,
                                                        build: str) -> None:
    """Every limit stands in its own field, for the adapter and for a device that asked for some."""
    seen = json.loads(answers(build, "window")["describe"]["detail"])
    browser = run_in_page(build, (), call="describe")
    for name in ("vendor", "architecture", "cpu", "subgroupMinSize"):
        assert seen.pop(name) == browser[name], name
    for name in ("timestamp-query", "shader-f16", "subgroups"):
        assert seen.pop(name) == (name in browser["features"]), name
    assert seen.pop("packed_4x8_integer_dot_product") == browser["packedDot"]
    assert len(seen) > 10
    assert {name: browser["limits"][name] for name in seen} == seen


@pytest.mark.parametrize(("fake", "detail"), [
    ("no gpu", "unavailable: WebGPU is missing (no navigator.gpu)"),
    ("no adapter", "unavailable: the browser offers WebGPU but no adapter"),
    ("adapter error", "error: the adapter request is broken"),
    ("device error", "no device: out of devices"),
])
@pytest.mark.parametrize("place", PLACES)
def test_each_lack_of_webgpu_has_its_own_message(run_in_page: Run, place: str, fake: str, detail: str) -> None:
    """P14: gpu undefined, adapter null, adapter request rejected, device request throws."""
    found = run_in_page("webgpu_port-closure", ("add",), worker=place == "worker", fake=fake)
    assert not found["add"]["passed"]
    assert found["add"]["detail"].startswith(detail)
    assert found["page errors"] == []


def test_a_refused_write_is_an_error_of_the_device(run_in_page: Run) -> None:
    """Three bytes cannot be written to a buffer; the browser throws, the C API reports."""
    for build in ("webgpu_port-debug", "webgpu_port-closure"):
        answer = run_in_page(build, ("write_refused",))["write_refused"]
        assert answer["passed"], answer


@pytest.mark.parametrize(("case", "words"), [
    ("wrong_mode", "only callbacks of mode WGPUCallbackMode_AllowSpontaneous are covered"),
    ("released_handle", "does not exist or was released"),
])
def test_misuse_stops_the_module_with_its_reason(run_in_page: Run, case: str, words: str) -> None:
    found = run_in_page("webgpu_port-closure", (case,), limit_ms=3000)
    assert not found[case]["passed"]
    assert any(words in error for error in found["page errors"]), found


@pytest.mark.parametrize("build", ["webgpu_port-closure", "emdawnwebgpu-closure"])
def test_a_crash_of_the_gpu_process_is_a_loss_with_its_reason(built: Callable[[str], Path], chromium: Chromium,
                                                             build: str) -> None:
    """P23: what was waited for settles, and the loss is told apart from a destroyed device."""
    module = built(build)
    with (launched(chromium, launch_flags(gpu=os.environ.get("GEMMA4WEB_GPU") == "1")) as running,
          serving(module.parents[1]) as server):
        answer = run_case_and_crash(running, server.url, module.relative_to(module.parents[1]).as_posix())["crash"]
    assert answer["passed"], answer["detail"]


def test_every_handle_is_given_back(run_in_page: Run) -> None:
    """P25: after all cases the object table is empty, and every device was destroyed by its last release."""
    found = run_in_page("webgpu_port-debug", CASES, fake="counted")
    devices = len(CASES) - len(("refused", "unknown_feature"))
    assert found["destroyed devices"] == devices + 1, "one more: the case `lost` destroys its own"
    assert found["entries"] == 0


def test_the_port_is_smaller_than_the_real_one(built: Callable[[str], Path], record_property: Callable[[str, object], None],
                                               capsys: pytest.CaptureFixture[str]) -> None:
    sizes: dict[str, dict[str, int]] = {}
    for build in BUILDS:
        if not build.endswith("closure"):
            continue
        module = built(build)
        pair = [module.read_bytes(), module.with_suffix(".wasm").read_bytes()]
        sizes[build] = {
            "js": len(pair[0]), "wasm": len(pair[1]), "gzip": sum(len(zlib.compress(part, 9)) for part in pair),
            "brotli": sum(len(brotli.compress(part)) for part in pair),
        }
    record_property("sizes", json.dumps(sizes))
    with capsys.disabled():
        print(f"\nprobe sizes in bytes: {json.dumps(sizes)}")
    assert sizes["webgpu_port-closure"]["brotli"] < sizes["emdawnwebgpu-closure"]["brotli"]
