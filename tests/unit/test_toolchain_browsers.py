"""Finding a Chromium that starts (P53): the named one must, others are passed over with a line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fake_tools import Lines, fake_browser, says

from gemma4web.errors import ToolchainError
from gemma4web.pins import Pins, load_pins
from gemma4web.process import run
from gemma4web.toolchain import browsers
from gemma4web.toolchain.browsers import find_browser, try_browser
from gemma4web.toolchain.packages import WRAPPER, wrapper_text
from gemma4web.toolchain.progress import SetUpProgress


@pytest.fixture(autouse=True)
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser is installed; the Debian packages hold a stand-in."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/nowhere")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    packed = fake_browser(tmp_path / "packages" / WRAPPER, "140.0.0.1").parent

    def unpack(pins: Pins, cache: Path, progress: SetUpProgress) -> tuple[Path, dict[str, Any]]:
        return packed, {}

    monkeypatch.setattr(browsers, "chromium_prefix", unpack)


def find(named: Path | None = None, progress: Lines | None = None) -> str:
    return find_browser(named, load_pins(), Path("/cache"), progress or Lines()).version


def test_the_order_is_named_playwright_path_packages(tmp_path: Path) -> None:
    assert find() == "140.0.0.1"
    fake_browser(tmp_path / "bin" / "chromium", "150.0.0.1")
    assert find() == "150.0.0.1"
    fake_browser(tmp_path / "playwright" / "chromium-1200" / "chrome-linux" / "chrome", "151.0.0.1")
    assert find() == "151.0.0.1"
    assert find(fake_browser(tmp_path / "mine ä" / "chrome", "152.0.0.1")) == "152.0.0.1"


@pytest.mark.parametrize(("version", "page", "words"), [
    ("99.0.0.1", "started", "Chromium 99.0.0.1, wanted 130"), ("150.0.0.1", "", "shows no page"),
])
def test_an_unfit_browser_is_refused_when_named_and_passed_over_when_found(
    tmp_path: Path, version: str, page: str, words: str,
) -> None:
    program = fake_browser(tmp_path / "bin" / "chromium", version, page=page)
    with pytest.raises(ToolchainError, match=words):
        find(program)
    progress = Lines()
    assert find(progress=progress) == "140.0.0.1"
    assert len(progress.lines) == 1 and words in progress.lines[0]


def test_a_program_that_is_no_browser_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="wanted a Chromium"):
        find(says(tmp_path / "program", "hello"))
    with pytest.raises(ToolchainError, match="exit code 7"):
        find(says(tmp_path / "failing", "cannot open shared object", code=7))
    with pytest.raises(ToolchainError, match="no such program"):
        find(tmp_path / "absent")


def test_a_named_browser_may_be_a_name_on_path(tmp_path: Path) -> None:
    fake_browser(tmp_path / "bin" / "my-chrome", "155.0.0.1")
    assert find(Path("my-chrome")) == "155.0.0.1"


def test_versions_of_the_other_makers_are_understood(tmp_path: Path) -> None:
    program = says(tmp_path / "chrome", "Google Chrome 141.0.7390.54 unknown\nstarted")
    assert try_browser(program, (130,), origin="test").version == "141.0.7390.54"


def test_the_wrapper_works_wherever_its_folder_stands(tmp_path: Path) -> None:
    root = tmp_path / "mit ä und Leerzeichen"
    chromium = root / "usr/lib/chromium"
    chromium.mkdir(parents=True)
    says(chromium / "chromium", "")
    (chromium / "chromium").write_text('#!/bin/sh\nprintf "%s|%s|%s" "$LD_LIBRARY_PATH" "$FONTCONFIG_FILE" "$*"\n',
                                       encoding="utf-8")
    wrapper = root / WRAPPER
    wrapper.write_text(wrapper_text(root, [chromium, root / "usr/lib/x86_64-linux-gnu"]), encoding="utf-8")
    wrapper.chmod(0o755)
    moved = root.rename(tmp_path / "moved")
    libraries, fonts, words = run([moved / WRAPPER, "--a b", "c"], env={"PATH": "/usr/bin:/bin"}).split("|")
    assert libraries == f"{moved}/usr/lib/chromium:{moved}/usr/lib/x86_64-linux-gnu"
    assert (fonts, words) == (f"{moved}/fonts.conf", "--a b c")
