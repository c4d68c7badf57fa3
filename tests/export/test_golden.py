"""The reference model against what the official implementation decoded (golden.json), entry by entry.

tiny-rand proves the mathematics (least margin 4.5e-3), tiny-mix the accept logic, tiny-unified the form of 12B and 31B,
whose draft head is dense.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.oracle import golden
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.model import PlainModel, RoundModel
from gemma4web.oracle.weights import Model, from_folder

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ENTRIES = [(name, index) for name in ("tiny-rand", "tiny-mix", "tiny-unified") for index in range(4)]


@cache
def load_golden(name: str, file: str = golden.GOLDEN_FILE) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads((FIXTURES / name / file).read_bytes())
    return entries


@cache
def load_model(name: str, form: str = "f32") -> Model:
    return golden.load_model(FIXTURES / name, form=form)


@pytest.mark.parametrize(("name", "index"), ENTRIES)
def test_reference_reproduces_golden(name: str, index: int) -> None:
    """R12: plain tokens, MTP tokens, every draft and acceptance of the official rounds, ours, counters, first logits."""
    result = golden.check_entry(load_model(name), load_golden(name)[index])
    assert set(result) == {"plain", "first_logits", "mtp", "rounds", "clean", "rounds_clean", "counters"}
    assert all(result.values()), result


@pytest.mark.parametrize(("name", "index"), [("tiny-rand", 1), ("tiny-mix", 3), ("tiny-unified", 2)])
def test_packed_reference_reproduces_golden_q4(name: str, index: int) -> None:
    entry = load_golden(name, golden.GOLDEN_Q4_FILE)[index]
    found = golden.clean_results(load_model(name, "q4"), entry)
    assert found.pop("first_logits") == pytest.approx(entry["first_logits"], abs=1e-9)
    assert found == {key: value for key, value in entry.items() if key != "first_logits"}


@pytest.mark.parametrize("file", [golden.GOLDEN_FILE, golden.GOLDEN_Q4_FILE])
@pytest.mark.parametrize("name", ["tiny-mix", "tiny-unified"])
def test_accept_counts_of_every_kind_occur(name: str, file: str) -> None:
    """Rounds with 0, 1 and 2 accepted drafts, of either draft head, and one cut by the budget."""
    entries = load_golden(name, file)
    assert {round_["accepted"] for entry in entries for round_ in entry["rounds_clean"]} == {0, 1, 2}
    assert any(entry["counters"]["cut"] for entry in entries)


@pytest.mark.parametrize("name", ["tiny-mix", "tiny-unified"])
def test_the_official_rounds_have_accept_counts_of_every_kind(name: str) -> None:
    assert {round_["accepted"] for entry in load_golden(name) for round_ in golden.official_rounds(entry)} == {0, 1, 2}


def test_packed_logits_are_farther_than_the_tolerance() -> None:
    """q4 and f32 cannot be mistaken for each other: their logits differ by more than 1e-3."""
    prompt = load_golden("tiny-rand")[0]["prompt"]
    engines = [PlainModel(load_model("tiny-rand", form), context=16) for form in ("f32", "q4")]
    for engine in engines:
        engine.prefill(prompt)
    assert np.abs(engines[0].logits[0] - engines[1].logits[0]).max() > 0.1


def test_rows_do_not_depend_on_the_pass(micro_pair: tuple[Path, Path]) -> None:
    """A prefill in chunks, with rings that wrap, gives the logits of a prefill in one pass."""
    model = load_model("tiny-rand")
    prompt = load_golden("tiny-rand")[2]["prompt"]
    whole, parts = PlainModel(model, context=40), PlainModel(model, context=40, prefill_rows=3)
    whole.prefill(prompt)
    parts.prefill(prompt)
    assert len(parts.logits) == 11
    np.testing.assert_allclose(np.concatenate(parts.logits), whole.logits[0], atol=1e-10)


@pytest.mark.parametrize("form", ["f32", "q4"])
def test_exported_folder_and_checkpoint_are_one_model(form: str, tmp_path: Path) -> None:
    """What was written is what was read: the model of the folder equals that of the checkpoint, bit for bit."""
    base = FIXTURES / "tiny-mix"
    folder = open_folder(export(ExportOptions(target=base / "target", assistant=base / "assistant", weights=form,
                                              out=tmp_path / "model")))
    found, wanted = from_folder(folder), load_model("tiny-mix", form)
    assert (found.target, found.assistant) == (wanted.target, wanted.assistant)
    assert found.weights.keys() == wanted.weights.keys()
    for name, values in wanted.weights.items():
        assert np.array_equal(found.weights[name].reshape(-1), values.reshape(-1)), name


def test_stop_token_ends_both_kinds_of_text() -> None:
    """R6: the token that would come fifth is a stop token; it is inside an accepted block for the drafts."""
    entry = load_golden("tiny-mix")[3]
    stop = entry["plain"][9]
    cut = entry["plain"].index(stop)
    model = load_model("tiny-mix")
    text = plain(PlainModel(model, context=64), entry["prompt"], 40, {stop})
    drafted = speculative(RoundModel(model, context=64), entry["prompt"], 40, {stop})
    assert list(text.tokens) == list(drafted.tokens) == entry["plain"][:cut]
    assert drafted.counters.emitted == cut and drafted.counters.cut >= 1
