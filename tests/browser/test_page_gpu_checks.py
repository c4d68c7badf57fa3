"""What the page says where WebGPU is missing or refuses, before it downloads anything of the model (P14, P02)."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.chrome import Remote

from gemma4web.serve import BundleServer

pytestmark = pytest.mark.browser

NO_GPU = "Object.defineProperty(Navigator.prototype, 'gpu', { get: () => undefined });"
INSECURE = NO_GPU + "Object.defineProperty(globalThis, 'isSecureContext', { value: false });"
NO_ADAPTER = "GPU.prototype.requestAdapter = async () => null;"
ADAPTER_THROWS = "GPU.prototype.requestAdapter = async () => { throw new Error('driver is gone'); };"
NO_DEVICE = "GPUAdapter.prototype.requestDevice = async () => { throw new DOMException('limit too large', 'OperationError'); };"


@pytest.mark.parametrize(("script", "message", "advice"), [
    pytest.param(NO_GPU, "WebGPU is not available in this browser", "use a current Chrome, Edge, Firefox or Safari", id="no-gpu"),
    pytest.param(INSECURE, "is not a secure context", "open this page over https://, or from http://localhost", id="insecure"),
    pytest.param(NO_ADAPTER, "offers no GPU adapter on this machine", "turn on hardware acceleration", id="no-adapter"),
    pytest.param(ADAPTER_THROWS, "driver is gone", "restart the browser", id="adapter-throws"),
    pytest.param(NO_DEVICE, "refused to open a device: OperationError: limit too large", "close other pages", id="no-device"),
])
def test_each_lack_has_its_own_message_and_remedy(context: Remote, fake_site: BundleServer, script: str, message: str,
                                                  advice: str) -> None:
    context.add_init_script(script)
    page = context.new_page()
    page.goto(fake_site.url)
    page.wait_for_selector("#error:not([hidden])")
    text = page.inner_text("#error")
    assert message in text
    assert f"What to do: {advice}" in text
    assert page.is_disabled("#run")
    assert not [line for line in fake_site.requests if "runtime/" in line or "model/" in line]


def test_the_worker_checks_for_itself(context: Remote, fake_site: BundleServer) -> None:
    """Some browsers have WebGPU in pages and not in workers; init scripts do not reach workers, so its code is changed."""
    context.route("**/gpu.js", lambda route: route.fulfill(
        body=route.fetch().text().replace("export async function probeGpu(", "if (typeof document === 'undefined') { "
                                          "Object.defineProperty(WorkerNavigator.prototype, 'gpu', { get: () => undefined }); }\n"
                                          "export async function probeGpu("), content_type="text/javascript"))
    page = context.new_page()
    page.goto(fake_site.url)
    page.click("#run:not([disabled])")
    page.wait_for_selector("#error:not([hidden])")
    assert "WebGPU is not available in web workers" in page.inner_text("#error")
    assert not [line for line in fake_site.requests if "runtime/" in line or "model/" in line]


def test_without_jspi_everything_works(context: Remote, fake_site: BundleServer) -> None:
    """P02: the modules suspend nothing, so a browser without `WebAssembly.Suspending` is as good."""
    context.add_init_script("delete WebAssembly.Suspending; delete WebAssembly.promising;")
    page = context.new_page()
    page.goto(fake_site.url)
    page.click("#run:not([disabled])")
    page.wait_for_function("() => document.querySelector('#status').textContent.startsWith('Done')")


def test_the_adapter_line_labels_software(page: Any, fake_site: BundleServer) -> None:
    """B6, on the page."""
    page.goto(fake_site.url)
    page.wait_for_selector("#run:not([disabled])")
    assert "software adapter: times are no GPU results" in page.inner_text("#adapter")
