"""`gemma4web preflight`: does this Chromium compute with WebGPU here, and on what (P53)?

A browser that starts is no proof: it may have no WebGPU, or silently the software adapter. So a small shader is run and
its result compared. The verdict comes within seconds, before a build or a long run is started.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import sync_playwright
from rich.table import Table

from gemma4web.chromium import bounded, launch_flags, launched, log_tail, sigterm_as_exit
from gemma4web.errors import BrowserError
from gemma4web.launching import RunOptions, add_launch_options, console_of, run_options
from gemma4web.serve import serving
from gemma4web.summary import SOFTWARE_LABEL

DEADLINE_S: Final = 20.0
COUNT: Final = 1000

# Every element is squared and increased by its index; the last workgroup is partly idle.
_PROBE: Final = """async (count) => {
    if (!navigator.gpu) return { fault: 'navigator.gpu is missing: this browser has WebGPU turned off' };
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: 'high-performance' });
    if (!adapter) return { fault: 'requestAdapter() found no adapter' };
    const device = await adapter.requestDevice();
    const bytes = 4 * count;
    const data = device.createBuffer({ size: bytes, usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC });
    const back = device.createBuffer({ size: bytes, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
    device.queue.writeBuffer(data, 0, Uint32Array.from({ length: count }, (_, i) => i));
    const module = device.createShaderModule({ code: `
        @group(0) @binding(0) var<storage, read_write> data: array<u32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
            if (id.x < arrayLength(&data)) { data[id.x] = data[id.x] * data[id.x] + id.x; }
        }` });
    const pipeline = await device.createComputePipelineAsync({ layout: 'auto', compute: { module, entryPoint: 'main' } });
    const group = device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries: [{ binding: 0, resource: { buffer: data } }] });
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(Math.ceil(count / 64));
    pass.end();
    encoder.copyBufferToBuffer(data, 0, back, 0, bytes);
    device.queue.submit([encoder.finish()]);
    await back.mapAsync(GPUMapMode.READ);
    const found = new Uint32Array(back.getMappedRange().slice(0));
    const { vendor, architecture, device: model, description } = adapter.info;
    const limits = {};
    for (const name in adapter.limits) limits[name] = adapter.limits[name];
    return {
        wrong: found.reduce((sum, value, i) => sum + (value === (i * i + i) % 2 ** 32 ? 0 : 1), 0),
        vendor, architecture, device: model, description, features: [...adapter.features].map(String).sort(), limits,
        software: adapter.info.isFallbackAdapter === true || /swiftshader|llvmpipe|lavapipe/i.test(`${architecture} ${description}`),
    };
}"""


class Preflight(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe page found; ``wrong`` counts elements of the shader's result that are not as computed by hand."""

    version: str
    wrong: int
    vendor: str
    architecture: str
    device: str
    description: str
    software: bool
    features: list[str]
    limits: dict[str, float]


def preflight(options: RunOptions) -> Preflight:
    """Starts the browser and computes. Raises BrowserError with what is missing and the end of Chromium's own output."""
    flags = launch_flags(gpu=options.gpu, extra=options.browser_flags)
    with tempfile.TemporaryDirectory() as folder, sigterm_as_exit():
        (Path(folder) / "index.html").write_text("<!doctype html><title>preflight</title>")
        with serving(Path(folder)) as server, launched(options.chromium, flags) as browser:
            found = bounded(lambda: _probe(browser.endpoint, server.url), deadline_s=DEADLINE_S, what="the preflight",
                            kill=browser.kill)
            words = log_tail(browser.log)
    if "fault" in found:
        raise BrowserError(f"{found['fault']}\n{words}",
                           advice="check the GPU's driver and VK_DRIVER_FILES" if options.gpu else
                                  "use another Chromium (BROWSER=), or set one up: `scons toolchain`")
    result = msgspec.convert(found, Preflight, strict=False)
    if result.wrong:
        raise BrowserError(f"{result.vendor} {result.architecture} computes {result.wrong} of {COUNT} values wrongly",
                           advice="update the graphics driver")
    if options.gpu and result.software:
        raise BrowserError(f"a GPU was asked for, but the adapter is {result.vendor} {result.architecture} (software)\n{words}",
                           advice="check the GPU's driver and VK_DRIVER_FILES, or run without --gpu")
    return result


def _probe(endpoint: str, url: str) -> dict[str, object]:
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.connect_over_cdp(endpoint, timeout=DEADLINE_S * 1000)
            page = browser.contexts[0].new_page()
            page.goto(url, timeout=DEADLINE_S * 1000)
            return {**page.evaluate(_PROBE, COUNT), "version": browser.version}
    except PlaywrightError as error:
        return {"fault": f"the probe page failed: {error.message}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Starts Chromium, runs a small shader, and says on what adapter."""
    parser = argparse.ArgumentParser(prog="gemma4web preflight", description=main.__doc__)
    add_launch_options(parser)
    arguments = parser.parse_args(argv)
    options = run_options(arguments)
    found = preflight(options)
    table = Table(show_header=False, box=None)
    for name, value in (
        ("browser", f"Chromium {found.version}, {options.chromium.executable}"),
        ("flags", " ".join(launch_flags(gpu=options.gpu, extra=options.browser_flags))),
        ("adapter", " ".join(filter(None, (found.vendor, found.architecture, found.device, found.description)))),
        ("features", ", ".join(found.features)),
        ("limits", ", ".join(f"{name} {value:.0f}" for name, value in sorted(found.limits.items()))),
    ):
        table.add_row(name, value)
    console = console_of()
    console.print(table)
    console.print(f"WebGPU computes: {COUNT} of {COUNT} values right" + (f" ({SOFTWARE_LABEL})" if found.software else ""))
    return 0
