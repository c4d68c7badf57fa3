"""What tests of several folders share: one headless Chromium for a whole run, and what runs shaders, on a page and without."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest
from tests.support.chrome import Chrome
from tests.support.gpu_page import GpuPage, set_up_chromium
from tests.support.native_gpu import NativeGpu, lavapipe

from gemma4web.chromium import Chromium

SEED = "GEMMA4WEB_SEED"


def pytest_configure() -> None:
    """One seed of random inputs for all processes of a run."""
    os.environ.setdefault(SEED, str(secrets.randbits(32)))


def pytest_report_header() -> str:
    return f"{SEED}={os.environ[SEED]}"


@pytest.fixture(scope="session")
def chromium() -> Chromium:
    """BROWSER= when it is given, else the one that set-up recorded."""
    return set_up_chromium()


@pytest.fixture(scope="session")
def chrome(chromium: Chromium) -> Iterator[Chrome]:
    """On the software adapter, or with GEMMA4WEB_GPU=1 on the machine's GPU."""
    chrome = Chrome(chromium, gpu=os.environ.get("GEMMA4WEB_GPU") == "1")
    yield chrome
    chrome.close()


@pytest.fixture(scope="session")
def gpu_page(chrome: Chrome) -> Iterator[GpuPage]:
    page = GpuPage(chrome)
    yield page
    page.close()


@pytest.fixture(scope="session")
def native_gpu() -> Iterator[NativeGpu]:
    """Mesa's lavapipe, fetched when it is first asked for."""
    device = NativeGpu(lavapipe())
    yield device
    device.close()
