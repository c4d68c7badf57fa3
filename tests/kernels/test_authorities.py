"""The authorities of TopK, Scatter and M=3 Q4: pinned, strict, equal to oracle and kernels (V3, V4, O1 to O3, O6)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import authorities
import numpy as np
import pytest
from cases_linear_routes import Weight, linear_route_case
from kernel_case import Case, Expected, run_case
from tests.support.gpu_page import GpuPage

from gemma4web.errors import Gemma4WebError, KernelError
from gemma4web.oracle import ops


def test_committed_digests() -> None:
    authorities.check_digests()


def test_absent_digests_fail(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="does not exist"):
        authorities.check_digests(tmp_path / "authority_digests.json")


@pytest.mark.parametrize("change", ["changed", "dropped", "added", "schema", "no JSON"])
def test_changed_digests_fail(tmp_path: Path, change: str) -> None:
    content = json.loads(authorities.DIGESTS.read_text())
    name = "top_k odd 32"
    if change == "changed":
        content["sha256"][name] = "0" * 64
    elif change == "dropped":
        del content["sha256"][name]
    elif change == "added":
        content["sha256"]["top_k odd 33"] = "0" * 64
    elif change == "schema":
        content["schema"] = 2
    path = tmp_path / "digests.json"
    path.write_text("{" if change == "no JSON" else json.dumps(content))
    with pytest.raises(Gemma4WebError):
        authorities.check_digests(path)


@pytest.mark.parametrize("kind", ["random", "ties", "odd"])
@pytest.mark.parametrize("k", [1, 32, 2048])
def test_the_oracle_agrees_on_top_k(kind: str, k: int) -> None:
    for found, wanted in zip(ops.top_k(authorities.scores(kind), k), authorities.top_k(authorities.scores(kind), k),
                             strict=True):
        assert found.tobytes() == wanted.tobytes()


@pytest.mark.parametrize("kind", ["duplicates", "range", "unique"])
def test_the_oracle_agrees_on_scatter(kind: str) -> None:
    case = authorities.writes(kind)
    assert ops.scatter(*case).tobytes() == authorities.scatter(*case).tobytes()
    duplicates = np.unique(case[1]).size != case[1].size
    assert duplicates == (kind != "unique")


def test_fixed_inputs_hold_what_they_are_for() -> None:
    odd, index = authorities.scores("odd"), authorities.writes("range")[1]
    assert np.isnan(odd).sum() > 32 and np.isinf(odd).any() and np.signbit(odd[odd == 0]).any()
    assert (~np.signbit(odd[odd == 0])).any() and (index < 0).any() and (index >= 5003).any()
    assert np.unique(authorities.scores("ties")).size == 5


_X = np.zeros((1, 8), np.float32)
_I = np.zeros((1, 3), np.int32)
_S = np.zeros((1, 3), np.float32)


@pytest.mark.parametrize(("x", "k", "message"), [
    (_X.astype(np.float64), 2, "top-k x is float64, wanted float32"),
    (_X.astype(np.int32), 2, "top-k x is int32"),
    (_X[0], 2, r"top-k x is \[8\], wanted \[1, n\]"),
    (_X.reshape(2, 4), 2, r"top-k x is \[2, 4\]"),
    (_X[:, :0], 1, r"top-k x is \[1, 0\]"),
    (_X, 0, "k is 0, wanted a whole number in 1..8"), (_X, 9, "k is 9"), (_X, -1, "k is -1"), (_X, 2.0, "k is 2.0"),
    (_X, True, "k is True"),
])
def test_malformed_top_k(x: Any, k: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        authorities.top_k(x, k)


@pytest.mark.parametrize(("template", "index", "source", "message"), [
    (_X.astype(np.float16), _I, _S, "template is float16"),
    (_X[0], _I, _S, r"template is \[8\]"),
    (_X, _I.astype(np.int64), _S, "index is int64, wanted int32"),
    (_X, _I.astype(np.float32), _S, "index is float32"),
    (_X, _I[0], _S, r"index is \[3\]"),
    (_X, _I, _S[:, :2], r"source is \[1, 2\], wanted \[1, 3\]"),
    (_X, _I, _I, "source is int32"),
])
def test_malformed_scatter(template: Any, index: Any, source: Any, message: str) -> None:
    for function in (authorities.scatter, authorities.scatter_unique):
        with pytest.raises(KernelError, match=f"{message}|twice"):
            function(template, index, source)
    with pytest.raises(KernelError, match=message):
        authorities.scatter(template, index, source)


def test_unique_scatter_of_duplicates_is_refused() -> None:
    with pytest.raises(KernelError, match="twice"):
        authorities.scatter_unique(*authorities.writes("duplicates"))


@pytest.mark.parametrize("kind", ["f16", "f32", "wide"])
def test_the_oracle_agrees_on_the_product(kind: str) -> None:
    x, values, scales, group = authorities.product(kind)
    dense = ops.unpack_q4(values, scales)
    size = ops.linear(np.abs(x), np.abs(dense))
    assert np.all(np.abs(ops.linear(x, dense) - authorities.linear_q4_m3(x, values, scales, group)) <= 1e-13 * size)


_V = np.zeros((5, 32), np.uint8)
_F = np.zeros((5, 2), np.float32)
_R = np.zeros((3, 64), np.float32)


@pytest.mark.parametrize(("x", "values", "scales", "group", "message"), [
    (_R.astype(np.float64), _V, _F, 32, "x is float64"), (_R[:2], _V, _F, 32, r"x is float32 \[2, 64\]"),
    (_R[:, :48], _V, _F, 32, "k is 48"), (_R, _V, _F, 16, "groups of 16"), (_R, _V, _F, 128, "k is 64"),
    (_R, _V.astype(np.int8), _F, 32, "values are int8"), (_R, _V[:, :31], _F, 32, r"values are uint8 \[5, 31\]"),
    (_R, _V, _F.astype(np.float64), 32, "scales are float64"), (_R, _V, _F[:, :1], 32, r"scales are float32 \[5, 1\]"),
    (_R, _V, _F[:4], 32, r"scales are float32 \[4, 2\]"),
])
def test_malformed_product(x: Any, values: Any, scales: Any, group: Any, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        authorities.linear_q4_m3(x, values, scales, group)


@pytest.mark.browser
@pytest.mark.parametrize("kernel", ["linear_q4_m3", "linear_q4_m3_subgroup"])
@pytest.mark.parametrize("kind", ["f16", "f32", "wide"])
def test_the_product_kernels_equal_the_authority(gpu_page: GpuPage, kernel: str, kind: str) -> None:
    """O6: three rows, raw f32 scales too."""
    x, values, scales, group = authorities.product(kind)
    weight = Weight(values=values, scales=scales, bias=None, group=group)
    made = linear_route_case(kernel, x, weight, lanes=16, subgroup=4 if kernel.endswith("subgroup") else 1)
    wanted = authorities.linear_q4_m3(x, values, scales, group)
    out = made.outputs["out"]
    assert run_case(gpu_page, replace(made, outputs={"out": replace(out, values=wanted)})) == []


@pytest.mark.browser
@pytest.mark.parametrize("kernel", ["topk", "topk_staged"])
@pytest.mark.parametrize("kind", ["random", "ties", "odd"])
def test_top_k_kernels_equal_the_authority(gpu_page: GpuPage, kernel: str, kind: str) -> None:
    """O1: the staged route and the generic kernel give the same bits."""
    values, indices = authorities.top_k(authorities.scores(kind), 32)
    made = Case(kernel=kernel, inputs={"x": authorities.scores(kind)},
                outputs={"values": Expected(values=values), "indices": Expected(values=indices)},
                params={"n": 2048, "k": 32} if kernel == "topk" else {"k": 32})
    assert run_case(gpu_page, made) == []


@pytest.mark.browser
@pytest.mark.parametrize(("kernel", "kind"), [("scatter", "duplicates"), ("scatter", "range"), ("scatter", "unique"),
                                              ("scatter_unique", "unique")])
def test_scatter_kernels_equal_the_authority(gpu_page: GpuPage, kernel: str, kind: str) -> None:
    template, index, source = authorities.writes(kind)
    made = Case(kernel=kernel, inputs={"index": index, "source": source},
                outputs={"out": Expected(values=authorities.scatter(template, index, source), before=template)},
                params={"count": index.size, "size": template.size})
    assert run_case(gpu_page, made) == []
