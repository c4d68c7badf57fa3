"""Runs a staged bundle in headless Chromium and records what happened (B5, P56, P59).

Each variant gets a page of its own; nothing on it may go wrong unnoticed: an uncaught error of the page or the GPU, a
crash, a failed request or a missed deadline fails the run with its message. The bundle is served by a server of this
run, which the page must prove to have talked to.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, Response, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from gemma4web import manifest
from gemma4web.chromium import RunningBrowser, bounded, launch_flags, launched, sigterm_as_exit
from gemma4web.errors import BrowserError, UsageError
from gemma4web.files import sha256_file
from gemma4web.launching import RunOptions
from gemma4web.page_result import PageAdapter, PageCounters, PageProfile, PagePrompt, PageResult
from gemma4web.record import (
    Adapter,
    Browser,
    KernelTime,
    Mtp,
    Profile,
    Prompt,
    PromptList,
    Record,
    Run,
)
from gemma4web.serve import NONCE_HEADER, BundleServer, serving
from gemma4web.variants import VARIANTS, Decoding, Timing, Variant

PAGE_LIMIT_MS: Final = 20_000
CONNECT_LIMIT_MS: Final = 20_000
POLL_S: Final = 0.1
EXPLAIN_S: Final = 1.0
"""How long the page may take to say in its own words what a fault did to it."""
TELL_S: Final = 10.0
RUNNER: Final = "run.html"

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One finished prompt of a run that goes on, and what it ran on."""

    variant: Variant
    browser: Browser
    adapter: Adapter
    prompt: PagePrompt


Answered = Callable[[Answer], None]
"""Told every answer of a variant, in the order of the prompts."""
PageAnswered = Callable[[PageAdapter, PagePrompt], None]

# Chromium reports an uncaptured GPU error of a page as a warning, in these words.
_GPU_WORDS: Final = ("While calling [", "WGSL", "WebGPU", "GPUDevice")


@dataclass(kw_only=True)
class Faults:
    """Collects everything that goes wrong on one page while nobody waits for it."""

    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.found.append(f"uncaught error on the page: {error}"))
        page.on("crash", lambda _: self.found.append("the page crashed"))
        page.on("console", self._console)
        page.on("requestfailed", self._request_failed)
        page.on("response", self._response)

    def check(self) -> None:
        """Raises BrowserError with everything found so far."""
        if self.found:
            raise BrowserError("\n".join(dict.fromkeys(self.found)))

    def _console(self, message: ConsoleMessage) -> None:
        text = message.text
        if message.type == "error" or (message.type == "warning" and any(word in text for word in _GPU_WORDS)):
            self.found.append(f"console {message.type}: {text}")

    def _request_failed(self, request: Request) -> None:
        # Chromium calls a request aborted when its body was read to the end before the network layer said so.
        if request.failure != "net::ERR_ABORTED":
            self.found.append(f"request failed: {request.url} ({request.failure})")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.found.append(f"HTTP {response.status} for {response.url}")


def no_bundle(bundle: Path) -> UsageError:
    return UsageError(f"{bundle} is no staged bundle: it has no {manifest.NAME}", advice="stage one first: `scons bundle`")


def run_bundle(bundle: Path, prompts: PromptList, variants: Sequence[Variant], options: RunOptions, *,
               progress: Callable[[str], None] = lambda _: None, answered: Answered = lambda _: None) -> Record:
    """Generates for every prompt on every variant and returns the record, which has been checked for contradictions.

    ``answered`` is told every answer as it comes: whatever ends the run, these are not lost. Raises BrowserError with
    the message of whatever went wrong; Chromium and the server are gone in every case.
    """
    if not (bundle / manifest.NAME).is_file():
        raise no_bundle(bundle)
    bundle_sha256 = sha256_file(bundle / manifest.NAME)
    flags = launch_flags(gpu=options.gpu, extra=options.browser_flags)
    with sigterm_as_exit(), serving(bundle) as server, launched(options.chromium, flags) as browser:
        results, found = bounded(
            lambda: _drive(browser, server, bundle_sha256, prompts, variants, options, progress, answered),
            deadline_s=(options.deadline_s + PAGE_LIMIT_MS / 1000) * len(variants) + CONNECT_LIMIT_MS / 1000,
            what="the browser run", kill=browser.kill)
    return Record(
        bundle_sha256=bundle_sha256, browser=found, adapter=_adapter(results, options),
        prompts_sha256=prompts.sha256, routes={result.variant: result.routes for result in results},
        runs=[run for result in results for run in _runs(result, prompts)],
    )


def _drive(browser: RunningBrowser, server: BundleServer, bundle_sha256: str, prompts: PromptList,
           variants: Sequence[Variant], options: RunOptions, progress: Callable[[str], None], answered: Answered,
           ) -> tuple[list[PageResult], Browser]:
    try:
        with sync_playwright() as playwright:
            connected = playwright.chromium.connect_over_cdp(browser.endpoint, timeout=CONNECT_LIMIT_MS)
            context = connected.contexts[0]
            found = Browser(name="chromium", version=connected.version)

            def told(variant: Variant) -> PageAnswered:
                return lambda adapter, prompt: answered(
                    Answer(variant=variant, browser=found, adapter=_recorded(adapter, adapter.features), prompt=prompt))

            results = [
                run_variant(context, server, variant, prompts.prompts, bundle_sha256, options, progress, told(variant))
                for variant in variants
            ]
            return results, found
    except PlaywrightError as error:
        raise BrowserError(f"the browser run broke off: {error.message}",
                           advice="if Chromium was not ended on purpose, look at its own output above") from None


def run_variant(context: BrowserContext, server: BundleServer, variant: Variant, prompts: Sequence[Prompt],
                bundle_sha256: str, options: RunOptions, progress: Callable[[str], None],
                answered: PageAnswered = lambda _, __: None) -> PageResult:
    """One variant in a page of its own. Raises BrowserError."""
    page = context.new_page()
    faults = Faults()
    faults.watch(page)
    try:
        _open_runner(page, server, faults)
        page.evaluate("request => window.gemma4web.start(request)", {
            "variant": variant.name, "manifest_sha256": bundle_sha256, "route_mask": options.route_mask,
            "prompts": [msgspec.to_builtins(prompt) for prompt in prompts],
        })
        document = _await_result(page, faults, variant, options.deadline_s, progress, answered)
    except BrowserError as error:
        raise BrowserError(f"{variant.name}: {error.args[0]}", advice=error.advice) from None
    except PlaywrightError as error:
        raise BrowserError("\n".join([f"{variant.name}: {error.message}", *dict.fromkeys(faults.found)])) from None
    finally:
        with contextlib.suppress(PlaywrightError):
            page.close()
    result = _page_result(document, variant)
    if result.manifest_sha256 != bundle_sha256:
        raise BrowserError(f"{variant.name}: the page loaded the bundle {result.manifest_sha256}, wanted {bundle_sha256}")
    if result.objects_after_unload != 0:
        raise BrowserError(f"{variant.name}: {result.objects_after_unload} GPU objects are still owned after unload")
    if result.conditions.visibility != "visible":
        raise BrowserError(f"{variant.name}: the page was hidden during the run, so its times mean nothing")
    return result


def _open_runner(page: Page, server: BundleServer, faults: Faults) -> None:
    response = page.goto(server.url + RUNNER, timeout=PAGE_LIMIT_MS)
    if response is None or not response.ok:
        raise BrowserError(f"{RUNNER} answered {response.status if response else 'nothing'}",
                           advice="stage the bundle again: `scons bundle`")
    if response.headers.get(NONCE_HEADER.lower()) != server.nonce:
        raise BrowserError("another server answered under this run's address", advice="run again")
    deadline = time.monotonic() + PAGE_LIMIT_MS / 1000
    while not page.evaluate("() => window.gemma4web !== undefined"):
        faults.check()
        if time.monotonic() > deadline:
            raise BrowserError(f"{RUNNER} is not ready after {PAGE_LIMIT_MS / 1000:.0f} s")
        page.wait_for_timeout(POLL_S * 1000)


def _await_result(page: Page, faults: Faults, variant: Variant, deadline_s: float, progress: Callable[[str], None],
                  answered: PageAnswered) -> Any:
    deadline = time.monotonic() + deadline_s
    doing, told_s, explain_until, answers = "", 0.0, 0.0, 0
    while time.monotonic() < deadline:
        state, fresh, adapter = page.evaluate(
            "first => [window.gemma4web.poll(), window.gemma4web.answers(first), window.gemma4web.adapter()]", answers)
        answers += len(fresh)
        for answer in fresh:
            answered(_converted(adapter, PageAdapter, variant), _converted(answer, PagePrompt, variant))
        if state["phase"] == "failed":
            error = state["error"]
            raise BrowserError("\n".join([error["message"], *dict.fromkeys(faults.found)]), advice=error["advice"])
        if faults.found:
            explain_until = explain_until or time.monotonic() + EXPLAIN_S
            if state["phase"] == "done" or time.monotonic() > explain_until:
                faults.check()
        elif state["phase"] == "done":
            return state["result"]
        if state.get("doing") != doing or time.monotonic() - told_s > TELL_S:
            doing, told_s = str(state.get("doing")), time.monotonic()
            percent = state.get("percent")
            progress(f"{variant.name}: {doing}" + ("" if percent is None else f" {percent} %"))
        page.wait_for_timeout(POLL_S * 1000)
    raise BrowserError(f"no result after {deadline_s:.0f} s (last: {doing or 'nothing'})",
                       advice="give it more time with --deadline SECONDS, or ask for fewer tokens")


def _converted(document: Any, kind: type[_T], variant: Variant) -> _T:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise BrowserError(f"{variant.name}: the page's answer is malformed: {error}") from None


def _page_result(document: Any, variant: Variant) -> PageResult:
    result = _converted(document, PageResult, variant)
    for prompt in result.prompts:
        profile = prompt.profile
        if variant.timing is Timing.WALL and profile.supported:
            raise BrowserError(f"{variant.name}: a wall build claims to support profiling")
        if profile.supported and not (profile.fresh and profile.valid):
            raise BrowserError(f"{variant.name}: the profile of {prompt.prompt_id!r} is stale or invalid")
    return result


def _adapter(results: Sequence[PageResult], options: RunOptions) -> Adapter:
    """The one adapter of all variants; a hardware run on a software adapter is refused (B6)."""
    first = results[0].adapter
    for result in results[1:]:
        found = result.adapter
        if (found.vendor, found.architecture, found.software) != (first.vendor, first.architecture, first.software):
            raise BrowserError(f"{result.variant} ran on {found.vendor} {found.architecture}, "
                               f"{results[0].variant} on {first.vendor} {first.architecture}")
    if options.gpu and first.software:
        raise BrowserError(f"a GPU was asked for, but the adapter is {first.vendor} {first.architecture} (software)",
                           advice="check the Vulkan driver (VK_DRIVER_FILES) and the flags, or run without --gpu")
    return _recorded(first, {feature for result in results for feature in result.adapter.features})


def _recorded(adapter: PageAdapter, features: Iterable[str]) -> Adapter:
    return Adapter(vendor=adapter.vendor, architecture=adapter.architecture, software=adapter.software,
                   features=sorted(features), limits=adapter.limits)


def _runs(result: PageResult, prompts: PromptList) -> list[Run]:
    variant = next(variant for variant in VARIANTS if variant.name == result.variant)
    if [prompt.prompt_id for prompt in result.prompts] != [prompt.id for prompt in prompts.prompts]:
        raise BrowserError(f"{variant.name}: the page answered other prompts than it was asked")
    return [Run(
        variant=variant.name, prompt_id=prompt.prompt_id, prompt_tokens=prompt.prompt_tokens, tokens=prompt.tokens,
        text=prompt.text, prefill_ms=prompt.prefill_ms, decode_tokens_per_s=prompt.decode_tokens_per_s,
        heap_bytes=prompt.heap_bytes, passes=prompt.passes,
        mtp=_mtp(prompt.counters) if variant.decoding is Decoding.MTP else None,
        profile=_profile(prompt.profile) if variant.timing is Timing.PROFILE else None,
    ) for prompt in result.prompts]


def _mtp(counters: PageCounters) -> Mtp:
    return Mtp(rounds=counters.rounds, drafted=counters.drafted, accepted=counters.accepted, emitted=counters.emitted,
               cut=counters.cut)


def _profile(profile: PageProfile) -> Profile | None:
    if not profile.supported:
        return None
    return Profile(timestamp_quantum_ns=profile.timestamp_quantum_ns, kernels=[
        KernelTime(name=kernel.name, calls=kernel.calls, total_ns=round(kernel.total_ns)) for kernel in profile.kernels])
