"""The two stages of a decode step's attention one after the other: as the generic kernel, and bit for bit row by row."""

from __future__ import annotations

import numpy as np
import pytest
from cases_attention_ways import ATTENTION, combine, decode_split, splits_of
from kernel_case import SEED, Case, build, compare, dispatch, kernels, single_row
from tests.support.gpu_page import GpuPage


def run_stages(page: GpuPage, made: Case, splits: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    between, problems = dispatch(page, decode_split(made, splits, blank=True))
    found, more = dispatch(page, combine(made, splits, between["values"], between["stats"]))
    assert not problems + more
    return found["out"]


@pytest.mark.browser
@pytest.mark.parametrize("splits", [0, 1, 3], ids=["all", "one", "three"])
@pytest.mark.parametrize("name", ATTENTION)
def test_decode_stages(gpu_page: GpuPage, name: str, splits: int) -> None:
    made = build(name)
    found = run_stages(gpu_page, made, splits or splits_of(made))
    problem = compare(found, made.outputs["out"], kernels()["attention_combine"].header.tolerance)
    assert not problem, f"{problem}; GEMMA4WEB_SEED={SEED} makes the same inputs"


@pytest.mark.browser
@pytest.mark.parametrize("name", [name for name in ATTENTION if build(name).params["rows"] > 1])
def test_a_row_of_three_is_the_row_alone(gpu_page: GpuPage, name: str) -> None:
    """P33: rows of one pass, each of them alone: equal bits."""
    made = build(name)
    rows = int(made.params["rows"])
    together = run_stages(gpu_page, made, splits_of(made)).reshape(rows, -1)
    for row in sorted({0, 1, rows - 1}):
        alone = run_stages(gpu_page, single_row(made, row), splits_of(made))
        assert alone.tobytes() == together[row].tobytes()
