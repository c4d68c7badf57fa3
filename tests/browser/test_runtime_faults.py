"""Faults that only a real device reports, in the middle of a request of the runtime: whom they fail, and what heals them."""

from __future__ import annotations

from typing import Any, Final

import pytest

from gemma4web.serve import BundleServer

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

PROMPT: Final = [2, 17, 400, 901, 33]
VARIANTS: Final = ("plain-wall", "mtp-wall")

# window.session() opens a session in the page itself, and window.device is the device that its runtime was given.
PREPARE: Final = """async ({ variant }) => {
    const { Manifest } = await import('./manifest.js');
    const { Gemma4Session } = await import('./session.js');
    const requestDevice = GPUAdapter.prototype.requestDevice;
    GPUAdapter.prototype.requestDevice = async function (...words) {
        window.device = await requestDevice.apply(this, words);
        window.onDevice?.(window.device);
        return window.device;
    };
    window.session = async () => Gemma4Session.open({ manifest: await Manifest.fetch(new URL('.', location.href).href), variant });
    window.reason = (promise) => promise.then(() => null, (error) => String(error.message));
}"""

# The runtime without the page's facade: `events` collects what it tells.
BARE: Final = """async () => {
    const factory = (await import('./runtime/gemma4.js')).default;
    window.events = [];
    window.told = null;
    window.bare = await factory({ onGemma4Event: (handle, request, kind, data, bytes) => {
        const text = new TextDecoder().decode(bare.HEAPU8.slice(data, data + bytes));
        events.push({ request, kind, text, inside: window.within?.() });
        window.told?.();
    } });
    window.opened = (handle, request) => new Promise((resolve) => { window.told = resolve; bare._g4_open(handle, request); });
}"""


@pytest.fixture
def runner(page: Any, site: BundleServer) -> Any:
    page.goto(site.url + "run.html")
    return page


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_uncaptured_error_fails_the_request_and_latches(runner: Any, variant: str) -> None:
    """R4, P13: the request that runs fails with the GPU's words; decoding is refused until a reset, then it is as before."""
    runner.evaluate(PREPARE, {"variant": variant})
    found = runner.evaluate("""async (ids) => {
        const session = await window.session();
        const before = (await session.generate(ids, { maxNewTokens: 12, stopIds: [] })).tokens;
        let hurt = false;
        const failed = await reason(session.generate(ids, { maxNewTokens: 40, stopIds: [], onTokens: () => {
            if (!hurt) window.device.createBuffer({ size: 4, usage: 0 });
            hurt = true;
        } }));
        const refused = await reason(session.generate(ids, { maxNewTokens: 3, stopIds: [] }));
        await session.reset();
        const after = (await session.generate(ids, { maxNewTokens: 12, stopIds: [] })).tokens;
        await session.unload();
        const objects = session.objects;
        await session.close();
        return { before, failed, refused, after, objects };
    }""", PROMPT)
    assert "usage" in found["failed"]
    assert "earlier failure" in found["refused"] and "reset" in found["refused"]
    assert len(found["before"]) == 12
    assert found["after"] == found["before"]
    assert found["objects"] == 0


@pytest.mark.parametrize("allocation", [0, 7, 60])
def test_a_device_without_memory_fails_the_load(runner: Any, allocation: int) -> None:
    """P25, R2: the buffer and its bytes are named, and the next load of the same page works."""
    runner.evaluate(PREPARE, {"variant": "mtp-wall"})
    found = runner.evaluate("""async ({ ids, allocation }) => {
        window.onDevice = (device) => {
            const popErrorScope = device.popErrorScope.bind(device);
            let count = 0;
            device.popErrorScope = async () => {
                const caught = await popErrorScope();
                return count++ === allocation ? new GPUOutOfMemoryError('no memory left') : caught;
            };
        };
        const failed = await reason(window.session());
        window.onDevice = null;
        const session = await window.session();
        const { tokens } = await session.generate(ids, { maxNewTokens: 3, stopIds: [] });
        await session.close();
        return { failed, tokens };
    }""", {"ids": PROMPT, "allocation": allocation})
    assert "allocating buffer" in found["failed"] and "bytes" in found["failed"] and "no memory left" in found["failed"]
    assert len(found["tokens"]) == 3


def test_closing_inside_an_event_is_refused(runner: Any) -> None:
    """An event is told from inside the runtime, which therefore cannot go away under it; afterwards it can."""
    runner.evaluate(BARE)
    found = runner.evaluate("""async () => {
        const handle = bare._g4_create();
        window.within = () => bare._g4_close(handle);
        await opened(handle, 1);
        window.within = null;
        return { events: events.map(({ kind, inside }) => [kind, inside]), owned: bare._g4_objects(handle) > 0,
                 closed: bare._g4_close(handle), left: bare._g4_objects(handle) };
    }""")
    assert found == {"events": [[1, -2]], "owned": True, "closed": 0, "left": 0}


def test_no_adapter_is_told_and_can_be_tried_again(runner: Any) -> None:
    """P14: the runtime's own answer, for a caller that did not ask the browser first."""
    runner.evaluate(BARE)
    found = runner.evaluate("""async () => {
        const handle = bare._g4_create();
        const requestAdapter = navigator.gpu.requestAdapter;
        navigator.gpu.requestAdapter = async () => null;
        await opened(handle, 1);
        navigator.gpu.requestAdapter = requestAdapter;
        const left = bare._g4_objects(handle);
        await opened(handle, 2);
        bare._g4_close(handle);
        return { left, events: events.map(({ request, kind, text }) => [request, kind, text]) };
    }""")
    assert found["left"] == 0
    (first, failed, reason), (second, done, _) = found["events"]
    assert (first, failed, second, done) == (1, 2, 2, 1)
    assert "unsupported" in reason and "adapter" in reason
