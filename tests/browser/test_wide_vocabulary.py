"""A model of 32,768 tokens: the head's kernels over digits, argmax and scatter in the whole runtime (G5, R12, O9, P33); the
same where one binding does not hold the head (O10).

The fixture models' vocabularies are too small for these ways, so the tiny random one gets more tokens here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import ModelPage, Pass, bundle_with, change_file, opened

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.oracle.model import PlainModel
from gemma4web.oracle.ops import Array
from gemma4web.oracle.weights import from_checkpoint
from gemma4web.program.decoder import ASSISTANT_PREFIX

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

VOCABULARY: Final = 32768
SEED: Final = 20261130
PROMPT: Final = (2, 17, 400, 30901, 33)
ALL_ROUTES: Final = -1
NO_ROUTE: Final = 1 << 30
DIGITS: Final = 0b1111 << 11
PARTS: Final = 1 << 10 | 1 << 21 | 1 << 22
"""Bits of ops/route.h: embeddings, linear ops and gathered ones in parts."""
TOLERANCE: Final = 1e-3
"""Of a logit against float64, as for the other models."""


def widened(name: str, values: Array, rng: np.random.Generator) -> Array:
    """Token tables with random rows behind their own; the ordering as another permutation, so centroids own more tokens."""
    if name.endswith("token_ordering"):
        return rng.permutation(VOCABULARY).astype(np.int64)
    if "embed_tokens" not in name:
        return values
    more = rng.standard_normal((VOCABULARY - len(values), values.shape[1]), np.float32) * values.std()
    return np.concatenate([values, more])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("wide"), REPOSITORY / "fixtures/tiny-rand"
    rng = np.random.default_rng(SEED)
    model = from_checkpoint(source / "target", source / "assistant", dtype=np.float32)
    weights = {name: widened(name, values, rng) for name, values in model.weights.items()}
    for part in ("target", "assistant"):
        (folder / part).mkdir()
        config: dict[str, Any] = json.loads((source / part / "config.json").read_bytes())
        text = config.get("text_config", config)
        text["vocab_size"] = VOCABULARY
        text["vocab_size_per_layer_input"] = VOCABULARY if text["vocab_size_per_layer_input"] else 0
        (folder / part / "config.json").write_text(json.dumps(config))
        (folder / part / "generation_config.json").write_bytes((source / part / "generation_config.json").read_bytes())
        of_part = {name.removeprefix(ASSISTANT_PREFIX): values for name, values in weights.items()
                   if name.startswith(ASSISTANT_PREFIX) == (part == "assistant")}
        save_file(of_part, folder / part / "model.safetensors")
    return folder


Wide = Callable[..., Path]


@pytest.fixture(scope="module")
def wide(checkpoint: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Wide:
    """A bundle of the model in a weight form. ``limit_bytes``: what its runtime takes for the largest binding."""
    @lru_cache
    def make(form: str = "q4", prefill_rows: int = 16, limit_bytes: int | None = None) -> Path:
        folder = tmp_path_factory.mktemp("bundle")
        exported = export(ExportOptions(
            target=checkpoint / "target", assistant=checkpoint / "assistant", weights=form, out=folder / "export",
            prefill_rows=prefill_rows, all_logits=True, context=64))
        made = bundle_with(bundle, exported, folder / "bundle")
        if limit_bytes is not None:
            change_file(made, "worker.js", f"Object.defineProperty(GPUSupportedLimits.prototype, 'maxStorageBufferBindingSize', "
                                           f"{{ get: () => {limit_bytes} }});\n")
        return made

    return make


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> tuple[list[int], Array]:
    """The first tokens of plain decoding, and the logits of the prompt, in float64."""
    plain = PlainModel(from_checkpoint(checkpoint / "target", None, form="q4"))
    tokens = [plain.prefill(list(PROMPT))]
    for step in range(5):
        tokens.append(plain.step(tokens[-1], len(PROMPT) + step))
    return tokens, plain.logits[0]


@pytest.mark.parametrize(("route_mask", "head"), [
    (ALL_ROUTES, {"plain-wall": "linear_q4_dp4a_subgroup", "mtp-wall": "linear_q4_dp4a_m3_subgroup"}),
    (NO_ROUTE, {"plain-wall": "generic", "mtp-wall": "generic"}),
], ids=["every route", "generic kernels"])
@pytest.mark.parametrize("variant", ["plain-wall", "mtp-wall"])
def test_a_wide_head_has_the_references_logits_and_tokens(
        chrome: Chrome, wide: Wide, reference: tuple[list[int], Array], variant: str, route_mask: int,
        head: dict[str, str]) -> None:
    tokens, logits = reference
    with opened(chrome, wide(), variant, route_mask=route_mask) as page:
        sites = page.opened["routes"]["sites"]
        taken = {site.get("round", "") for site in sites} | {rows["route"] for site in sites for rows in site["rows"]}
        assert head[variant] in taken
        found = page.generate(PROMPT, len(tokens))
        passes = page.passes(PROMPT, 0)
    assert found["tokens"] == tokens
    assert float(np.abs(np.concatenate([item.logits for item in passes]) - logits).max()) <= TOLERANCE


LIMITS: Final = {"q4": 720_000, "f32": 5_800_000}
"""Bytes of a binding: a third of the head's, with room for whole aligned rows."""


def ways_of(page: ModelPage, op: str) -> set[str]:
    sites = [site for site in page.opened["routes"]["sites"] if site["op"] == op]
    return {site["round"] for site in sites if "round" in site} | {rows["route"] for site in sites for rows in site["rows"]}


@pytest.mark.parametrize(("variant", "form", "route_mask", "head"), [
    ("mtp-wall", "q4", ALL_ROUTES, {"linear_q4_dp4a_m3_subgroup"}),
    ("mtp-wall", "q4", ALL_ROUTES & ~DIGITS, {"linear_q4_m3_subgroup"}),
    ("mtp-wall", "q4", PARTS, {"linear_parts"}), ("mtp-wall", "f32", PARTS, {"linear_parts"}),
], ids=["digits", "three rows", "generic", "f32"])
def test_a_head_in_parts_has_the_bits_of_a_whole_one(
        chrome: Chrome, wide: Wide, reference: tuple[list[int], Array], variant: str, form: str, route_mask: int,
        head: set[str]) -> None:
    """O10, R12: three parts; logits, tokens and drafts of prompt, steps and rounds."""
    found: list[tuple[dict[str, Any], list[Pass]]] = []
    for limit_bytes in (None, LIMITS[form]):
        with opened(chrome, wide(form, 3, limit_bytes), variant, route_mask=route_mask) as page:
            split = limit_bytes is not None
            assert ("embedding_parts" in ways_of(page, "Embedding")) == split
            assert ("gather_linear_parts" in ways_of(page, "GatherLinear")) == (split and variant == "mtp-wall")
            assert ("linear_parts" in ways_of(page, "Linear")) == split
            assert not split or head & ways_of(page, "Linear")
            found.append((page.generate(PROMPT, 6), page.passes((*PROMPT, 401), 3)))  # in passes of three rows
    (whole, passes), (parts, passes_in_parts) = found
    assert whole["tokens"] == parts["tokens"] and whole["rounds"] == parts["rounds"]
    assert form == "f32" or parts["tokens"] == reference[0]
    for one, other in zip(passes, passes_in_parts, strict=True):
        assert one.tokens == other.tokens and one.drafts == other.drafts
        assert np.array_equal(one.logits, other.logits)
