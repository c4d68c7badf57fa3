"""bench-kernels on the software adapter, without the peer: records are whole, wrong kernels get no time, nothing is lost."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gemma4web.chromium import Chromium, processes_of, runs_folder
from gemma4web.errors import BrowserError
from gemma4web.kernel_bench import measure, peers
from gemma4web.kernel_bench.command import KERNELS, main
from gemma4web.kernel_bench.record import KernelBench, fused_ratio
from gemma4web.kernel_bench.rows import Row

pytestmark = pytest.mark.browser


def command(chromium: Chromium, folder: Path, rows: str, *more: str) -> list[str]:
    return ["--no-peer", "--rows", rows, "--repeats", "2", "--deadline", "60", "--browser", str(chromium.executable),
            "--record", str(folder / "r.json"), "--report", str(folder / "r.html"), *more]


def record_in(folder: Path) -> KernelBench:
    return msgspec.json.decode((folder / "r.json").read_bytes(), type=KernelBench)


def test_two_rows_are_checked_and_measured(chromium: Chromium, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(chromium, tmp_path, "^rms_norm 1536 M=3$|^linear 256->1536 M=1$")) == 0
    bench = record_in(tmp_path)
    assert bench.complete and bench.adapter.software and bench.quick
    assert bench.roofline is not None and bench.roofline.read_bytes_per_s > 0 and bench.roofline.f32_flops > 0
    assert [(row.name, [(entry.name, entry.status, entry.dispatches) for entry in row.entries]) for row in bench.rows] == [
        ("linear 256->1536 M=1", [("linear_q4", "ok", 1), ("linear_q4_m1", "ok", 1), ("linear_q4_m1_subgroup", "ok", 1)]),
        ("rms_norm 1536 M=3", [("rms_norm", "ok", 1), ("rms_norm_wide", "ok", 1)])]
    for row in bench.rows:
        for entry in row.entries:
            assert entry.pass_us is not None and entry.pass_us.samples == 2 and entry.pass_us.min_us > 0
            assert entry.error is not None and entry.error <= entry.tolerance
    assert "software adapter" in capsys.readouterr().out
    assert "Nothing was compared." in (tmp_path / "r.html").read_text()


def test_fused_kernels_are_measured_beside_what_they_stand_for(chromium: Chromium, tmp_path: Path) -> None:
    assert main(command(chromium, tmp_path, "^(norm|cache) pair .* M=1$")) == 0
    assert [(row.name, [(entry.name, entry.status, entry.dispatches) for entry in row.entries])
            for row in record_in(tmp_path).rows] == [
        ("norm pair 1536 M=1", [("rms_norm_pair", "ok", 1), ("rms_norm x 2", "ok", 2), ("rms_norm_pair_wide", "ok", 1),
                                ("rms_norm_wide x 2", "ok", 2)]),
        ("cache pair 256 M=1", [("cache_write_pair", "ok", 1), ("cache_write x 2", "ok", 2)])]
    for row in record_in(tmp_path).rows:
        assert all(bool(entry.stands_for) == (fused_ratio(entry, row.entries) is not None) for entry in row.entries)


def test_a_peer_that_cannot_be_loaded_is_named(chromium: Chromium, tmp_path: Path) -> None:
    """Files of the right names with nothing in them: at once, and with what to do instead."""
    pytest.importorskip("onnx")
    (tmp_path / "ort/dist").mkdir(parents=True)
    for name in peers._FILES:
        (tmp_path / "ort" / name).write_text("export {};")
    (tmp_path / "ort/package.json").write_text(json.dumps({"name": peers.NAME, "version": "0"}))
    words = command(chromium, tmp_path, "topk", "--ort", str(tmp_path / "ort"))
    words.remove("--no-peer")
    with pytest.raises(BrowserError, match="the page cannot start") as caught:
        main(words)
    assert "--no-peer" in str(caught.value) and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(("old", "new", "status", "says"), [
    ("= values[i];", "= values[i] * 1.001;", "wrong", "tolerance"),
    ("if c + LANES * i < params.width {", "if c > 0u && c + LANES * i < params.width {", "wrong", "unwritten"),
    ("= values[i];", "= valuse[i];", "failed", "valuse"),
])
def test_a_broken_kernel_gets_no_time_and_spares_the_next_row(
        chromium: Chromium, tmp_path: Path, old: str, new: str, status: str, says: str) -> None:
    kernels = shutil.copytree(KERNELS, tmp_path / "kernels")
    path = kernels / "include/norm.wgsl"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(BrowserError, match="failed or are wrong"):
        main(command(chromium, tmp_path, "^rms_norm 1536 M=1$|past=511$", "--kernels", str(kernels)))
    bench = record_in(tmp_path)
    assert not bench.complete
    broken, wide, *others = (entry for row in bench.rows for entry in row.entries)
    for entry in (broken, wide):
        assert entry.status == status and says in entry.message and entry.pass_us is None
    assert [entry.status for entry in others] == ["ok"] * 4


def test_what_was_measured_before_an_interruption_is_kept(chromium: Chromium, tmp_path: Path) -> None:
    words = command(chromium, tmp_path, "rms_norm|attention|linear")
    process = subprocess.Popen([sys.executable, "-m", "gemma4web", "bench-kernels", *words], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert process.stdout is not None
    deadline = time.monotonic() + 120
    seen = next((line for line in process.stdout if " 3/" in line or time.monotonic() > deadline), "")
    assert " 3/" in seen
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    bench = record_in(tmp_path)
    assert (bench.complete, bench.failure, len(bench.rows)) == (False, "interrupted", 2)


def test_a_browser_that_dies_is_noticed_and_the_record_written(
        chromium: Chromium, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = measure.entrants_of, set(runs_folder().iterdir())

    def killing(row: Row, *words: Any) -> Any:
        if "M=3" in row.name:
            for folder in set(runs_folder().glob(f"run-{os.getpid()}-*")) - before:
                for pid in processes_of(folder):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return real(row, *words)

    monkeypatch.setattr(measure, "entrants_of", killing)
    with pytest.raises(BrowserError, match="Chromium ended during"):
        main(command(chromium, tmp_path, "^rms_norm 1536 M=[13]$"))
    bench = record_in(tmp_path)
    assert not bench.complete and "Chromium ended during" in bench.failure
    assert [row.name for row in bench.rows] == ["rms_norm 1536 M=1"]
