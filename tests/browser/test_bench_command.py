"""`scons bench`: sessions in turned order, cold and warm apart, and a wrong token is no measurement (B5, P58)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pytest
from tests.browser.test_page_use import expected
from tests.support.sites import copy_bundle, flip, replace

from gemma4web.bench import Bench, IncompleteBench, main, order_of
from gemma4web.chromium import Chromium, processes_of, runs_folder
from gemma4web.errors import BrowserError, UsageError
from gemma4web.files import sha256_file
from gemma4web.variants import VARIANTS

pytestmark = pytest.mark.browser

EARLIER: Final = ("bench.json", "bench.html")


def command(bundle: Path, chromium: Chromium, tokens: list[int], tmp_path: Path, *more: str, count: int = 16) -> list[str]:
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps([{"id": "one", "tokens": tokens, "max_new_tokens": count}]))
    return ["--bundle", str(bundle), "--prompts", str(prompts), "--record", str(tmp_path / "bench.json"), "--report",
            str(tmp_path / "bench.html"), "--browser", str(chromium.executable), "--deadline", "60", *more]


def test_every_session_is_kept_apart(fake_bundle: Path, chromium: Chromium, tmp_path: Path,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(fake_bundle, chromium, [2, 17], tmp_path, "--repeats", "2")) == 0
    bench = msgspec.json.decode((tmp_path / "bench.json").read_bytes(), type=Bench)
    assert bench.orders == [["plain-wall", "mtp-wall"], ["mtp-wall", "plain-wall"]]
    assert [(row.variant, row.prompt_id, row.tokens) for row in bench.results] == [
        ("plain-wall", "one", 16), ("mtp-wall", "one", 16)]
    for row in bench.results:
        for samples in (row.cold, row.warm):
            assert len(samples.prefill_ms) == len(samples.decode_tokens_per_s) == 2
            assert min(samples.decode_tokens_per_s) > 0
        assert (row.drafted > 0) == (row.variant == "mtp-wall")
    html = (tmp_path / "bench.html").read_text()
    assert "Software adapter: times are no GPU results" in html
    assert "plain-wall, mtp-wall; then mtp-wall, plain-wall" in html
    assert "warm tokens/s" in capsys.readouterr().out
    assert not (tmp_path / "bench.incomplete.json").exists()


def test_a_wrong_token_is_no_measurement(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    with pytest.raises(BrowserError, match="MTP equals plain: NO"):
        main(command(fake_bundle, chromium, [909, 3], tmp_path, "--repeats", "1"))
    assert not (tmp_path / "bench.json").exists()


def test_a_dead_assistant_is_no_measurement(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    """P60: the text is right, and every draft wrong."""
    with pytest.raises(BrowserError, match="0 of 156 drafts were accepted"):
        main(command(fake_bundle, chromium, [912, 3], tmp_path, "--repeats", "1", count=40))
    assert not (tmp_path / "bench.json").exists()


class Ended(NamedTuple):
    """A bench of two sessions that was ended, as its user sees it."""

    code: int
    shown: str
    kept: IncompleteBench | None


def ended(bundle: Path, chromium: Chromium, tmp_path: Path, first: list[int], *, wait_for: str = "",
          fault: Callable[[int], None] = lambda _: None, deadline: str = "60") -> Ended:
    """The real command with a good prompt and one that starts with the ids ``first``; ``fault`` is done with its process
    id once its output says ``wait_for``. An earlier record and report are where the new ones would go."""
    words = command(bundle, chromium, [2, 17], tmp_path, "--repeats", "2", "--variants", "plain-wall,mtp-wall", "--deadline",
                    deadline)
    (tmp_path / "prompts.json").write_text(json.dumps([
        {"id": "good", "tokens": [2, 17], "max_new_tokens": 16}, {"id": "other", "tokens": first, "max_new_tokens": 16}]))
    for name in EARLIER:
        (tmp_path / name).write_text(f"an earlier {name}")
    shown = ""
    with subprocess.Popen([sys.executable, "-m", "gemma4web", "bench", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            shown += line
            if wait_for and wait_for in line:
                wait_for = ""
                fault(process.pid)
        code = process.wait(timeout=60)
    assert [(tmp_path / name).read_text() for name in EARLIER] == [f"an earlier {name}" for name in EARLIER]
    path = tmp_path / "bench.incomplete.json"
    return Ended(code, shown, msgspec.json.decode(path.read_bytes(), type=IncompleteBench) if path.is_file() else None)


def end_browser(command_pid: int) -> None:
    for folder in runs_folder().glob(f"run-{command_pid}-*"):
        for pid in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


HANGS, LOSES = [904], [901, 3]


@pytest.mark.parametrize(("first", "fault", "deadline", "code", "says"), [
    pytest.param(LOSES, None, "60", 10, "GPU device was lost", id="device-lost"),
    pytest.param(HANGS, None, "6", 10, "no result after 6 s", id="deadline"),
    pytest.param(HANGS, end_browser, "60", 10, "plain-wall: ", id="browser-dies"),
    pytest.param(HANGS, lambda pid: os.kill(pid, signal.SIGINT), "60", 130, "a signal", id="ctrl-c"),
    pytest.param(HANGS, lambda pid: os.kill(pid, signal.SIGTERM), "60", 143, "a signal", id="sigterm"),
])
def test_what_is_finished_outlives_the_bench(
        fake_bundle: Path, chromium: Chromium, tmp_path: Path, first: list[int], fault: Callable[[int], None] | None,
        deadline: str, code: int, says: str) -> None:
    """The first variant answers its first prompt, then something ends the bench: answer and times are kept beside an earlier
    record, marked, and the earlier one stays."""
    found = ended(fake_bundle, chromium, tmp_path, first, wait_for='generating "cold other"' if fault else "",
                  fault=fault or (lambda _: None), deadline=deadline)
    assert found.code == code, found.shown
    kept = found.kept
    assert kept is not None, found.shown
    assert (kept.complete, kept.sessions, kept.adapter.architecture) == (False, 2, "fake")
    assert says in kept.ended_by
    assert kept.bundle_sha256 == sha256_file(fake_bundle / "manifest.json")
    assert kept.prompts_sha256 == sha256_file(tmp_path / "prompts.json")
    one, = kept.finished
    assert (one.session, one.variant, one.phase, one.prompt_id, one.tokens) == (
        1, "plain-wall", "cold", "good", expected([2, 17], 16))
    assert min(one.prefill_ms, one.decode_tokens_per_s) > 0
    assert "finished before that: session 1, plain-wall, cold good: 16 tokens" in found.shown
    assert f"incomplete record {tmp_path / 'bench.incomplete.json'}" in found.shown


def test_finished_sessions_outlive_a_later_one(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    """The bundle is damaged after the first session."""
    bundle = copy_bundle(fake_bundle, tmp_path / "bundle")
    found = ended(bundle, chromium, tmp_path, [5], wait_for="session 2 of 2",
                  fault=lambda _: replace(bundle, "runtime/gemma4_mtp.wasm", flip(3)))
    assert (found.code, found.kept is None) == (10, False), found.shown
    assert found.kept is not None
    assert "gemma4_mtp.wasm" in found.kept.ended_by
    assert [(one.session, one.variant, one.phase, one.prompt_id) for one in found.kept.finished] == [
        (1, variant, phase, prompt) for variant in ("plain-wall", "mtp-wall") for phase in ("cold", "warm")
        for prompt in ("good", "other")]
    assert [one.drafted > 0 for one in found.kept.finished] == [False] * 4 + [True] * 4


def test_a_bench_that_finished_nothing_leaves_no_file(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    bundle = copy_bundle(fake_bundle, tmp_path / "bundle")
    replace(bundle, "runtime/gemma4.wasm", flip(3))
    found = ended(bundle, chromium, tmp_path, [5])
    assert (found.code, found.kept) == (10, None), found.shown


def test_no_repeats_are_refused(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--repeats 0 measures nothing"):
        main(command(fake_bundle, chromium, [2], tmp_path, "--repeats", "0"))


def test_each_variant_takes_each_place() -> None:
    orders = [order_of(VARIANTS, session) for session in range(4)]
    assert all(sorted(variant.name for variant in order) == sorted(variant.name for variant in VARIANTS) for order in orders)
    assert [len({order[place].name for order in orders}) for place in range(4)] == [4, 4, 4, 4]
