"""What the browser tests share: a fresh page each, a stand-in bundle, and the bundle that the build staged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.chrome import Chrome, Remote
from tests.support.fake_bundle import make_fake_bundle

from gemma4web.files import load_json
from gemma4web.serve import BundleServer, serving

REPOSITORY: Final = Path(__file__).resolve().parents[2]
BUILD: Final = REPOSITORY / "build"


@pytest.fixture
def context(chrome: Chrome) -> Iterator[Remote]:
    context = chrome.context()
    yield context
    context.close()


@pytest.fixture
def page(context: Remote) -> Any:
    return context.new_page()


@pytest.fixture(scope="session")
def npm_modules() -> Path:
    if not (BUILD / "toolchain.json").is_file():
        pytest.skip("no toolchain is set up: run `scons toolchain`")
    return Path(load_json(BUILD / "toolchain.json", schema=1)["npm_modules"])


@pytest.fixture(scope="session")
def fake_bundle(npm_modules: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_fake_bundle(tmp_path_factory.mktemp("fake") / "bundle", npm_modules)


@pytest.fixture
def fake_site(fake_bundle: Path) -> Iterator[BundleServer]:
    with serving(fake_bundle) as server:
        yield server


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The bundle that the build staged, or the one that BUNDLE= names."""
    bundle = Path(os.environ.get("BUNDLE", BUILD / "bundle"))
    if not (bundle / "manifest.json").is_file():
        pytest.skip("no bundle is staged: run `scons bundle`")
    return bundle


@pytest.fixture
def site(bundle: Path) -> Iterator[BundleServer]:
    with serving(bundle) as server:
        yield server


@pytest.fixture(scope="session")
def tokenizer() -> Path:
    """A BPE tokenizer of 4096 pieces in Gemma's shape: ids 0 to 493 are Gemma 4's own."""
    return REPOSITORY / "fixtures" / "tokenizer" / "tok4096.json"
