"""The process that runs shaders without a browser: what it refuses, and what a crash of its driver is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cases_index
import cases_linear_routes
import pytest
from kernel_case import build, dispatch, kernels, run_case
from tests.support.gpu_page import GpuPage
from tests.support.native_gpu import NativeGpu

from gemma4web.errors import BrowserError

CASE_MODULES = (cases_index, cases_linear_routes)

# Answers a description, then what the request's text asks for: a signal, an exit, or the text itself.
_WORKER = """\
import os, pickle, sys, time
def send(found):
    pickle.dump((True, found), sys.stdout.buffer)
    sys.stdout.buffer.flush()
send({"features": []})
while True:
    try:
        _, text, *_ = pickle.load(sys.stdin.buffer)
    except EOFError:
        sys.exit()
    if text == "signal":
        print("driver: bad page", file=sys.stderr, flush=True)
        os.kill(os.getpid(), 11)
    if text == "exit":
        sys.exit(3)
    if text == "hang":
        time.sleep(60)
    send([text.encode()])
"""


@pytest.fixture
def device(tmp_path: Path) -> Iterator[NativeGpu]:
    worker = tmp_path / "worker.py"
    worker.write_text(_WORKER, encoding="utf-8")
    made = NativeGpu({}, worker)
    yield made
    made.close()


@pytest.mark.parametrize(("text", "words"), [
    ("signal", "was ended by SIGSEGV; its last words: driver: bad page"), ("exit", "ended with exit code 3"),
])
def test_a_crash_fails_one_request_and_says_why(device: NativeGpu, text: str, words: str) -> None:
    assert device.run("before", [], (1, 1, 1)) == [b"before"]
    with pytest.raises(BrowserError, match=words):
        device.run(text, [], (1, 1, 1))
    assert device.run("after", [], (1, 1, 1)) == [b"after"]


def test_a_shader_that_never_ends_is_ended(device: NativeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.native_gpu._RUN_S", 0.5)
    with pytest.raises(BrowserError, match=r"gave no answer in 0\.5 s"):
        device.run("hang", [], (1, 1, 1))


def test_lavapipe_offers_f16(native_gpu: NativeGpu) -> None:
    """Without it no kernel with f16 is tested where there is no GPU."""
    assert "shader-f16" in native_gpu.adapter["features"]
    assert "llvmpipe" in native_gpu.adapter["vendor"]


def test_the_harness_sees_what_it_must(native_gpu: NativeGpu) -> None:
    """Unwritten elements, writes behind the end, and shaders that naga refuses do not pass; afterwards it goes on."""
    made = build("linear_q4_steel_f16: 17 x 64 by 129")
    text = kernels()[made.kernel].text
    assert any("elements are wrong" in problem for problem in
               run_case(native_gpu, made, text=text.replace("] = value;", " / 2u] = value;")))
    assert any("behind the output" in problem for problem in
               run_case(native_gpu, made, text=text.replace("column + c < params.n", "true")))
    with pytest.raises(BrowserError, match="no definition in scope"):
        run_case(native_gpu, made, text=text.replace("] = value;", "] = valve;"))
    assert run_case(native_gpu, made) == []


@pytest.mark.browser
@pytest.mark.parametrize("name", ["topk: 32 of 2048", "topk: all of a prime count"])
def test_lavapipe_and_chromium_agree(gpu_page: GpuPage, native_gpu: NativeGpu, name: str) -> None:
    """A kernel that only compares: from the same buffers both give the same bits."""
    made = build(name)
    (page, problems), (native, more) = dispatch(gpu_page, made), dispatch(native_gpu, made)
    assert not problems + more
    assert {key: value.tobytes() for key, value in page.items()} == {key: value.tobytes() for key, value in native.items()}
