"""The demo page in use: prompts, switch, stop, errors of input, keyboard, phone width, sub-path (B3, B4, P13)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_bundle import CONTEXT, VOCAB, make_fake_bundle
from tests.support.sites import breaking

from gemma4web.serve import BundleServer, serving

pytestmark = pytest.mark.browser


def expected(prompt: list[int], count: int) -> list[int]:
    """Tokens of the stand-in runtime (fake_runtime.js)."""
    tokens: list[int] = []
    newest, position = prompt[-1], len(prompt) - 1
    for _ in range(count):
        newest = (31 * newest + 7 * position) % VOCAB
        position += 1
        tokens.append(newest)
    return tokens


def tinted(prompt: list[int], count: int) -> list[bool]:
    """Which of the first `count` tokens the stand-in's rounds give as accepted drafts."""
    marks, length = [False], len(prompt)
    while len(marks) < count:
        accepted = length % 3
        marks += [True] * accepted + [False]
        length += accepted + 1
    return marks[:count]


@pytest.fixture
def demo(page: Any, fake_site: BundleServer) -> Any:
    page.goto(fake_site.url)
    page.wait_for_selector("#run:not([disabled])")
    return page


def finished(page: Any, status: str = "Done") -> None:
    page.wait_for_function("status => document.querySelector('#status').textContent.startsWith(status)", arg=status)


def shown(page: Any) -> list[int]:
    return [int(word) for word in page.inner_text("#output").split()]


def error(page: Any) -> str:
    page.wait_for_selector("#error:not([hidden])")
    text = page.inner_text("#error")
    assert isinstance(text, str)
    return text


def test_plain_and_mtp_show_the_same_tokens(demo: Any) -> None:
    """Switching loads the other variant and gives the first one back; the figures are those of the decoding."""
    demo.fill("#prompt", "2, 17\n4 99")
    demo.fill("#max-new", "20")
    demo.click("#run")
    finished(demo)
    assert shown(demo) == expected([2, 17, 4, 99], 20)
    assert demo.inner_text("#figure-tokens") == "20"
    assert demo.inner_text("#figure-accepted").endswith("%")
    assert int(demo.inner_text("#figure-rounds")) > 0
    assert demo.locator("#output .accepted").count() > 0
    demo.click("text=Plain")
    demo.click("#run")
    finished(demo)
    assert shown(demo) == expected([2, 17, 4, 99], 20)
    assert demo.inner_text("#figure-accepted") == "–"
    assert demo.locator("#output .accepted").count() == 0
    assert float(demo.inner_text("#figure-rate")) > 0


@pytest.mark.parametrize("count", range(2, 11))
def test_accepted_drafts_are_tinted_in_a_cut_round_too(demo: Any, count: int) -> None:
    """A number of tokens that ends inside a round leaves out the token that is no draft."""
    demo.fill("#prompt", "5 6")
    demo.fill("#max-new", str(count))
    demo.click("#run")
    finished(demo)
    marks = demo.evaluate("() => [...document.querySelectorAll('#output span')].map((e) => e.classList.contains('accepted'))")
    assert marks == tinted([5, 6], count)


def test_the_size_to_load_is_that_of_the_decoding_chosen(demo: Any, fake_bundle: Path) -> None:
    """MTP loads the assistant too."""
    assert "9.1 MB to load" in demo.inner_text("#model")
    demo.click("text=Plain")
    assert "0.1 MB to load" in demo.inner_text("#model")


def test_a_run_begins_with_an_empty_answer(demo: Any) -> None:
    """What fails early shows nothing of the run before."""
    demo.click("#run")
    finished(demo)
    demo.fill("#prompt", "1 two 3")
    demo.click("#run")
    finished(demo, "Not finished")
    assert demo.inner_text("#output") == ""
    assert [demo.inner_text(f"#figure-{name}") for name in ("tokens", "rate", "prefill", "accepted", "rounds")] == ["–"] * 5


def test_a_second_run_does_not_load_again(demo: Any, fake_site: BundleServer) -> None:
    demo.click("#run")
    finished(demo)
    before = len(fake_site.requests)
    demo.click("#run")
    demo.wait_for_selector("#stop:not([disabled])")
    finished(demo)
    assert len(fake_site.requests) == before


@pytest.mark.parametrize(("prompt", "says"), [
    ("", "the prompt is empty"), (" \n ,", "the prompt is empty"), ("1 two 3", '"two" is no token id'),
    ("1 -2", '"-2" is no token id'), ("1.5", '"1.5" is no token id'),
    (f"5 {VOCAB}", f"the token id {VOCAB}, this model knows 0 to {VOCAB - 1}"),
    ("7 " * (CONTEXT + 1), f"the prompt has {CONTEXT + 1} tokens, this model takes at most {CONTEXT}"),
    ("905 1", "refused by the stand-in"),
])
def test_a_wrong_prompt_is_refused_in_words(demo: Any, prompt: str, says: str) -> None:
    demo.fill("#prompt", prompt)
    demo.click("#run")
    text = error(demo)
    assert says in text
    assert "What to do:" in text
    demo.fill("#prompt", "5 6")
    demo.fill("#max-new", "3")
    demo.click("#run")
    finished(demo)
    assert demo.is_hidden("#error")
    assert shown(demo) == expected([5, 6], 3)


@pytest.mark.parametrize("count", ["0", "-3", "1.5", ""])
def test_a_wrong_number_of_tokens_does_not_run(demo: Any, count: str) -> None:
    demo.fill("#max-new", count)
    demo.click("#run")
    assert demo.evaluate("() => document.querySelector('#max-new').matches(':invalid')")
    assert demo.inner_text("#status") == "Nothing generated yet"


def press_stop(page: Any, how: str) -> None:
    if how == "button":
        page.click("#stop")
    else:
        page.keyboard.press("Escape")


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_ends_a_generation(demo: Any, how: str) -> None:
    demo.fill("#prompt", "904 7")
    demo.click("#run")
    demo.wait_for_function("() => document.querySelector('#output').textContent.trim() !== ''")
    press_stop(demo, how)
    finished(demo, "Stopped")
    assert demo.is_enabled("#run")
    demo.fill("#prompt", "5 6")
    demo.click("#run")
    finished(demo)


STATUSES = """() => {
    window.statuses = [];
    const status = document.querySelector('#status');
    new MutationObserver(() => window.statuses.push(status.textContent)).observe(status, { childList: true });
}"""


def test_a_long_prompt_is_read_with_progress_and_can_be_stopped(demo: Any) -> None:
    """The stand-in reads 64 tokens at a time, and then waits for Stop."""
    demo.evaluate(STATUSES)
    demo.fill("#prompt", "911 " + "7 " * 149)
    demo.click("#run")
    finished(demo, "Reading the prompt: 64 of 150")
    demo.click("#stop")
    finished(demo, "Stopped")
    assert demo.evaluate("() => window.statuses")[-4:] == [
        "Reading the prompt: 0 of 150", "Reading the prompt: 64 of 150", "Stopping…", "Stopped"]
    assert demo.is_hidden("#error")
    assert demo.inner_text("#figure-prefill") == "–"
    demo.evaluate("() => { window.statuses.length = 0; }")
    demo.fill("#prompt", "5 " + "6 " * 149)
    demo.click("#run")
    finished(demo, "Ended: the context is full")
    assert "Reading the prompt: 128 of 150" in demo.evaluate("() => window.statuses")
    assert shown(demo)[:51] == expected([5] + [6] * 149, 51)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stop_while_the_model_loads_is_no_error(fake_bundle: Path, page: Any, how: str) -> None:
    with breaking(fake_bundle, stall="assistant-00001-of-00001.safetensors") as server:
        page.goto(server.url)
        page.click("#run:not([disabled])")
        page.wait_for_function("() => document.querySelector('#loading-what').textContent.includes('assistant')")
        press_stop(page, how)
        finished(page, "Stopped")
        assert page.is_hidden("#error")
        assert page.is_hidden("#loading")
        page.click("text=Plain")
        page.click("#run")
        finished(page)
        assert page.is_hidden("#error")


def test_it_can_be_used_with_the_keyboard_alone(demo: Any) -> None:
    """B4: every control in order of reading, Ctrl+Enter from the prompt, a visible focus."""
    order = []
    demo.evaluate("() => document.activeElement.blur()")
    for _ in range(5):
        demo.keyboard.press("Tab")
        order.append(demo.evaluate("() => document.activeElement.id || document.activeElement.name"))
        assert demo.evaluate("() => { const e = document.activeElement; const box = e.type === 'radio' ? e.nextElementSibling : e;"
                             " return getComputedStyle(box).outlineStyle; }") == "solid"
    assert order == ["prompt", "decoding", "max-new", "run", "output"]
    demo.focus("#prompt")
    demo.keyboard.press("Control+Enter")
    finished(demo)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_phone_width_needs_no_sideways_scrolling(demo: Any, scheme: str) -> None:
    demo.emulate_media(color_scheme=scheme)
    demo.set_viewport_size({"width": 360, "height": 740})
    demo.click("#run")
    finished(demo)
    assert demo.evaluate("() => document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    narrow = demo.evaluate("() => [...document.querySelectorAll('button, textarea, input[type=number]')]"
                           ".filter((e) => e.getBoundingClientRect().height < 38).map((e) => e.id)")
    assert narrow == []


def contrast(foreground: list[float], background: list[float]) -> float:
    """WCAG 2 contrast ratio of two sRGB colours, channels 0..255."""
    def luminance(colour: list[float]) -> float:
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    high, low = sorted((luminance(foreground), luminance(background)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(demo: Any, scheme: str) -> None:
    """Contrast of at least 4.5 for body, soft and error text."""
    demo.emulate_media(color_scheme=scheme)
    colours = demo.evaluate("""() => {
      const value = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
      const rgb = (hex) => [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
      return Object.fromEntries(['paper', 'card', 'ink', 'soft', 'field', 'accent', 'accent-ink', 'accent-soft', 'bad', 'bad-soft']
        .map((name) => [name, rgb(value(`--${name}`))]));
    }""")
    for ink, ground in (("ink", "paper"), ("ink", "card"), ("soft", "paper"), ("soft", "card"), ("ink", "field"),
                        ("accent-ink", "accent"), ("ink", "accent-soft"), ("bad", "bad-soft"), ("ink", "bad-soft")):
        assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


@pytest.mark.parametrize("prefix", ["/a/b/", "/with%20space/"])
def test_it_runs_under_a_sub_path(fake_bundle: Path, page: Any, prefix: str) -> None:
    """P13, B3: every request stays below the bundle's folder."""
    with serving(fake_bundle, prefix=prefix) as server:
        page.goto(server.url)
        page.click("#run:not([disabled])")
        finished(page)
        assert all(line.split()[1].startswith(prefix) for line in server.requests)
        assert all(line.endswith(" 200") for line in server.requests)


@pytest.mark.parametrize(("first", "says"), [
    (901, "the GPU device was lost (unknown): the stand-in lost its device"), (902, "the runtime stopped in generate"),
    (903, "the runtime aborted: out of memory"), (906, "unreachable in a callback"),
])
def test_a_failure_in_the_middle_settles_and_the_page_recovers(demo: Any, first: int, says: str) -> None:
    """P23, P04: device lost, trap, abort, and an error that no caller waits for: told once, and the next run works."""
    demo.fill("#prompt", f"{first} 3")
    begin = time.monotonic()
    demo.click("#run")
    assert says in error(demo)
    finished(demo, "Not finished")
    assert time.monotonic() - begin < 10
    demo.fill("#prompt", "5 6")
    demo.click("#run")
    finished(demo)
    assert demo.is_hidden("#error")


@pytest.fixture(scope="module")
def text_bundle(npm_modules: Path, tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    return make_fake_bundle(tmp_path_factory.mktemp("text") / "bundle", npm_modules, tokenizer=tokenizer)


@pytest.fixture
def text_demo(text_bundle: Path, page: Any) -> Iterator[Any]:
    with serving(text_bundle) as server:
        page.goto(server.url)
        page.wait_for_selector("#run:not([disabled])")
        yield page


def test_a_model_with_a_tokenizer_reads_and_writes_text(text_demo: Any) -> None:
    """Text in, text out, streamed; the stand-in's ids come out as words of the tokenizer, never as U+FFFD."""
    assert text_demo.inner_text("#prompt-label") == "Prompt"
    text_demo.fill("#prompt", "Once upon a time")
    text_demo.click("#run")
    finished(text_demo)
    text = text_demo.inner_text("#output")
    assert any(letter.isalpha() for letter in text)
    assert int(text_demo.inner_text("#figure-tokens")) > 0


def test_examples_fill_the_prompt(text_demo: Any) -> None:
    """A visitor need not invent a request; what is proposed fits the model's input."""
    assert text_demo.input_value("#prompt") == "Tell me a story about a brave little fox."
    assert text_demo.input_value("#max-new") == str(CONTEXT // 2)  # 256 where the context is long
    buttons = text_demo.locator("#examples button")
    assert buttons.count() == 4
    text_demo.click("text=The old witch")
    assert text_demo.input_value("#prompt").startswith("What happens next? The old witch")
    text_demo.click("#run")
    finished(text_demo)


def test_an_empty_text_is_refused(text_demo: Any) -> None:
    text_demo.fill("#prompt", "   ")
    text_demo.click("#run")
    assert "the prompt is empty" in error(text_demo)
