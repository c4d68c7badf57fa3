"""Every group and type of scales in the whole runtime, by every route and by none, against float64 (G5, G6, R12, O10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import bundle_with, opened

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.oracle.decode import plain, speculative
from gemma4web.oracle.model import PlainModel, RoundModel
from gemma4web.oracle.ops import Array
from gemma4web.oracle.weights import from_checkpoint
from gemma4web.program.ir import ScaleDtype

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

TINY: Final = REPOSITORY / "fixtures/tiny-rand"
FORMS: Final = [(group, dtype) for group in (32, 64, 128) for dtype in ScaleDtype]
MASKS: Final = {"every route": -1, "no fusion": ~(0b11111 << 24), "generic kernels": 1 << 30}
"""The last is a bit that no route has."""
TOLERANCE: Final = 1e-3
COUNT: Final = 12


def name_of(value: object) -> str | None:
    return value.name.lower() if isinstance(value, ScaleDtype) else None


@lru_cache(maxsize=1)
def reference(group: int, scale_dtype: ScaleDtype) -> tuple[list[int], list[int], list[tuple[int, ...]], Array]:
    """A prompt, its continuation, the drafts of its rounds, and the logits of the prompt's rows, in float64."""
    prompt: list[int] = json.loads((TINY / "golden_q4.json").read_bytes())[2]["prompt"]
    model = from_checkpoint(TINY / "target", TINY / "assistant", form="q4", group=group, scale_dtype=scale_dtype)
    one = PlainModel(model)
    tokens = plain(one, prompt, COUNT).tokens
    rounds = speculative(RoundModel(model), prompt, COUNT)
    assert rounds.tokens == tokens
    return prompt, list(tokens), [tuple(item.drafts) for item in rounds.rounds], one.logits[0]


@pytest.fixture(scope="module")
def bundles(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, ScaleDtype], Path]:
    @lru_cache
    def make(group: int, scale_dtype: ScaleDtype) -> Path:
        folder = tmp_path_factory.mktemp("scales")
        exported = export(ExportOptions(
            target=TINY / "target", assistant=TINY / "assistant", weights="q4", group_size=group, scale_dtype=scale_dtype,
            out=folder / "export", prefill_rows=64, all_logits=True, context=128))
        return bundle_with(bundle, exported, folder / "bundle")

    return make


@pytest.mark.parametrize(("variant", "group", "scale_dtype"), [
    *(("mtp-wall", *form) for form in FORMS), ("plain-wall", 64, ScaleDtype.F32)], ids=name_of)
def test_logits_tokens_and_drafts_are_the_references(
        chrome: Chrome, bundles: Callable[[int, ScaleDtype], Path], variant: str, group: int,
        scale_dtype: ScaleDtype) -> None:
    prompt, tokens, drafts, logits = reference(group, scale_dtype)
    for name, mask in MASKS.items():
        if name == "no fusion" and (group, scale_dtype) != (64, ScaleDtype.F32):
            continue  # how a fusion reads scales does not depend on their group
        with opened(chrome, bundles(group, scale_dtype), variant, route_mask=mask) as page:
            routes: dict[str, Any] = page.opened["routes"]
            found = page.generate(prompt, len(tokens))
            passes = page.passes(prompt, 0)
        taken = {rows["route"] for site in routes["sites"] for rows in site["rows"]}
        assert ({"linear_q4_m1_subgroup", "linear_q4_tiled"} <= taken) == (name != "generic kernels")
        assert bool(routes["fusions"]) == (name == "every route")
        assert found["tokens"] == tokens, name
        if variant == "mtp-wall":
            assert [tuple(item["drafts"]) for item in found["rounds"]] == drafts, name
        assert float(np.abs(np.concatenate([item.logits for item in passes]) - logits).max()) <= TOLERANCE, name


def test_groups_are_told_apart() -> None:
    """The references differ by more than the tolerance. This model's scales fit f16, but not the bytes of f32 ones."""
    logits = [reference(group, ScaleDtype.F16)[3] for group in (32, 64, 128)]
    for number, one in enumerate(logits):
        for other in logits[:number]:
            assert float(np.abs(one - other).max()) > 2 * TOLERANCE
