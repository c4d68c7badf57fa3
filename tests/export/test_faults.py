"""Every plausible mistake is caught by a named golden. The table says which; a control without the mistake passes each.

``plain``: the text of tiny-rand. ``first_logits``: its first logits within 1e-4 of float32's. ``rounds_clean``: its drafts.
``golden_q4``: the text of the packed weights. Faults that only a model of the unified form can have: those of tiny-unified.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_golden import FIXTURES, load_golden, load_model

from gemma4web.oracle import golden
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.model import PlainModel, RoundModel

CAUGHT_BY = {
    Fault.ROPE_DENOMINATOR: "plain", Fault.ROPE_MISSING_ON_FULL: "plain", Fault.WINDOW_PLUS_ONE: "plain",
    Fault.WINDOW_MINUS_ONE: "plain", Fault.NO_V_NORM: "plain", Fault.NO_SOFTCAP: "first_logits", Fault.PLE_SCALE: "plain",
    Fault.EXACT_GELU: "first_logits", Fault.WRONG_DONOR: "plain", Fault.DRAFT_2_EMBEDDING_SCALE: "rounds_clean",
    Fault.QUERY_POSITION_PLUS_ONE: "rounds_clean", Fault.NIBBLE_ORDER: "golden_q4", Fault.RING_ONE_ROW_SHORT: "plain",
    Fault.VALUES_AFTER_K_NORM: "first_logits", Fault.VALUES_WITH_K_NORM_WEIGHT: "first_logits",
    Fault.WRONG_KV_HEAD: "first_logits", Fault.FIRST_FULL_DONOR: "rounds_clean",
}
UNIFIED = {Fault.VALUES_AFTER_K_NORM, Fault.VALUES_WITH_K_NORM_WEIGHT, Fault.WRONG_KV_HEAD, Fault.FIRST_FULL_DONOR}
TOKENS, ROUNDS, CHUNK = 16, 4, 3


def _agrees(check: str, faults: frozenset[Fault], name: str = "tiny-rand") -> bool:
    """Whether the reference with these faults still agrees with a golden. The 31-token prompt, in chunks of 3 rows."""
    packed = check == "golden_q4"
    entry: dict[str, Any] = load_golden(name, golden.GOLDEN_Q4_FILE if packed else golden.GOLDEN_FILE)[2]
    model = golden.load_model(FIXTURES / name, form="q4", faults=faults) if packed else load_model(name)
    if check == "rounds_clean":
        emitted = sum(len(round_["emitted"]) for round_ in entry["rounds_clean"][:ROUNDS])
        text = speculative(RoundModel(model, faults=faults, context=64, prefill_rows=CHUNK), entry["prompt"], emitted + 1)
        return golden.rounds_json(text.rounds) == entry["rounds_clean"][:ROUNDS]
    engine = PlainModel(model, faults=faults, context=64, prefill_rows=CHUNK)
    if check == "first_logits":
        engine.prefill(entry["prompt"])
        return bool(np.abs(engine.logits[-1][-1, :8] - entry["first_logits"]).max() < golden.LOGIT_TOLERANCE)
    return list(plain(engine, entry["prompt"], TOKENS).tokens) == entry["plain"][:TOKENS]


@pytest.mark.parametrize("check", sorted(set(CAUGHT_BY.values())))
@pytest.mark.parametrize("name", ["tiny-rand", "tiny-unified"])
def test_control(check: str, name: str) -> None:
    assert _agrees(check, frozenset(), name)


@pytest.mark.parametrize("fault", list(Fault))
def test_fault_is_caught(fault: Fault) -> None:
    """Each mistake of the list changes what its golden asserts."""
    assert not _agrees(CAUGHT_BY[fault], frozenset({fault}), "tiny-unified" if fault in UNIFIED else "tiny-rand")


@pytest.mark.parametrize("fault", [Fault.WINDOW_PLUS_ONE, Fault.WINDOW_MINUS_ONE, Fault.WRONG_DONOR,
                                   Fault.ROPE_DENOMINATOR])
def test_fault_also_shows_in_the_drafts(fault: Fault) -> None:
    assert not _agrees("rounds_clean", frozenset({fault}))


def test_monotone_softcap_keeps_the_text() -> None:
    """Why a missing softcap needs logits: the tokens stay."""
    assert _agrees("plain", frozenset({Fault.NO_SOFTCAP}))
