"""bench-kernels before any browser: rows, dispatches, data and its reference, and what is refused."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemma4web.errors import KernelError, RecordError, UsageError
from gemma4web.kernel_bench import peers
from gemma4web.kernel_bench.cases import Role, make_case
from gemma4web.kernel_bench.command import KERNELS, kernels_of, main
from gemma4web.kernel_bench.contenders import CONTENDERS, Contender, obstacle
from gemma4web.kernel_bench.dispatches import DeviceFacts, Dispatch, Scratch, pack_params
from gemma4web.kernel_bench.jobs import copies_of, entrants_of, prepare_job
from gemma4web.kernel_bench.rows import ROWS, Operation, Row, choose_rows
from gemma4web.oracle import ops

FACTS = DeviceFacts(features=frozenset(), limits={})
SMALL = Row(name="linear small", operation=Operation.LINEAR, sizes={"m": 3, "k": 64, "n": 5})


def row_of(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def test_rows_are_named_once_and_chosen_by_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert [row.name for row in choose_rows("topk|^scatter", quick=True)] == ["topk 2048->32", "scatter 4096->262144"]
    assert {row.sizes.get("m", 1) for row in choose_rows("", quick=True)} == {1, 3, 16}
    assert {row.sizes.get("m", 1) for row in choose_rows("", quick=False)} == {1, 3, 16, 128, 512}


@pytest.mark.parametrize(("pattern", "quick", "says"), [
    ("softmax", False, "matches no row"), ("(", False, "no regular expression"), ("M=128", True, "more than 16 tokens")])
def test_a_choice_of_nothing_is_refused(pattern: str, quick: bool, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        choose_rows(pattern, quick=quick)


def test_traffic_and_work_are_counted_by_hand() -> None:
    assert SMALL.traffic_bytes(f16=False) == 5 * 32 + 5 * 2 * 2 + 3 * 64 * 4 + 3 * 5 * 4
    assert SMALL.traffic_bytes(f16=True) == 5 * 32 + 5 * 2 * 2 + 3 * 64 * 2 + 3 * 5 * 2
    assert SMALL.flops() == 2 * 3 * 64 * 5
    attention = row_of("attention 8 heads d=256 past=511")
    assert attention.traffic_bytes(f16=False) == 4 * 256 * (2 * 512 + 2 * 8)
    assert attention.flops() == 4 * 8 * 512 * 256


def test_every_row_has_a_contender_of_ours_that_fits_its_kernels() -> None:
    """Bindings, params and buffers are those that the committed kernels have."""
    kernels = kernels_of(KERNELS)
    for row in (row_of("linear 256->1536 M=1"), *(row for row in ROWS if row.operation is not Operation.LINEAR)):
        entrants, _ = entrants_of(row, kernels, FACTS)
        assert entrants, row.name
        job, payloads = prepare_job(make_case(row, 1), entrants, [], kernels, copies=2)
        announced = {buffer["name"] for buffer in job["buffers"]}
        for entry in job["ours"]:
            assert set(entry["results"].values()) <= announced, entry["name"]
            for step in entry["steps"]:
                assert {name for name in step["buffers"] if name is not None} <= announced
                assert step["buffers"].count(None) == step["kinds"].count("uniform") == 1
        assert set(payloads) == {buffer["name"] for buffer in job["buffers"] if buffer["role"] != Role.OUTPUT}
        assert all(len(data) % 4 == 0 for data in payloads.values())


def test_a_contender_without_its_kernel_or_feature_is_left_out_with_the_reason() -> None:
    kernels = kernels_of(KERNELS)
    ghost = Contender(name="ghost", plan=lambda row, facts: [Dispatch(kernel="no_such", params={})])
    never = Contender(name="never", plan=lambda row, facts: None)
    entrants, left_out = entrants_of(SMALL, kernels, FACTS, [ghost, never, *CONTENDERS])
    assert [one.contender.name for one in entrants] == ["linear_q4", "linear_q4_m3", "linear_q4_tiled"]
    assert left_out == {"ghost": "this checkout has no kernel no_such"}
    assert obstacle([Dispatch(kernel="topk", params={})], kernels, FACTS) is None


def test_a_fused_kernel_and_its_twin_are_of_one_row() -> None:
    """Each stands for another contender of the same rows, whose results it has."""
    kernels, wide = kernels_of(KERNELS), DeviceFacts(features=frozenset({"subgroups"}), limits={}, subgroup_min=32)
    compared = set()
    for row in ROWS:
        entrants = {one.contender.name: one for one in entrants_of(row, kernels, wide)[0]}
        for one in entrants.values():
            if one.contender.stands_for:
                twin = entrants[one.contender.stands_for]
                assert twin.results == one.results and len(twin.dispatches) > len(one.dispatches) == 1
                compared.add(row.operation)
    assert compared == {Operation.GATED, Operation.QKV, Operation.NORM_PAIR, Operation.CACHE_PAIR}


def test_scratch_is_announced_and_an_unknown_buffer_refused() -> None:
    kernels = kernels_of(KERNELS)
    params = {"rows": 3, "k": 64, "n": 5, "group_shift": 1, "flags": 0, "first": 0, "stride": 5}
    between = Contender(name="between", plan=lambda row, facts: [
        Dispatch(kernel="linear_q4", params=params, bindings={"out": Scratch(name="partial", size_bytes=60)})])
    wrong = Contender(name="wrong", plan=lambda row, facts: [Dispatch(kernel="linear_q4", params=params, bindings={"x": "y"})])
    case = make_case(SMALL, 1)
    job, _ = prepare_job(case, entrants_of(SMALL, kernels, FACTS, [between])[0], [], kernels, copies=1)
    assert {"name": "partial", "size": 60, "role": "output", "rotated": False} in job["buffers"]
    with pytest.raises(KernelError, match="linear_q4 binds 'x' to 'y'"):
        prepare_job(case, entrants_of(SMALL, kernels, FACTS, [wrong])[0], [], kernels, copies=1)


def test_params_are_packed_in_the_kernels_order() -> None:
    kernel = kernels_of(KERNELS)["linear_q4"]
    assert pack_params(kernel, {"n": 3, "k": 2, "rows": 1, "flags": 5, "group_shift": 4, "stride": 7, "first": 6}) == np.array(
        [1, 2, 3, 4, 5, 6, 7, 0], "<u4").tobytes()
    with pytest.raises(KernelError, match="linear_q4 has params rows, k, n, group_shift, flags, first, stride"):
        pack_params(kernel, {"rows": 1})


def test_the_same_seed_gives_the_same_data_and_another_gives_other() -> None:
    first, again, other = (make_case(SMALL, seed).buffers["x"].data for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.array_equal(first, first.astype(np.float16))


def test_the_reference_accepts_the_right_answer_and_no_other() -> None:
    case = make_case(SMALL, 1)
    weights = ops.unpack_q4(case.buffers["values"].data, case.buffers["scales"].data)
    right = ops.linear(case.buffers["x"].data, weights).astype(np.float32).reshape(-1)
    assert case.error({"out": right}) < 1e-6
    swapped = ops.unpack_q4(case.buffers["values"].data, case.buffers["scales"].data, swap_nibbles=True)
    assert case.error({"out": ops.linear(case.buffers["x"].data, swapped).reshape(-1)}) > 1e-3
    right[3] = np.nan
    assert case.error({"out": right}) == np.inf


@pytest.mark.parametrize("name", ["topk 2048->32", "scatter 4096->262144"])
def test_exact_rows_refuse_one_wrong_element(name: str) -> None:
    case = make_case(row_of(name), 1)
    if name.startswith("topk"):
        values, indices = ops.top_k(case.buffers["x"].data, 32)
        right = {"values": values[0], "indices": indices[0]}
    else:
        out = case.buffers["template"].data.copy()
        out[case.buffers["index"].data] = case.buffers["source"].data
        right = {"out": out}
    assert case.error(right) == 0.0
    for result in right:
        wrong = right[result].copy()
        wrong[-1] += 1
        assert case.error({**right, result: wrong}) == np.inf


def test_copies_outgrow_a_cache_on_a_gpu_alone() -> None:
    case = make_case(row_of("linear 256->1536 M=1"), 1)
    assert copies_of(case, software=True) == 1
    assert copies_of(case, software=False) == 512
    assert copies_of(make_case(row_of("rms_norm 1536 M=1"), 1), software=False) == 1


def test_the_command_needs_no_playwright() -> None:
    code = "import sys; import gemma4web.kernel_bench.command; assert 'playwright' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_missing_onnx_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_onnx(name: str, *words: Any, **named: Any) -> Any:
        if name == "onnx":
            raise ImportError("No module named 'onnx'")
        return real(name, *words, **named)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(UsageError, match=r"pip install -e '\.\[bench\]'"):
        main(["--ort", "somewhere"])


def test_a_broken_peer_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no whole onnxruntime-web package: it has no package\.json, dist/ort\.webgpu"):
        peers.check_package(tmp_path)
    (tmp_path / "dist").mkdir()
    for name in peers._FILES:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UsageError, match="not that of onnxruntime-web"):
        peers.check_package(tmp_path)
    (tmp_path / "package.json").write_text(json.dumps({"name": "onnxruntime-web", "version": "1.2.3"}))
    assert peers.check_package(tmp_path) == "1.2.3"


@pytest.mark.parametrize(("words", "says"), [
    (["--rows", "softmax"], "matches no row"), (["--repeats", "0"], "measures nothing"),
    (["--seed", "-1"], "--seed -1, wanted at least 0"), (["--deadline", "nan"], "--deadline nan gives no step"),
    (["--deadline", "0"], "gives no step any time"), (["--deadline", "inf"], "gives no step any time"),
    (["--record", "same", "--report", "./same"], "are both same"), (["--record", "/proc/no/such"], "--record /proc/no/such cannot"),
    (["--report", "/"], "--report / cannot be written: it is a folder"),
    (["--browser-json", "no/such.json"], "no Chromium is named"), (["--browser", "no/such"], "no/such is no file"),
    (["--no-peer", "--kernels", "no/such"], "has no")])
def test_wrong_options_are_refused_before_a_browser_starts(words: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        main(words)


def test_nothing_is_fetched_before_what_is_named_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing browser or a wrong option is told at once, and leaves no file."""
    fetched: list[object] = []
    monkeypatch.setattr("gemma4web.kernel_bench.command.peer_package", fetched.append)
    monkeypatch.chdir(tmp_path)
    for words in (["--browser-json", "no/such.json"], ["--seed", "-1"], ["--report", "."]):
        with pytest.raises(UsageError):
            main(words)
    assert fetched == [] and not [path for path in tmp_path.rglob("*") if path.is_file()]


class Stopped(Exception):
    pass


@pytest.mark.parametrize("ended", [KeyboardInterrupt(), SystemExit(143), Stopped("bang"), None])
def test_whatever_ends_a_run_is_told_though_the_record_cannot_be_written(
        monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str],
        ended: BaseException | None) -> None:
    """The table is printed, the other file written, and the first trouble is the one that is raised."""
    folder = tmp_path / "records"

    def measured(plan: Any, run: Any, kernels: Any, progress: Any, tell: Any) -> None:
        progress.opened = {"vendor": "v", "architecture": "a", "software": True, "features": [], "limits": {}, "ort": "",
                           "browserVersion": "1", "hasTimestamps": True, "quantumNs": 1.0}
        progress.complete = True
        folder.rmdir()
        folder.write_text("in the way")
        if ended is not None:
            raise ended

    monkeypatch.setattr("gemma4web.kernel_bench.command.measure", measured)
    words = ["--no-peer", "--browser", sys.executable, "--record", str(folder / "r.json"), "--report", str(tmp_path / "r.html")]
    with pytest.raises(RecordError if ended is None else type(ended)) as caught:
        main(words)
    shown = capsys.readouterr().out
    assert "row and contender" in shown and f"report {tmp_path / 'r.html'}" in shown.replace("\n", " ")
    told = str(caught.value) if ended is None else shown
    assert "r.json cannot be written" in told and "remedy: make room there" in told
    reasons = {KeyboardInterrupt: "interrupted", SystemExit: "terminated", Stopped: "Stopped: bang"}
    assert reasons.get(type(ended), "") in (tmp_path / "r.html").read_text()


def test_the_rows_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--rows", "topk"]) == 0
    assert capsys.readouterr().out == "topk 2048->32\n"


@pytest.mark.parametrize("f16", [False, True])
def test_the_peers_models_are_valid(f16: bool) -> None:
    onnx = pytest.importorskip("onnx")
    for row in (SMALL, *(row for row in ROWS if row.operation is not Operation.LINEAR and row.quick)):
        made = peers.peers_of(row, f16=f16)
        assert len(made) == (0 if row.operation is Operation.CACHE_PAIR else 1 + f16)
        if not made:
            continue
        peer = made[-1]
        model = onnx.load_from_string(peer.model)
        onnx.checker.check_model(model)
        case = make_case(row, 1)
        assert set(peer.results) == set(CONTENDERS[0].results(row))
        for port in (*peer.feeds, *peer.fetches):
            assert np.prod(port.dims) == case.buffers[port.buffer].data.size, (row.name, port.name)
