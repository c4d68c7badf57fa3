"""The trained story model, as people get it: GGUF in, text out (X22, P36, P40, P60, R3, R12).

golden.json is what Hugging Face transformers decoded from the same weights, alone and with the assistant; rounds by the
product's rule for visible rows come from the float64 reference, which reproduces the library's own (tests/export).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from gguf import GGUFReader
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import ModelPage, bundle_with, opened
from tokenizers import Tokenizer

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.oracle.decode import plain
from gemma4web.oracle.golden import gguf_pair
from gemma4web.oracle.model import PlainModel
from gemma4web.oracle.weights import from_folder
from gemma4web.serve import BundleServer

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

FOLDER: Final = REPOSITORY / "fixtures" / "story"
GOLDEN: Final[list[dict[str, Any]]] = json.loads((FOLDER / "golden.json").read_bytes())
PROMPTS: Final[list[dict[str, Any]]] = json.loads((FOLDER / "prompts.json").read_bytes())
TOLERANCE: Final = 1e-3
STEPS: Final = 8

_TEXT = """async ({ text, count }) => {
    const pieces = [];
    const done = await client.generate({ kind: 'text', text, format: 'chat' }, { maxNewTokens: count,
        onTokens: (batch) => pieces.push(...batch.pieces) });
    return { promptIds: done.promptIds, tokens: done.generation.tokens, text: done.text, pieces };
}"""


@pytest.fixture(scope="module", params=["plain-wall", "mtp-wall"])
def story(request: pytest.FixtureRequest, chrome: Chrome, bundle: Path) -> Iterator[tuple[str, ModelPage]]:
    with opened(chrome, bundle, request.param) as page:
        yield request.param, page


@pytest.mark.parametrize("entry", [0, 2, 4], ids=["easy", "stops", "hard"])
def test_tokens_and_rounds_equal_the_official_implementation(story: tuple[str, ModelPage], entry: int) -> None:
    """R12, R3: plain and MTP tokens are those of transformers; rounds and counters agree draft for draft."""
    variant, page = story
    wanted = GOLDEN[entry]
    found = page.generate(wanted["prompt"], wanted["max_new_tokens"])
    assert found["tokens"] == wanted["plain"]
    assert found["finish"] == ("stop" if len(wanted["plain"]) < wanted["max_new_tokens"] else "length")
    if variant == "mtp-wall":
        assert found["rounds"] == wanted["rounds_clean"]
        assert {key: found["counters"][key] for key in wanted["counters"]} == wanted["counters"]


def test_acceptance_spans_easy_to_hard() -> None:
    """The prompts of the demo are no flattery: some text is drafted almost always right, some often wrong."""
    shares = [entry["counters"]["accepted"] / entry["counters"]["drafted"] for entry in GOLDEN]
    assert max(shares) > 0.95
    assert min(shares) < 0.8


@pytest.mark.parametrize("entry", [0, 2], ids=["cut-by-budget", "stops"])
def test_text_in_text_out(story: tuple[str, ModelPage], tokenizer: Path, entry: int) -> None:
    """P40: a typed request becomes the ids that transformers were given; the streamed pieces are the decoded answer."""
    _, page = story
    found = page.evaluate(_TEXT, {"text": PROMPTS[entry]["text"], "count": 40})
    assert found["promptIds"] == GOLDEN[entry]["prompt"]
    assert found["tokens"] == GOLDEN[entry]["plain"][:40]
    assert found["text"] == "".join(found["pieces"])
    assert found["text"] == Tokenizer.from_file(str(tokenizer)).decode(found["tokens"])


def test_logits_equal_the_reference(chrome: Chrome, bundle: Path, tmp_path: Path) -> None:
    """Every prompt row and the rows of the first eight steps, within 1e-3 of float64."""
    target, assistant = gguf_pair(FOLDER)
    exported = export(ExportOptions(target=target, assistant=assistant, out=tmp_path / "model", all_logits=True,
                                    context=256))
    prompt = GOLDEN[4]["prompt"]
    reference = PlainModel(from_folder(open_folder(exported)), context=256)
    token = reference.prefill(prompt)
    for step in range(STEPS):
        token = reference.step(token, len(prompt) + step)
    with opened(chrome, bundle_with(bundle, exported, tmp_path / "bundle"), "plain-wall") as page:
        passes = page.passes(prompt, STEPS)
    for found, wanted in zip(passes, reference.logits, strict=True):
        assert np.abs(found.logits - wanted).max() <= TOLERANCE


def test_a_dead_assistant_shows_in_the_counters(chrome: Chrome, bundle: Path, tmp_path: Path) -> None:
    """P60: with an assistant that sees nothing the text stays right, so only the counters can tell; they do."""
    target, assistant = gguf_pair(FOLDER)
    broken = Path(shutil.copy(assistant, tmp_path / "broken-assistant.gguf"))
    projection = next(tensor for tensor in GGUFReader(broken, "r+").tensors if tensor.name == "nextn.pre_projection.weight")
    projection.data.reshape(-1, 18)[:, :2] = 0  # the scales of all blocks
    projection.data.base.flush()
    exported = export(ExportOptions(target=target, assistant=broken, out=tmp_path / "model", context=256))
    with opened(chrome, bundle_with(bundle, exported, tmp_path / "bundle"), "mtp-wall") as page:
        found = page.generate(GOLDEN[0]["prompt"], 24)
    assert found["tokens"] == GOLDEN[0]["plain"][:24]
    counters = found["counters"]
    assert counters["drafted"] == 2 * counters["rounds"] > 30
    assert counters["accepted"] < 0.1 * counters["drafted"]


def test_the_demo_page_tells_a_story(page: Any, site: BundleServer) -> None:
    """The page as a visitor uses it: type, run, read; the figures and the adapter line are filled in."""
    page.goto(site.url)
    page.wait_for_selector("#run:not([disabled])", timeout=60_000)
    page.fill("#prompt", PROMPTS[2]["text"])
    page.click("#run")
    page.wait_for_function("() => document.querySelector('#output').textContent.includes('What should the story be about?')",
                           timeout=60_000)
    page.wait_for_selector("#run:not([disabled])", timeout=60_000)
    assert page.is_hidden("#error")
    assert int(page.inner_text("#figure-tokens")) == len(GOLDEN[2]["plain"])


CONTEXTS: Final = [*(("plain-wall", context) for context in (33, 127, 128, 129, 130)),
                   *(("mtp-wall", context) for context in (33, 127, 128, 129, 130, 257, 513))]
"""Around the model's window of 128, and past the largest prefill pass of 512 tokens."""


@pytest.fixture(scope="module")
def long_text(tokenizer: Path) -> list[int]:
    """Ids of ten stories in a row."""
    text = (FOLDER / "training" / "samples.md").read_text(encoding="utf-8")
    return [2, *Tokenizer.from_file(str(tokenizer)).encode(text, add_special_tokens=False).ids]


@pytest.fixture(scope="module")
def replay(bundle: Path) -> PlainModel:
    return PlainModel(from_folder(open_folder(bundle / "model")), context=640)


@pytest.mark.parametrize(("story", "context"), CONTEXTS, indirect=["story"])
def test_tokens_equal_a_replay_at_every_context(story: tuple[str, ModelPage], replay: PlainModel, long_text: list[int],
                                                context: int) -> None:
    """V5, scaled to the model's window: plain and speculative, over rings that have not wrapped, just wrap and have."""
    _, page = story
    prompt = long_text[:context]
    wanted = plain(replay, prompt, 5)
    assert tuple(page.generate(prompt, 5)["tokens"]) == wanted.tokens
