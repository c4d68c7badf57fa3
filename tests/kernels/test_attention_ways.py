"""The stages of attention one after the other: as the generic kernel and as streaming, and bit for bit row by row."""

from __future__ import annotations

import numpy as np
import pytest
from cases_attention_ways import ATTENTION, combine, decode_split, scores, softmax, splits_of, streaming, values
from kernel_case import SEED, Case, Expected, build, compare, dispatch, kernels, single_row
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


def run_materialised(page: GpuPage, made: Case) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    written, problems = dispatch(page, scores(made))
    weighed, more = dispatch(page, softmax(made, written["scores"]))
    found, most = dispatch(page, values(made, weighed["scores"]))
    assert not problems + more + most
    return found["out"]


@pytest.mark.browser
@pytest.mark.parametrize("name", ATTENTION)
def test_materialised_attention_equals_the_generic_and_the_streaming_kernel(gpu_page: GpuPage, name: str) -> None:
    """G8: each within the tolerance of the reference, rows that see nothing and rows with a NaN included; so are they
    within the sum of both of each other."""
    made = build(name)
    tolerance = kernels()["attention_values"].header.tolerance
    found = run_materialised(gpu_page, made)
    streamed, problems = dispatch(gpu_page, streaming(made))
    assert not problems
    other = Expected(values=streamed["out"].astype(np.float64))
    for wanted, allowed in ((made.outputs["out"], tolerance), (other, 2 * tolerance)):
        problem = compare(found, wanted, allowed)
        assert not problem, f"{problem}; GEMMA4WEB_SEED={SEED} makes the same inputs"


@pytest.mark.browser
@pytest.mark.parametrize("name", [name for name in ATTENTION if build(name).params["rows"] > 1])
def test_a_materialised_row_is_the_row_alone(gpu_page: GpuPage, name: str) -> None:
    """P33: whatever rows a tile has besides."""
    made = build(name)
    rows = int(made.params["rows"])
    together = run_materialised(gpu_page, made).reshape(rows, -1)
    for row in sorted({0, 1, rows - 1}):
        assert run_materialised(gpu_page, single_row(made, row)).tobytes() == together[row].tobytes()
