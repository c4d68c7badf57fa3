"""Random models against the official implementation (Hugging Face transformers): X22, R3, R12, O10, V5.

Needs the extra `official`, which neither set-up nor the other tests install:

    .venv/bin/python -m pip install -e '.[test,official]'
    .venv/bin/python -m tests.official --cases 62 --browser 16

draws 62 models over everything that the exporter accepts (`cases.TABLE`), has the official classes make and save them,
exports them, from GGUF files of the same weights too, and compares logits, greedy tokens and drafts of the reference model and of the staged bundle in headless
Chromium with what those classes compute in float64 (`comparison`). It ends with a table and a record; a case that fails
keeps its folder and is run alone with `--seed`. The tests here are a handful of such cases.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="the extra `official` is not installed: pip install -e '.[official]'")
torch = pytest.importorskip("torch", reason="the extra `official` is not installed: pip install -e '.[official]'")

from tests.official import as_gguf
from tests.official.__main__ import BUNDLE
from tests.official.cases import Case, draw_case
from tests.official.comparison import CONTEXT, NEW_TOKENS, REFERENCE_TOLERANCE, Difference, compare, export
from tests.official.implementation import Decoded, build, load, save, widened
from tests.support.chrome import Chrome

from gemma4web.export.folder import open_folder
from gemma4web.export.gguf_file import GgufTensors
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.model import PlainModel, RoundModel, Visible
from gemma4web.oracle.weights import Model, from_folder

pytestmark = [pytest.mark.official, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("seed", [2, 3, 5, 8, 11])
def test_the_reference_computes_what_the_official_implementation_does(seed: int, tmp_path: Path) -> None:
    assert compare(draw_case(seed), tmp_path, None).failures == []


@pytest.mark.browser
@pytest.mark.emcc
@pytest.mark.parametrize("seed", [2, 5])
def test_the_runtime_computes_what_the_official_implementation_does(seed: int, tmp_path: Path, chrome: Chrome) -> None:
    if not (BUNDLE / "manifest.json").is_file():
        pytest.skip("no bundle is staged: run `scons bundle`")
    assert compare(draw_case(seed), tmp_path, (chrome, BUNDLE)).failures == []


@pytest.mark.parametrize("prefix", ["text", "multimodal"])
def test_one_code_that_differs_is_another_model(prefix: str, tmp_path: Path) -> None:
    """What the comparison with the export from GGUF says of a block that is not the checkpoint's."""
    case = next(case for case in map(draw_case, count()) if "q4" in case.forms and as_gguf.writable(case)
                and case.values["prefix"] == prefix and case.assistant is not None)
    checkpoint, q4 = tmp_path / "checkpoint", tmp_path / "q4"
    save(build(case), case, checkpoint)
    assert export(case, checkpoint, q4, "q4") is None
    as_gguf.write(case, checkpoint, open_folder(q4), tmp_path / "gguf")
    file = tmp_path / "gguf/target.gguf"
    data = bytearray(file.read_bytes())
    with GgufTensors(file) as tensors:
        data[tensors.find("model.layers.0.mlp.down_proj.weight").begin + 2] ^= 1
    file.write_bytes(data)
    assert export(case, tmp_path / "gguf", tmp_path / "other", "q4", ".gguf") is None
    whole = ["another program text_decoder", "another program k2_round", "other shards"]
    alone = ["other weights of text_decoder", "other weights of k2_round"]
    found = as_gguf.differences(open_folder(tmp_path / "other"), open_folder(q4))
    assert sorted(found) == sorted(whole if prefix == "text" else alone)


def _rich_case() -> Case:
    """The first that has whatever some mistake needs to show."""
    def fits(values: dict[str, Any]) -> bool:
        return bool(
            values["assistant"] and values["assistant_layers"] != "F" and values["kv_shared_layers"] == 0
            and values["layers"] in ("SFSF", "SSFSSF", "FFSSF", "SSSSFSSSSF") and values["ple"] and values["softcap"]
            and values["values_from_keys"] and 1 < values["kv_heads"] < values["heads"]
            and values["window"] < values["prompt_tokens"][1] < 50 and values["norms"][1] < 20
            and 4 < values["partial_rotary_factor"] * values["full_head_dim"] < values["full_head_dim"])
    return next(case for case in map(draw_case, count()) if fits(case.values))


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Decoded]:
    """An exported model and what the official implementation decodes from its checkpoint in float64."""
    case, folder = _rich_case(), tmp_path_factory.mktemp("rich")
    save(build(case), case, folder / "checkpoint")
    assert export(case, folder / "checkpoint", folder / "exported", "f32") is None
    return (from_folder(open_folder(folder / "exported")),
            widened(load(case, folder / "checkpoint")).decode(case.prompts()[1], NEW_TOKENS))


_ELSEWHERE = {Fault.NIBBLE_ORDER, Fault.RING_ONE_ROW_SHORT}
"""Mistakes in how values are stored, which a model of plain numbers and whole caches cannot make."""


@pytest.mark.parametrize("fault", [None, *sorted(set(Fault) - _ELSEWHERE)])
def test_a_mistake_is_noticed(rich: tuple[Model, Decoded], fault: Fault | None) -> None:
    """Every mistake that the reference model can make shows in its logits or in the logits of its drafts; without one
    nothing does."""
    model, official = rich
    faults = () if fault is None else (fault,)
    engine, logits, drafts = PlainModel(model, faults=faults, context=CONTEXT), Difference(), Difference()
    plain(engine, official.prompt, NEW_TOKENS)
    logits.add(np.concatenate(engine.logits), official.logits)
    rounds = RoundModel(model, faults=faults, visible=Visible.HF, context=CONTEXT)
    speculative(rounds, official.prompt, NEW_TOKENS, shrink=True)
    drafts.add(rounds.draft_logits[0], official.rounds[0].logits)
    assert (max(logits.relative, drafts.relative) > REFERENCE_TOLERANCE) == (fault is not None)
