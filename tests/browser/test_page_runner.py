"""The automation page: what it refuses, and that its percentages reach 100."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_bundle import CONTEXT

from gemma4web.serve import BundleServer

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("count", [0, -1, 1.5, 1_000_001, 2**31, 2**32 + 5])
def test_a_number_of_tokens_that_wasm_would_misread_is_refused(page: Any, fake_site: BundleServer, count: float) -> None:
    """2**32 + 5 would arrive as 5."""
    page.goto(fake_site.url + "run.html")
    found = page.evaluate("""async (count) => {
        const client = gemma4web.client();
        await client.open({ baseUrl: gemma4web.baseUrl, variant: 'plain-wall' });
        const ask = (maxNewTokens) => client.generate({ kind: 'ids', ids: [5, 6] }, { maxNewTokens });
        try {
            return [await ask(count).then(() => null, (error) => error.payload()), (await ask(3)).generation.tokens.length];
        } finally { await client.close(); }
    }""", count)
    assert found[0]["code"] == "input"
    assert "wanted a whole number from 1 to 1,000,000" in found[0]["message"]
    assert found[0]["advice"] == "ask for a number in that range"
    assert found[1] == 3


def test_the_percentage_is_of_what_the_context_holds(page: Any, fake_site: BundleServer) -> None:
    page.goto(fake_site.url + "run.html")
    state = page.evaluate("""async () => {
        gemma4web.start({ variant: 'plain-wall', manifest_sha256: null,
            prompts: [{ id: 'long', tokens: new Array(100).fill(7), text: null, max_new_tokens: 1_000_000 }] });
        const seen = [];
        for (;;) {
            const state = gemma4web.poll();
            if (state.phase !== 'running') return { state, seen };
            seen.push([state.doing, state.percent]);
            await new Promise((resolve) => setTimeout(resolve, 0));
        }
    }""")
    assert state["state"]["phase"] == "done", state["state"]
    assert len(state["state"]["result"]["prompts"][0]["tokens"]) == CONTEXT + 1 - 100
    shares = [percent for doing, percent in state["seen"] if doing == 'generating "long"' and percent is not None]
    assert shares == sorted(shares)
    assert 90 < max(shares) <= 100


@pytest.mark.parametrize(("bad", "says"), [
    ({"tokens": [7] * (CONTEXT + 1)}, f"the prompt has {CONTEXT + 1} tokens, this model takes at most {CONTEXT}"),
    ({"tokens": [99999]}, "the prompt holds the token id 99999"),
    ({"text": "Hello"}, "exported without a tokenizer"),
])
def test_a_prompt_that_the_model_cannot_take_is_named_before_any_runs(page: Any, fake_site: BundleServer, bad: dict[str, Any],
                                                                      says: str) -> None:
    """No finished answer is lost to a later entry of the list."""
    page.goto(fake_site.url + "run.html")
    prompts = [{"id": "fine", "tokens": [5, 6], "text": None, "max_new_tokens": 4},
               {"id": "bad", "tokens": None, "text": None, "max_new_tokens": 4, **bad}]
    found = page.evaluate("""async (prompts) => {
        gemma4web.start({ variant: 'plain-wall', manifest_sha256: null, prompts });
        const seen = [];
        for (;;) {
            const state = gemma4web.poll();
            if (state.phase !== 'running') return { state, seen };
            seen.push(state.doing);
            await new Promise((resolve) => setTimeout(resolve, 0));
        }
    }""", prompts)
    assert found["state"]["phase"] == "failed"
    assert found["state"]["error"]["message"].startswith('prompt "bad": ')
    assert says in found["state"]["error"]["message"]
    assert not any("generating" in doing for doing in found["seen"])
