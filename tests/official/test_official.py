"""Random models against the official implementation (Hugging Face transformers): X22, R3, R12, O10, V5.

Needs the extra `official`, which neither set-up nor the other tests install:

    .venv/bin/python -m pip install -e '.[test,official]'
    .venv/bin/python -m tests.official --cases 60 --browser 15

draws 60 models over everything that the exporter accepts (`cases.TABLE`), has the official classes make and save them,
exports them, and compares logits, greedy tokens and drafts of the reference model and of the staged bundle in headless
Chromium with what those classes compute in float64 (`comparison`). It ends with a table and a record; a case that fails
keeps its folder and is run alone with `--seed`. The tests here are a handful of such cases.
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="the extra `official` is not installed: pip install -e '.[official]'")
torch = pytest.importorskip("torch", reason="the extra `official` is not installed: pip install -e '.[official]'")

from tests.official.__main__ import BUNDLE
from tests.official.cases import draw_case
from tests.official.comparison import compare
from tests.support.chrome import Chrome

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
