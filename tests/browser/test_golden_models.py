"""Whole models in the browser against the recorded goldens and the float64 reference (R12, R3, V6, V9, X7, X8, P29-P33).

`tiny-rand` proves the mathematics, `tiny-mix` the accept logic (0, 1 and 2 accepted drafts), `tiny-unified` both in the
form of the 12B and 31B models. Models are exported with the logits of all rows, so that every row can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import ModelPage, Pass, bundle_with, opened

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.oracle import mutant_folder
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.model import PlainModel, RoundModel
from gemma4web.oracle.ops import Array
from gemma4web.oracle.weights import Model, from_checkpoint
from gemma4web.program import codec, ir, mutants

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

TOLERANCE: Final = 1e-3
STEPS: Final = 8
MODELS: Final = ("tiny-rand", "tiny-mix", "tiny-unified")
ALL_ROUTES: Final = -1
NO_ROUTE: Final = 1 << 30
"""A bit of the mask that no route has."""
MATERIALISED: Final = 1 << 18
FUSIONS: Final = 0b11111 << 24
"""Bits of ops/route.h."""
MASKS: Final = {"every route": ALL_ROUTES, "no fusion": ALL_ROUTES & ~FUSIONS, "no form to stand for": FUSIONS,
                "materialised attention": MATERIALISED, "generic kernels": NO_ROUTE}
Bundles = Callable[..., Path]


def golden(model: str, form: str) -> list[dict[str, Any]]:
    name = "golden.json" if form == "f32" else "golden_q4.json"
    entries: list[dict[str, Any]] = json.loads((REPOSITORY / "fixtures" / model / name).read_bytes())
    return entries


@lru_cache(maxsize=8)
def reference(model: str, form: str) -> Model:
    folder = REPOSITORY / "fixtures" / model
    return from_checkpoint(folder / "target", folder / "assistant", form=form)


@lru_cache(maxsize=64)
def reference_passes(model: str, form: str, decoding: str, entry: int) -> tuple[list[Array], list[tuple[int, ...]]]:
    """Logits of the whole prompt in one pass, then of each of the first steps, and the drafts of each step."""
    prompt = golden(model, form)[entry]["prompt"]
    if decoding == "plain":
        plain = PlainModel(reference(model, form))
        token = plain.prefill(prompt)
        for step in range(STEPS):
            token = plain.step(token, len(prompt) + step)
        return plain.logits, [()] * STEPS
    rounds = RoundModel(reference(model, form))
    token, position, drafts = rounds.prefill(prompt), len(prompt), []
    for _ in range(STEPS):
        proposed, greedy = rounds.round(token, position, 2)
        held = next((n for n, draft in enumerate(proposed) if draft != greedy[n]), 2)
        token, position = greedy[held], position + held + 1
        drafts.append(proposed)
    return rounds.logits, drafts


def worst(passes: list[Pass], wanted: list[Array]) -> float:
    """Largest difference of any logit of any row; prefill chunks are joined first."""
    split = len(passes) - STEPS
    found = [np.concatenate([item.logits for item in passes[:split]]), *(item.logits for item in passes[split:])]
    assert [item.shape for item in found] == [item.shape for item in wanted]
    return max(float(np.abs(a - b).max()) for a, b in zip(found, wanted, strict=True))


@pytest.fixture(scope="module")
def bundles(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundles:
    """A staged bundle of a fixture model in a weight form, made once."""
    made: dict[tuple[Any, ...], Path] = {}

    def make(model: str, form: str, *, prefill_rows: int = 64, mutant: str | None = None) -> Path:
        key = (model, form, prefill_rows, mutant)
        if key not in made:
            folder = tmp_path_factory.mktemp("model")
            source = REPOSITORY / "fixtures" / model
            if mutant is None:
                exported = export(ExportOptions(target=source / "target", assistant=source / "assistant", weights=form,
                                                out=folder / "export", prefill_rows=prefill_rows, all_logits=True,
                                                context=128))
            else:
                original = make(model, form, prefill_rows=prefill_rows) / "model"
                exported = mutant_folder.write(original, mutant, folder / "export")
            made[key] = bundle_with(bundle, exported, folder / "bundle")
        return made[key]

    return make


COMBINATIONS: Final = [(model, form, variant) for model in MODELS for form in ("f32", "q4")
                       for variant in ("plain-wall", "mtp-wall")]
# f32: every prompt of the goldens, as recorded by the official implementation. q4 has goldens of our own reference only,
# and its logits are compared for every prompt, so one prompt's tokens are enough.
GENERATED: Final = [(combination, entry) for combination in COMBINATIONS
                    for entry in (range(4) if combination[1] == "f32" else (2,))]


@pytest.fixture(scope="module", params=COMBINATIONS, ids="-".join)
def loaded(request: pytest.FixtureRequest, chrome: Chrome, bundles: Bundles) -> Iterator[tuple[str, str, str, ModelPage]]:
    model, form, variant = request.param
    with opened(chrome, bundles(model, form), variant) as page:
        yield model, form, variant, page


@pytest.mark.parametrize(("loaded", "entry"), GENERATED, indirect=["loaded"],
                         ids=lambda value: "-".join(value) if isinstance(value, tuple) else None)
def test_tokens_rounds_and_counters_equal_the_golden(loaded: tuple[str, str, str, ModelPage], entry: int) -> None:
    """R12, R3: plain and MTP tokens are golden's; rounds and counters agree draft for draft with the visible-row rule."""
    model, form, variant, page = loaded
    wanted = golden(model, form)[entry]
    found = page.generate(wanted["prompt"], len(wanted["plain"]))
    assert found["tokens"] == wanted["plain"]
    assert found["finish"] == "length"
    assert [token for batch in found["batches"] for token in batch] == wanted["plain"]
    counters = {key: found["counters"][key] for key in ("rounds", "drafted", "accepted", "emitted", "cut")}
    if variant.startswith("mtp"):
        assert found["rounds"] == wanted["rounds_clean"]
        assert counters == wanted["counters"]
        assert found["inspected"]["counters"] == found["counters"]
    else:
        assert counters == {"rounds": 0, "drafted": 0, "accepted": 0, "emitted": len(wanted["plain"]), "cut": 0}


@pytest.mark.parametrize("entry", range(4))
def test_logits_equal_the_reference(loaded: tuple[str, str, str, ModelPage], entry: int) -> None:
    """Every prompt row and the rows of the first eight steps, within 1e-3 of float64; drafts of those rounds too."""
    model, form, variant, page = loaded
    wanted, drafts = reference_passes(model, form, variant.split("-")[0], entry)
    passes = page.passes(golden(model, form)[entry]["prompt"], STEPS)
    assert worst(passes, wanted) <= TOLERANCE
    if variant.startswith("mtp"):
        assert [tuple(item.drafts) for item in passes[-STEPS:]] == drafts


def taken(page: ModelPage, part: str) -> set[str]:
    """Routes of the ops (``sites``) or of the ``fusions``, in passes and rounds."""
    sites = page.opened["routes"][part]
    return {item["route"] for site in sites for item in site["rows"]} | {site["round"] for site in sites if "round" in site}


@pytest.mark.parametrize("variant", ["plain-wall", "mtp-wall"])
@pytest.mark.parametrize("masked", list(MASKS))
def test_tokens_do_not_depend_on_the_routes(chrome: Chrome, bundles: Bundles, variant: str, masked: str) -> None:
    """G5, G6, G8, R12: with every route that this device has, without fusions, with a route that is off by default, and
    with none, the golden's tokens and rounds."""
    wanted = golden("tiny-rand", "q4")[2]
    with opened(chrome, bundles("tiny-rand", "q4"), variant, route_mask=MASKS[masked]) as page:
        ops, fusions = taken(page, "sites"), taken(page, "fusions")
        found = page.generate(wanted["prompt"], len(wanted["plain"]))
    if MASKS[masked] < 0:
        assert ops >= {"linear_q4_m1_subgroup", "linear_q4_tiled", "attention_decode_split", "attention_streaming"}
    else:
        assert ops == {"generic", *(["attention_materialised"] if masked == "materialised attention" else [])}
    if masked == "every route":
        assert fusions >= {"rms_norm_pair", "cache_write_pair", "linear_q4_gated_m1_subgroup", "unfused"}
        assert variant == "plain-wall" or "linear_q4_gated_m3_subgroup" in fusions
    else:
        assert fusions == ({"rms_norm_pair", "cache_write_pair"} if masked == "no form to stand for" else set())
    assert found["tokens"] == wanted["plain"]
    if variant.startswith("mtp"):
        assert found["rounds"] == wanted["rounds_clean"]


@pytest.mark.parametrize("variant", ["plain-wall", "mtp-wall"])
@pytest.mark.parametrize("form", ["f32", "q4"])
@pytest.mark.parametrize("model", ["tiny-rand", "tiny-unified"])
def test_fused_logits_are_bit_equal(chrome: Chrome, bundles: Bundles, model: str, variant: str, form: str) -> None:
    """G6: of every prompt row, and of steps and rounds."""
    prompt = golden(model, form)[2]["prompt"]
    found = []
    for mask in (ALL_ROUTES, ALL_ROUTES & ~FUSIONS):
        with opened(chrome, bundles(model, form), variant, route_mask=mask) as page:
            assert bool(taken(page, "fusions")) == (mask == ALL_ROUTES)
            found.append(page.passes(prompt, STEPS))
    fused, apart = found
    assert len(fused) == len(apart) > STEPS
    for one, other in zip(fused, apart, strict=True):
        assert one.tokens == other.tokens and one.drafts == other.drafts
        assert np.array_equal(one.logits, other.logits)


def unproven(model: Path, destination: Path) -> Path:
    """A copy of an exported folder whose certificates say nothing of a single compute pass."""
    folder = open_folder(model)
    changed = {}
    for method, entry in folder.receipt["methods"].items():
        program = folder.program(method)
        kept = tuple(proof for proof in program.certificate if proof.property is not ir.Property.SINGLE_COMPUTE_PASS)
        assert len(kept) == len(program.certificate) - 1
        changed[entry["program"]] = codec.to_bytes(replace(program, certificate=kept))
    return mutant_folder.publish_changed(model, changed, destination)


@pytest.mark.parametrize("variant", ["plain-wall", "mtp-wall", "mtp-profile"])
@pytest.mark.parametrize("form", ["f32", "q4"])
def test_a_single_pass_changes_no_bit(chrome: Chrome, bundle: Path, bundles: Bundles, tmp_path: Path, variant: str,
                                      form: str) -> None:
    """R11: with the proof each pass is one compute pass, without it each dispatch has its own, as with timestamps; logits
    of every prompt row, of steps and rounds are the same, and so are tokens."""
    proven = bundles("tiny-rand", form)
    apart = bundle_with(bundle, unproven(proven / "model", tmp_path / "export"), tmp_path / "bundle")
    wanted = golden("tiny-rand", form)[2]
    passes, reasons = [], []
    for folder in (proven, apart):
        with opened(chrome, folder, variant) as page:
            passes.append(page.passes(wanted["prompt"], STEPS))
            found = page.generate(wanted["prompt"], len(wanted["plain"]))
        assert found["tokens"] == wanted["plain"]
        assert found["passes"]["single"] == (found["passes"]["reason"] == "")
        reasons.append(found["passes"]["reason"])
    timestamps = "timestamps need a compute pass for each dispatch"
    assert reasons == ([timestamps] * 2 if variant == "mtp-profile"
                       else ["", "the program has no proof of a single compute pass"])
    for one, other in zip(*passes, strict=True):
        assert one.tokens == other.tokens and one.drafts == other.drafts
        assert np.array_equal(one.logits, other.logits)


def test_q4_is_not_f32(loaded: tuple[str, str, str, ModelPage]) -> None:
    """The q4 model is nearer to its own reference than to that of f32: it cannot be f32 in disguise."""
    model, form, variant, page = loaded
    prompt = golden(model, "f32")[0]["prompt"]
    assert golden(model, "q4")[0]["prompt"] == prompt
    first = page.passes(prompt, 0)[0].logits
    distance = {name: float(np.abs(first - reference_passes(model, name, variant.split("-")[0], 0)[0][0]).max())
                for name in ("f32", "q4")}
    other = "f32" if form == "q4" else "q4"
    assert distance[form] <= TOLERANCE < 10 * TOLERANCE < distance[other]


def test_reset_then_replay_is_identical(loaded: tuple[str, str, str, ModelPage]) -> None:
    """V6: tokens, rounds and counters of a second run after another prompt and a reset are those of the first."""
    model, form, _, page = loaded
    entries = golden(model, form)
    first = page.generate(entries[3]["prompt"], 24)
    page.generate(entries[1]["prompt"], 9)
    page.evaluate("() => client.reset()")
    cleared = page.evaluate("() => client.inspect()")["counters"]
    assert set(cleared.values()) == {0}
    again = page.generate(entries[3]["prompt"], 24)
    for key in ("tokens", "rounds", "counters", "finish"):
        assert again[key] == first[key]


def test_one_row_at_a_time_equals_one_pass(chrome: Chrome, bundles: Bundles) -> None:
    """P39 b, P32: a prefill in many passes that straddle the ring's wrap gives the logits of a prefill in one."""
    wanted, drafts = reference_passes("tiny-rand", "f32", "mtp", 2)
    for rows in (1, 5, 8):
        with opened(chrome, bundles("tiny-rand", "f32", prefill_rows=rows), "mtp-wall") as page:
            passes = page.passes(golden("tiny-rand", "f32")[2]["prompt"], STEPS)
            assert len(passes) == -(-31 // rows) + STEPS
            assert worst(passes, wanted) <= TOLERANCE
            assert [tuple(item.drafts) for item in passes[-STEPS:]] == drafts


def test_plain_and_mtp_rows_are_bit_equal(chrome: Chrome, bundles: Bundles) -> None:
    """P33: the rows of a verify pass are those of single steps, bit for bit, so that ties cannot fall otherwise."""
    prompt = golden("tiny-mix", "f32")[0]["prompt"]
    with opened(chrome, bundles("tiny-mix", "f32"), "plain-wall") as page:
        plain = [item.logits for item in page.passes(prompt, 16)]
    with opened(chrome, bundles("tiny-mix", "f32"), "mtp-wall") as page:
        speculative = page.passes(prompt, STEPS)
    assert np.array_equal(plain[0], speculative[0].logits)
    rows = np.concatenate([item.logits[: len(item.tokens)] for item in speculative[1:]])
    single = np.concatenate(plain[1:])
    assert len({len(item.tokens) for item in speculative[1:]}) > 1
    count = min(len(rows), len(single))
    assert count >= STEPS
    assert np.array_equal(rows[:count], single[:count])


def test_unload_leaves_nothing(chrome: Chrome, bundles: Bundles) -> None:
    """V9: no GPU object is owned after unload, a second unload succeeds, and decoding afterwards is refused."""
    with opened(chrome, bundles("tiny-mix", "f32"), "mtp-wall") as page:
        page.generate([2, 17], 4)
        assert page.evaluate("() => client.inspect()")["objects"] > 0
        assert page.evaluate("() => client.unload()") == 0
        assert page.evaluate("() => client.unload()") == 0
        refused = page.evaluate("() => client.generate({ kind: 'ids', ids: [2] }, { maxNewTokens: 1 })"
                                ".then(() => null, (error) => error.payload())")
        assert refused is not None


def model_for(mutant: str) -> str:
    return "tiny-unified" if mutant in mutants.UNIFIED_ONLY else "tiny-rand"


MUTANTS: Final = sorted({*mutants.MUTANTS, Fault.NIBBLE_ORDER} - mutants.REFUSED)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_program_is_noticed(chrome: Chrome, bundles: Bundles, name: str) -> None:
    """Each plausible mistake, as a consistent program in the real runtime, must fail the comparison of this file."""
    form = "q4" if name == Fault.NIBBLE_ORDER else "f32"
    variant = "mtp-wall" if name in mutants.ROUND_ONLY else "plain-wall"
    model = model_for(name)
    wanted, drafts = reference_passes(model, form, variant.split("-")[0], 2)
    with opened(chrome, bundles(model, form, mutant=name), variant) as page:
        passes = page.passes(golden(model, form)[2]["prompt"], STEPS)
    noticed = worst(passes, wanted) > TOLERANCE
    if variant == "mtp-wall":
        noticed = noticed or [tuple(item.drafts) for item in passes[-STEPS:]] != drafts
    assert noticed


@pytest.mark.parametrize("name", sorted(mutants.REFUSED))
def test_a_program_that_breaks_a_contract_is_refused(chrome: Chrome, bundles: Bundles, name: str) -> None:
    """X5, X7, X8 and the ring's capacity: the loader refuses before any weight is fetched, and says which file."""
    broken = bundles(model_for(name), "f32", prefill_rows=8, mutant=name)
    with pytest.raises(Exception, match=r"k2_round\.g4p"), opened(chrome, broken, "mtp-wall"):
        pytest.fail("it was loaded")
