"""Exported programs, run op by op from the FlatBuffer and the shards, against the goldens: the proof of the graphs.

All exports here prefill 3 rows at a time, so that the rings of window 8 (10 rows) wrap in every prompt and every round.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_golden import FIXTURES, load_golden, load_model

from gemma4web.errors import ProgramError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, load_weights, open_folder
from gemma4web.oracle import golden, interpreter, mutant_folder
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.interpreter import Machine, PlainProgram, RoundProgram
from gemma4web.oracle.model import PlainModel, RoundModel
from gemma4web.program import ir
from gemma4web.program.ir import K2_ROUND, TEXT_DECODER, Program, QueryPositions
from gemma4web.program.mutants import MUTANTS, REFUSED, ROUND_ONLY, UNIFIED_ONLY, mutate

Folders = dict[str, ModelFolder]


def _machine(folder: ModelFolder, method: str, **settings: Any) -> Machine:
    return interpreter.load(folder.program(method), folder.path, **settings)


def _golden(folder: str, index: int) -> dict[str, Any]:
    name, form = folder.rsplit("-", 1)
    return load_golden(name, golden.GOLDEN_Q4_FILE if form == "q4" else golden.GOLDEN_FILE)[index]


@pytest.mark.parametrize(("name", "index"), [("tiny-rand-f32", 0), ("tiny-rand-f32", 2), ("tiny-mix-f32", 1),
                                             ("tiny-mix-f32", 3), ("tiny-rand-q4", 2), ("tiny-mix-q4", 1),
                                             ("tiny-unified-f32", 1), ("tiny-unified-f32", 2), ("tiny-unified-q4", 3)])
def test_k2_round_reproduces_golden(fixture_folders: Folders, name: str, index: int) -> None:
    """R12, R3: the text, every draft, every acceptance and the counters."""
    entry = _golden(name, index)
    text = speculative(RoundProgram(_machine(fixture_folders[name], K2_ROUND)), entry["prompt"], len(entry["plain"]))
    assert list(text.tokens) == entry["plain"]
    assert golden.rounds_json(text.rounds) == entry["rounds_clean"]
    assert golden.counters_json(text) == entry["counters"]


@pytest.mark.parametrize(("name", "index"), [("tiny-rand-f32", 2), ("tiny-rand-f32", 3), ("tiny-mix-f32", 0),
                                             ("tiny-rand-q4", 0), ("tiny-unified-f32", 2), ("tiny-unified-q4", 0)])
def test_text_decoder_reproduces_golden(fixture_folders: Folders, name: str, index: int) -> None:
    entry = _golden(name, index)
    text = plain(PlainProgram(_machine(fixture_folders[name], TEXT_DECODER)), entry["prompt"], len(entry["plain"]))
    assert list(text.tokens) == entry["plain"]


@pytest.mark.parametrize("form", ["f32", "q4"])
def test_all_logits_equal_the_reference(form: str, tmp_path: Any) -> None:
    """With --logits all every prompt row's logits and hidden state can be read, and equal the reference's."""
    base = FIXTURES / "tiny-rand"
    folder = open_folder(export(ExportOptions(
        target=base / "target", assistant=base / "assistant", out=tmp_path / "model", weights=form, prefill_rows=16,
        context=64, all_logits=True)))
    prompt = load_golden("tiny-rand")[2]["prompt"]
    reference = PlainModel(load_model("tiny-rand", form), context=64)
    first = reference.prefill(prompt)
    for method, engine in ((TEXT_DECODER, PlainProgram), (K2_ROUND, RoundProgram)):
        seen: list[Any] = []
        run = engine(_machine(folder, method), lambda machine, position, rows, seen=seen: seen.append(
            (machine.tensor("logits"), machine.tensor("hidden"))))
        assert run.prefill(prompt) == first
        np.testing.assert_allclose(np.concatenate([pair[0] for pair in seen]), reference.logits[0], atol=1e-4)
        np.testing.assert_allclose(np.concatenate([pair[1] for pair in seen]), reference.hidden[0], atol=1e-4)


def test_draft_logits_equal_the_reference(fixture_folders: Folders) -> None:
    """Both draft steps' full score rows, the values of every id that is no candidate included."""
    entry = _golden("tiny-rand-f32", 2)
    seen: list[Any] = []

    def watch(machine: Machine, position: int, rows: int) -> None:
        if machine.tensor("round_flag").any():
            seen.append(np.concatenate([machine.tensor(f"draft_logits_{step}") for step in range(2)]))

    speculative(RoundProgram(_machine(fixture_folders["tiny-rand-f32"], K2_ROUND), watch), entry["prompt"], 4)
    reference = RoundModel(load_model("tiny-rand"), context=64)
    speculative(reference, entry["prompt"], 4)
    assert len(seen) == 3
    for found, wanted in zip(seen, reference.draft_logits, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_donor_views_hold_the_visible_rows(fixture_folders: Folders) -> None:
    """X5: the views' visible rows equal the reference's keys and values at those positions, ring wrap included."""
    entry = _golden("tiny-rand-f32", 2)
    machine = _machine(fixture_folders["tiny-rand-f32"], K2_ROUND)
    engine = RoundProgram(machine)
    token, position = engine.prefill(entry["prompt"]), len(entry["prompt"])
    reference = PlainModel(load_model("tiny-rand"), context=64)
    reference.prefill(entry["prompt"])
    engine.round(token, position, 2)
    for layer, first in ((3, position - 7), (4, 0)):
        visible = np.arange(first, position)
        keys, values = reference.target.rows(layer, visible)
        for part, wanted in (("k", keys), ("v", values)):
            view = machine.tensor(f"donor.{layer}.{part}")
            np.testing.assert_allclose(view[0][:, visible % view.shape[2]].transpose(1, 0, 2), wanted, atol=1e-5)


def test_progressive_query_positions(tmp_path: Any) -> None:
    """X7: both conventions run and give one text; the drafts differ, and those of each equal the reference's."""
    base, entry, drafts = FIXTURES / "tiny-rand", load_golden("tiny-rand")[2], []
    for query in QueryPositions:
        folder = open_folder(export(ExportOptions(
            target=base / "target", assistant=base / "assistant", out=tmp_path / query.name, prefill_rows=3, context=64,
            query_positions=query)))
        text = speculative(RoundProgram(_machine(folder, K2_ROUND)), entry["prompt"], 8)
        reference = speculative(RoundModel(load_model("tiny-rand"), context=64, query_positions=query), entry["prompt"], 8)
        assert text == reference and list(text.tokens) == entry["plain"][:8]
        drafts.append([round_.drafts for round_ in text.rounds])
    assert drafts[0] != drafts[1]
    assert [first[0] for first in drafts[0]] == [second[0] for second in drafts[1]], "the first draft is at P in both"


def test_prefill_outputs(fixture_folders: Folders) -> None:
    """X3: a prefill gives match 0, no candidates, three equal greedy tokens, bonus equal, a finite probe."""
    machine = _machine(fixture_folders["tiny-mix-f32"], K2_ROUND)
    out = machine.run({"ids": [2, 17, 400], "positions": [0, 1, 2], "round_flag": 0, "donor_length": 0}, 3)
    token = int(out["bonus"][0, 0])
    assert out["candidates"].tolist() == [[-1, -1]] and out["target_greedy"].tolist() == [[token] * 3]
    assert out["match_count"].tolist() == [[0]] and np.isfinite(out["state_probe"]).all()
    assert out["state_probe"][0, 0] == machine.tensor("seed").reshape(-1)[0] == machine.tensor("hidden")[-1, 0]


@pytest.mark.parametrize("length", [0, -1, 112, 200])
def test_donor_length_out_of_range(fixture_folders: Folders, length: int) -> None:
    """X6: at least 1, at most capacity - 3 = 111 here."""
    machine = _machine(fixture_folders["tiny-mix-f32"], K2_ROUND)
    inputs = {"ids": [2], "positions": [1], "round_flag": 1}
    with pytest.raises(ProgramError, match=rf"donor length {length}, wanted 1\.\.111"):
        machine.run({**inputs, "donor_length": length}, 3)
    machine.run({**inputs, "donor_length": 111, "positions": [111]}, 3)


def test_reset_gives_the_same_text_again(fixture_folders: Folders) -> None:
    """V6."""
    entry = _golden("tiny-mix-f32", 3)
    engine = RoundProgram(_machine(fixture_folders["tiny-mix-f32"], K2_ROUND))
    runs = [speculative(engine, entry["prompt"], 12) for _ in range(2)]
    assert runs[0] == runs[1]


def _agrees(folder: ModelFolder, program: Program, entry: dict[str, Any], **settings: Any) -> bool:
    """Text of 12 tokens, drafts of three rounds and first logits equal the golden; ``program`` is not checked first."""
    machine = Machine(program, load_weights(program, folder.path), **settings)
    if program.graph.method == K2_ROUND:
        text = speculative(RoundProgram(machine), entry["prompt"], 4)
        return golden.rounds_json(text.rounds) == entry["rounds_clean"][: len(text.rounds)]
    first: list[Any] = []
    engine = PlainProgram(machine, lambda machine, position, rows: first.append(machine.tensor("logits")[-1, :8]))
    text = plain(engine, entry["prompt"], 12)
    logits = first[(len(entry["prompt"]) + 2) // 3 - 1]
    near = np.abs(logits - entry["first_logits"]).max() < golden.LOGIT_TOLERANCE
    return bool(near) and list(text.tokens) == entry["plain"][:12]


@pytest.mark.parametrize("name", [name for name in MUTANTS if not name.startswith("embedding_scale")])
def test_program_mutant_is_noticed(fixture_folders: Folders, name: str) -> None:
    """Each mutant, run without the checks that refuse some of them, departs from its model's golden."""
    model = "tiny-unified-f32" if name in UNIFIED_ONLY else "tiny-rand-f32"
    folder, entry = fixture_folders[model], _golden(model, 2)
    program = mutate(folder.program(K2_ROUND if name in ROUND_ONLY else TEXT_DECODER), name)
    assert not _agrees(folder, program, entry)


@pytest.mark.parametrize("method", [TEXT_DECODER, K2_ROUND])
@pytest.mark.parametrize("model", ["tiny-rand-f32", "tiny-unified-f32"])
def test_control_of_the_mutants(fixture_folders: Folders, model: str, method: str) -> None:
    folder = fixture_folders[model]
    assert _agrees(folder, folder.program(method), _golden(model, 2))


@pytest.mark.parametrize("name", ["window_plus_one", "wrong_donor", "no_softcap", Fault.NIBBLE_ORDER])
def test_mutant_folder_is_consistent_and_wrong(fixture_folders: Folders, tmp_path: Any, name: str) -> None:
    """What a browser test loads: every hash fits, every contract holds, and the text or logits differ."""
    source = fixture_folders["tiny-rand-q4"]
    folder = open_folder(mutant_folder.write(source.path, name, tmp_path / "mutant"))
    assert folder.receipt["files"].keys() == source.receipt["files"].keys()
    entry = _golden("tiny-rand-q4", 2)
    assert _agrees(source, source.program(TEXT_DECODER), entry)
    assert not _agrees(folder, folder.program(TEXT_DECODER), entry)


def test_mutants_that_break_a_contract_are_refused_when_read(fixture_folders: Folders, tmp_path: Any) -> None:
    for name in sorted(REFUSED):
        source = fixture_folders["tiny-unified-q4" if name in UNIFIED_ONLY else "tiny-rand-q4"]
        folder = open_folder(mutant_folder.write(source.path, name, tmp_path / name))
        with pytest.raises(ProgramError):
            folder.program(K2_ROUND)


def test_exact_gelu_and_swapped_nibbles_in_the_machine(fixture_folders: Folders) -> None:
    """Faults of a kernel, not of a graph."""
    f32, q4 = fixture_folders["tiny-rand-f32"], fixture_folders["tiny-rand-q4"]
    assert not _agrees(f32, f32.program(TEXT_DECODER), _golden("tiny-rand-f32", 2), exact_gelu=True)
    assert not _agrees(q4, q4.program(TEXT_DECODER), _golden("tiny-rand-q4", 2), swap_nibbles=True)


def test_unknown_and_uncomputed_tensors(fixture_folders: Folders) -> None:
    machine = _machine(fixture_folders["tiny-mix-f32"], K2_ROUND)
    with pytest.raises(ProgramError, match="does not exist"):
        machine.tensor("x")
    machine.run({"ids": [2], "positions": [0], "round_flag": 0, "donor_length": 0}, 1)
    with pytest.raises(ProgramError, match="was not computed"):
        machine.tensor("draft_logits_0")
    with pytest.raises(ProgramError, match="a pass of 4 rows"):
        machine.run({"ids": [2] * 3, "positions": [0] * 3, "round_flag": 0, "donor_length": 0}, 4)


def test_float32_machine_gives_the_same_text(fixture_folders: Folders) -> None:
    entry = _golden("tiny-rand-f32", 2)
    machine = _machine(fixture_folders["tiny-rand-f32"], TEXT_DECODER, dtype=np.float32)
    assert machine.tensor("cache.0.k").dtype == np.float32
    assert list(plain(PlainProgram(machine), entry["prompt"], 16).tokens) == entry["plain"][:16]
    assert ir.count(machine.graph.ops) == machine.program.census
