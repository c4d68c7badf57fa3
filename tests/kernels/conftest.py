"""Where a kernel runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kernel_case import kernels
from tests.support.chrome import Chrome
from tests.support.gpu_page import GpuDevice, GpuPage


@pytest.fixture
def device_of(gpu_page: GpuPage, request: pytest.FixtureRequest) -> Callable[[str], GpuDevice]:
    """By a kernel's name: the page; for a kernel with f16 where Chromium's adapter has none of it, lavapipe."""

    def device(kernel: str) -> GpuDevice:
        if "shader-f16" in kernels()[kernel].features and "shader-f16" not in gpu_page.adapter["features"]:
            found: GpuDevice = request.getfixturevalue("native_gpu")
            return found
        return gpu_page

    return device


@pytest.fixture(scope="session")
def large_page(chrome: Chrome) -> Iterator[GpuPage]:
    """Its device binds what the adapter can, for weights of a real model."""
    page = GpuPage(chrome, large=True)
    yield page
    page.close()
