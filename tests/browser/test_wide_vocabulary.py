"""A model of 32,768 tokens: the head's kernels over digits, argmax and scatter in the whole runtime (G5, R12, O9, P33).

The fixture models' vocabularies are too small for these ways, so the tiny random one gets more tokens here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import bundle_with, opened

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


@pytest.fixture(scope="module")
def wide(checkpoint: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    exported = export(ExportOptions(target=checkpoint / "target", assistant=checkpoint / "assistant", weights="q4",
                                    out=folder / "export", prefill_rows=16, all_logits=True, context=64), lambda _: None)
    return bundle_with(bundle, exported, folder / "bundle")


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
        chrome: Chrome, wide: Path, reference: tuple[list[int], Array], variant: str, route_mask: int,
        head: dict[str, str]) -> None:
    tokens, logits = reference
    with opened(chrome, wide, variant, route_mask=route_mask) as page:
        sites = page.opened["routes"]["sites"]
        taken = {site.get("round", "") for site in sites} | {rows["route"] for site in sites for rows in site["rows"]}
        assert head[variant] in taken
        found = page.generate(PROMPT, len(tokens))
        passes = page.passes(PROMPT, 0)
    assert found["tokens"] == tokens
    assert float(np.abs(np.concatenate([item.logits for item in passes]) - logits).max()) <= TOLERANCE
