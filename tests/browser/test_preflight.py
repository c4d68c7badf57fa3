"""The preflight: a verdict within seconds on whether this Chromium computes, and on what (P53)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gemma4web.chromium import Chromium
from gemma4web.errors import BrowserError
from gemma4web.launching import RunOptions
from gemma4web.preflight import main, preflight

pytestmark = pytest.mark.browser


def test_the_software_adapter_computes_and_is_labelled(chromium: Chromium, capsys: pytest.CaptureFixture[str]) -> None:
    begin = time.monotonic()
    assert main(["--browser", str(chromium.executable)]) == 0
    assert time.monotonic() - begin < 40
    shown = " ".join(capsys.readouterr().out.split())
    for words in ("google swiftshader", "timestamp-query", "maxBufferSize", "--use-webgpu-adapter=swiftshader",
                  "1000 of 1000 values right (software adapter: times are no GPU results)"):
        assert words in shown


def test_a_browser_without_webgpu_is_said_to_be_one(chromium: Chromium) -> None:
    with pytest.raises(BrowserError, match=r"navigator\.gpu is missing|found no adapter"):
        preflight(RunOptions(chromium=chromium, browser_flags=("--disable-gpu", "--disable-software-rasterizer")))


def test_a_gpu_that_is_asked_for_and_not_there(chromium: Chromium) -> None:
    """Never a software adapter in its place; on a machine with a GPU the answer is that GPU."""
    try:
        found = preflight(RunOptions(chromium=chromium, gpu=True))
    except BrowserError as error:
        assert "adapter" in str(error)
    else:
        assert not found.software


def test_a_wrong_result_is_no_verdict_of_success(chromium: Chromium, monkeypatch: pytest.MonkeyPatch) -> None:
    import gemma4web.preflight as module
    monkeypatch.setattr(module, "_PROBE", module._PROBE.replace("data[id.x] * data[id.x] + id.x", "data[id.x] + id.x"))
    with pytest.raises(BrowserError, match=r"swiftshader computes \d+ of 1000 values wrongly"):
        preflight(RunOptions(chromium=chromium))


def test_something_that_is_no_browser(tmp_path: Path) -> None:
    fake = tmp_path / "chromium"
    fake.write_text("#!/bin/sh\necho cannot find libvulkan >&2\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(BrowserError, match="libvulkan"):
        preflight(RunOptions(chromium=Chromium(executable=fake)))
