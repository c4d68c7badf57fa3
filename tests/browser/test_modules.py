"""The built modules on a page: factories, memory growth, exports, profiling, bad input, loss of the device."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.chrome import Chrome, Remote
from tests.support.fake_bundle import WEB
from tests.support.models import ModelPage, opened
from tests.support.sites import copy_bundle, edit_manifest, flip, replace

from gemma4web.serve import BundleServer, serving
from gemma4web.variants import VARIANTS, Variant

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

PROMPT: Final = [2, 17, 400, 901, 33]

# Collects what a factory asks for; `plain` leaves the finding of the wasm to the module itself.
MAKE = """async ({ stem, plain }) => {
    const before = new Set(Object.getOwnPropertyNames(globalThis));
    const factory = (await import(`./runtime/${stem}.js`)).default;
    const asked = [];
    const options = { onGemma4Event() {} };
    if (!plain) options.locateFile = (file) => { asked.push(file); return new URL(`./runtime/${file}`, location.href).href; };
    const module = await factory(options);
    window.modules = { ...window.modules, [stem]: module };
    return { name: factory.name, asked, globals: Object.getOwnPropertyNames(globalThis).filter((n) => !before.has(n) && n !== 'modules'),
             heap: module.HEAPU8.byteLength };
}"""


@pytest.fixture
def runner(page: Any, site: BundleServer) -> Any:
    page.goto(site.url + "run.html")
    return page


@pytest.mark.parametrize("plain", [False, True], ids=["locateFile", "import.meta.url"])
def test_all_factories_load_in_one_page(runner: Any, plain: bool) -> None:
    """V7: each default export carries its variant's name, sets no global, and asks for its own wasm first."""
    for variant in VARIANTS:
        found = runner.evaluate(MAKE, {"stem": variant.stem, "plain": plain})
        assert found["name"] == variant.factory
        assert found["globals"] == []
        assert found["asked"][:1] == ([] if plain else [f"{variant.stem}.wasm"])
        assert found["heap"] <= 64 * 2**20
    assert runner.evaluate("() => Object.values(modules).map((m) => m._g4_create() > 0)") == [True] * 4


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_a_rejected_load_propagates(runner: Any, variant: Variant) -> None:
    """V7, P04: the factory's own promise rejects when its wasm is missing, cut, or lacks an import."""
    found = runner.evaluate("""async ({ stem }) => {
        const factory = (await import(`./runtime/${stem}.js`)).default;
        const whole = new Uint8Array(await (await fetch(`./runtime/${stem}.wasm`)).arrayBuffer());
        const cases = { missing: { locateFile: () => 'nothing.wasm' }, cut: { wasmBinary: whole.slice(0, -1024) },
                        empty: { wasmBinary: new Uint8Array(8) } };
        const results = {};
        for (const [name, options] of Object.entries(cases)) {
            const late = new Promise((resolve) => setTimeout(resolve, 10000, 'pending'));
            results[name] = await Promise.race([factory(options).then(() => 'loaded', () => 'rejected'), late]);
        }
        return results;
    }""", {"stem": variant.stem})
    assert found == {"missing": "rejected", "cut": "rejected", "empty": "rejected"}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_everything_the_page_uses_exists(runner: Any, variant: Variant) -> None:
    """P07 a: every member of the module that session.js declares is there."""
    runner.evaluate(MAKE, {"stem": variant.stem, "plain": False})
    names = re.findall(r"@property \{.*\} (_\w+|HEAPU8)\b", (WEB / "session.js").read_text())
    assert len(names) > 20
    kinds = runner.evaluate("([stem, names]) => names.map((name) => typeof modules[stem][name])", [variant.stem, names])
    assert dict(zip(names, kinds, strict=True)) == {name: "object" if name == "HEAPU8" else "function" for name in names}


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_nothing_suspends(bundle: Path, variant: Variant) -> None:
    """P02: neither JSPI nor Asyncify is in the modules."""
    text = (bundle / "runtime" / f"{variant.stem}.js").read_text()
    text = text.replace("emscripten_has_asyncify:()=>0", "")  # emdawnwebgpu asks, and the answer is no
    wasm = (bundle / "runtime" / f"{variant.stem}.wasm").read_bytes()
    assert not re.search(r"Suspending|promising|Asyncify|asyncify", text)
    assert b"asyncify" not in wasm


def test_a_second_owner_is_refused(runner: Any) -> None:
    """R1: one context a module instance; after a close it can be owned again; other instances are not concerned."""
    runner.evaluate(MAKE, {"stem": "gemma4", "plain": False})
    assert runner.evaluate("""async () => {
        const m = modules.gemma4;
        const first = m._g4_create();
        const text = (at) => new TextDecoder().decode(m.HEAPU8.slice(at, m.HEAPU8.indexOf(0, at)));
        const second = m._g4_create();
        const reason = text(m._g4_error());
        const closed = m._g4_close(first);
        return [first > 0, second, reason.includes('owned'), closed, m._g4_create() > 0, m._g4_close(12345) < 0];
    }""") == [True, 0, True, 0, True, True]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_profiles_exist_where_they_are_built(chrome: Chrome, bundle: Path, variant: Variant) -> None:
    """R8, R9: a profile variant times its kernels, once each and freshly; a wall variant says that it cannot."""
    with opened(chrome, bundle, variant.name) as page:
        profile = page.generate(PROMPT, 6)["inspected"]["profile"]
    assert profile["schema"] == 1
    if variant.timing == "wall":
        assert profile["supported"] is False
        assert not profile.get("kernels")
    elif profile["supported"]:
        assert profile["fresh"] is profile["valid"] is True
        names = [kernel["name"] for kernel in profile["kernels"]]
        assert len(set(names)) == len(names)
        assert {"rms_norm", "attention", "linear_q4", "argmax"} <= set(names)
        assert all(kernel["calls"] > 0 and kernel["total_ns"] >= 0 for kernel in profile["kernels"])


@pytest.fixture
def watched(context: Remote, site: BundleServer) -> Any:
    """A page whose worker tells on the console what devices it asks for, and destroys them when told to."""
    context.route("**/gpu.js", lambda route: route.fulfill(content_type="text/javascript", body=route.fetch().text() + """
        const request = GPUAdapter.prototype.requestDevice;
        GPUAdapter.prototype.requestDevice = async function (options) {
            if (typeof document === 'undefined') console.log('features ' + JSON.stringify([...(options?.requiredFeatures ?? [])]));
            const device = await request.call(this, options);
            if (typeof document === 'undefined') new BroadcastChannel('test').onmessage = () => device.destroy();
            return device;
        };"""))
    page = context.new_page()
    page.goto(site.url + "run.html")
    return page


OPEN: Final = "async (variant) => { window.client = gemma4web.client(); await client.open({ baseUrl: gemma4web.baseUrl, variant }); }"


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_only_profile_variants_ask_for_timestamps(watched: Any, variant: Variant) -> None:
    """R9."""
    lines: list[str] = []
    watched.on("console", lambda message: lines.append(message.text))
    watched.evaluate(OPEN, variant.name)
    watched.evaluate("() => client.close()")
    asked = [json.loads(line.removeprefix("features ")) for line in lines if line.startswith("features ")]
    assert len(asked) == 1
    assert ("timestamp-query" in asked[0]) == (variant.timing == "profile")


def test_a_device_destroyed_in_the_middle_settles_everything(watched: Any) -> None:
    """P23 b: every pending promise ends within five seconds with the loss as its reason, none half done."""
    watched.evaluate(OPEN, "plain-wall")
    begin = time.monotonic()
    found = watched.evaluate("""async (ids) => {
        const generation = client.generate({ kind: 'ids', ids }, { maxNewTokens: 200,
            onTokens: () => new BroadcastChannel('test').postMessage('destroy') });
        const read = client.read('logits');
        const settled = await Promise.allSettled([generation, read]);
        const later = await client.inspect().then(() => 'answered', (error) => error.code);
        return [settled.map((s) => [s.status, s.reason?.code, s.reason?.message ?? '']), later];
    }""", PROMPT)
    assert time.monotonic() - begin < 10
    (status, code, message), (other, _, _) = found[0]
    assert (status, code) == ("rejected", "gpu-lost")
    assert "lost" in message
    assert other == "rejected"
    assert found[1] == "gpu-lost"


@pytest.fixture
def grown(bundle: Path, tmp_path: Path) -> Iterator[BundleServer]:
    """A bundle whose modules grow their memory in every export call, so that any view kept across one is stale."""
    growing = copy_bundle(bundle, tmp_path / "bundle")

    def edit(data: bytes) -> bytes:
        text, count = re.subn(r"export\s+default\s+(\w+);?|export\s*\{\s*(\w+) as default\s*\};?", lambda match: f"""
            export default async (options) => {{
                const module = await {match[1] or match[2]}(options);
                for (const name of Object.keys(module).filter((n) => n.startsWith('_g4_'))) {{
                    const call = module[name];
                    module[name] = (...words) => {{ if (!module._malloc(1 << 20)) throw new Error('no growth'); return call(...words); }};
                }}
                return module;
            }};""", data.decode())
        assert count == 1
        return text.encode()

    for stem in ("gemma4", "gemma4_mtp"):
        replace(growing, f"runtime/{stem}.js", edit, list_it=True)
    with serving(growing) as server:
        yield server


@pytest.mark.parametrize(("variant", "runs"), [
    ("plain-wall", 5), ("mtp-wall", 5), pytest.param("plain-wall", 200, marks=pytest.mark.soak),
])
def test_memory_that_grows_in_every_call_changes_nothing(chrome: Chrome, bundle: Path, grown: BundleServer, page: Any,
                                                         variant: str, runs: int, request: pytest.FixtureRequest) -> None:
    """P05: every call grows memory, and yet tokens and counters are those of a run without growth."""
    if runs > 5 and "soak" not in request.config.getoption("-m"):
        pytest.skip("long repetition: run with -m soak")
    with opened(chrome, bundle, variant) as still:
        wanted = still.generate(PROMPT, 24)
    page.goto(grown.url + "run.html")
    page.evaluate(OPEN, variant)
    found = page.evaluate("""async ([ids, runs]) => {
        const before = (await client.inspect()).heapBytes;
        const results = [];
        for (let run = 0; run < runs; run += 1) {
            const { generation } = await client.generate({ kind: 'ids', ids }, { maxNewTokens: run === 0 ? 24 : 2 });
            results.push([generation.tokens, generation.counters]);
            await client.inspect();
        }
        return { results, grew: (await client.inspect()).heapBytes - before };
    }""", [PROMPT, runs])
    assert found["grew"] > runs * 2**20
    assert found["results"][0] == [wanted["tokens"], wanted["counters"]]
    assert all(result[0] == wanted["tokens"][:2] for result in found["results"][1:])


REFUSED: Final = """async ({ call, ids, token, position }) => {
    const work = call === 'generate' ? client.generate({ kind: 'ids', ids }, { maxNewTokens: 1 })
        : call === 'prefill' ? client.prefill(ids, position) : client.step(token, position);
    return work.then(() => null, (error) => error.payload());
}"""


@pytest.fixture(scope="module")
def model(chrome: Chrome, bundle: Path) -> Iterator[ModelPage]:
    with opened(chrome, bundle, "mtp-wall") as page:
        yield page


def test_a_step_must_continue_where_the_last_one_ended(model: ModelPage) -> None:
    """R7: position and token; after each refusal the right step still works."""
    model.evaluate("() => client.reset()")
    first = model.evaluate("ids => client.prefill(ids, 0)", PROMPT)["tokens"][0]
    for wrong in ({"token": first, "position": 4}, {"token": first, "position": 6}, {"token": (first + 1) % 1024, "position": 5}):
        assert model.evaluate(REFUSED, {"call": "step", **wrong}) is not None
    assert model.evaluate(REFUSED, {"call": "prefill", "ids": [7], "position": 0}) is not None
    assert model.evaluate("t => client.step(t, 5)", first)["tokens"]


@pytest.mark.parametrize(("ids", "says"), [
    ([], "empty"), ([4096], "4096"), ([-1], "-1"), ([5, 2**31 - 1], "2147483647"),
])
def test_wrong_ids_are_refused_by_the_runtime_itself(model: ModelPage, ids: list[int], says: str) -> None:
    """V4: the runtime does not rely on the page's own checks."""
    model.evaluate("() => client.reset()")
    found = model.evaluate(REFUSED, {"call": "prefill", "ids": ids, "position": 0})
    assert found is not None
    assert found["code"] == "runtime"
    assert says in found["message"]


def test_a_prompt_longer_than_the_context_is_refused(model: ModelPage) -> None:
    context = model.opened["model"]["context"]
    found = model.evaluate(REFUSED, {"call": "generate", "ids": [7] * (context + 1)})
    assert f"the prompt has {context + 1} tokens, this model takes at most {context}" in found["message"]


def wrong_method(bundle: Path) -> None:
    edit_manifest(bundle, lambda m: m["model"]["methods"].update(k2_round=m["model"]["methods"]["text_decoder"]))


@pytest.mark.parametrize(("damage", "says"), [
    pytest.param(lambda b: replace(b, "model/k2_round.g4p", lambda d: d[:-64], list_it=True), "k2_round.g4p", id="program-cut"),
    pytest.param(lambda b: replace(b, "model/k2_round.g4p", flip(4), list_it=True), "k2_round.g4p", id="program-identifier"),
    pytest.param(lambda b: replace(b, "model/k2_round.g4p", lambda d: d[:200] + bytes(100) + d[300:], list_it=True),
                 "k2_round.g4p", id="program-zeros"),
    pytest.param(lambda b: replace(b, "model/k2_round.g4p", lambda _: b"", list_it=True), "k2_round.g4p", id="program-empty"),
    pytest.param(wrong_method, "text_decoder", id="wrong-method"),
])
def test_a_program_that_is_none_is_refused(chrome: Chrome, bundle: Path, tmp_path: Path, damage: Callable[[Path], None],
                                           says: str) -> None:
    """X1, V4: with hashes that agree, so that only the loader can notice."""
    broken = copy_bundle(bundle, tmp_path / "bundle")
    damage(broken)
    with pytest.raises(Exception, match=re.escape(says)), opened(chrome, broken, "mtp-wall"):
        pytest.fail("it was loaded")
