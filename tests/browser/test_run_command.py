"""`scons run`'s browser run: what it records, and that whatever goes wrong fails it with its message (B5, P04, P56, P59)."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser.test_page_faults import MISSING_IMPORT
from tests.browser.test_page_use import expected
from tests.support.chrome import Chrome
from tests.support.sites import BreakingHandler, copy_bundle, edit_manifest, flip, replace

from gemma4web import browser as browser_module
from gemma4web.bench import main as bench_main
from gemma4web.browser import run_bundle, run_variant
from gemma4web.chromium import Chromium, launch_flags, processes_of, runs_folder
from gemma4web.errors import BrowserError, UsageError
from gemma4web.files import sha256_file
from gemma4web.launching import RunOptions
from gemma4web.record import Record, parse_prompts, read_record
from gemma4web.run_command import ALL_VARIANTS, bundle_variants, choose_variants, main, output_paths
from gemma4web.serve import BundleHandler, BundleServer, serving

pytestmark = pytest.mark.browser

PROMPTS = [{"id": "long", "tokens": [2, 17, 4, 99], "max_new_tokens": 24}, {"id": "one", "tokens": [5], "max_new_tokens": 1}]
WASM = "runtime/gemma4.wasm"


def run(bundle: Path, chromium: Chromium, prompts: list[dict[str, Any]] = PROMPTS, *, variants: str = "plain-wall",
        deadline_s: float = 60, **options: Any) -> Record:
    return run_bundle(bundle, parse_prompts(json.dumps(prompts).encode(), "p.json"), choose_variants(variants),
                      RunOptions(chromium=chromium, deadline_s=deadline_s, **options))


def one_variant(chrome: Chrome, bundle: Path, prompts: list[dict[str, Any]] = PROMPTS, *, deadline_s: float = 60,
                handler: type[BundleHandler] = BundleHandler) -> None:
    """`run_variant` of plain-wall in the browser that the tests share."""
    plain, = choose_variants("plain-wall")
    wanted = parse_prompts(json.dumps(prompts).encode(), "p.json").prompts
    context = chrome.context()
    try:
        with serving(bundle, handler=handler) as server:
            chrome.call(lambda: run_variant(context.target, server, plain, wanted, sha256_file(bundle / "manifest.json"),
                                            RunOptions(chromium=Chromium(executable=Path("unused")), deadline_s=deadline_s),
                                            lambda _: None))
    finally:
        context.close()


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps(PROMPTS))
    return path


def command(bundle: Path, chromium: Chromium, prompts: Path, out: Path, *more: str) -> list[str]:
    return ["--bundle", str(bundle), "--prompts", str(prompts), "--record", str(out / "run.json"), "--report",
            str(out / "report.html"), "--browser", str(chromium.executable), "--deadline", "60", *more]


def test_all_four_variants_are_recorded(fake_bundle: Path, chromium: Chromium, prompts_file: Path, tmp_path: Path,
                                        capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(command(fake_bundle, chromium, prompts_file, out)) == 0
    record = read_record(out / "run.json")
    assert record.bundle_sha256 == sha256_file(fake_bundle / "manifest.json")
    assert record.prompts_sha256 == sha256_file(prompts_file)
    assert record.adapter.software
    assert [(r.variant, r.prompt_id) for r in record.runs] == [
        (variant, prompt) for variant in ("plain-wall", "plain-profile", "mtp-wall", "mtp-profile") for prompt in ("long", "one")]
    for item in record.runs:
        assert item.tokens == expected(*{"long": ([2, 17, 4, 99], 24), "one": ([5], 1)}[item.prompt_id])
        assert item.text is None
        assert (item.profile is not None) == item.variant.endswith("profile")
        assert (item.mtp is not None) == item.variant.startswith("mtp")
        assert item.prefill_ms > 0
        assert (item.decode_tokens_per_s > 0) == (len(item.tokens) > 1)
    shown = capsys.readouterr().out
    assert "MTP equals plain: yes, token for token" in shown
    assert "software adapter: times are no GPU results" in shown
    assert str(out / "report.html") in shown
    assert "linear_f32" in (out / "report.html").read_text()


@pytest.fixture
def plain_only(fake_bundle: Path, tmp_path: Path) -> Path:
    """A bundle whose model was exported without an assistant."""
    bundle = copy_bundle(fake_bundle, tmp_path / "plain bundle")
    edit_manifest(bundle, lambda document: document["model"]["methods"].pop("k2_round"))
    return bundle


def test_a_model_without_assistant_runs_plainly(plain_only: Path, chromium: Chromium, prompts_file: Path, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    """B1: the default variants are those that the model has a program for (X1); one line says what is left out."""
    assert main(command(plain_only, chromium, prompts_file, tmp_path / "out")) == 0
    record = read_record(tmp_path / "out/run.json")
    assert [run.variant for run in record.runs] == ["plain-wall"] * 2 + ["plain-profile"] * 2
    shown = capsys.readouterr().out
    assert shown.splitlines()[0] == ("mtp-wall, mtp-profile cannot run: the bundle's model has no program k2_round, only "
                                     "text_decoder (export with --assistant for it)")
    assert "MTP equals plain" not in shown


@pytest.mark.parametrize("start", [main, bench_main])
def test_mtp_that_a_model_has_no_program_for_is_refused_before_a_browser_starts(
        start: Callable[[list[str]], int], plain_only: Path, prompts_file: Path, tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    def launched(*_: object, **__: object) -> None:
        pytest.fail("Chromium was started")

    monkeypatch.setattr(browser_module, "launched", launched)
    with pytest.raises(UsageError, match=r"(?s)^mtp-wall cannot run: .*no program k2_round.*remedy: .*--assistant"):
        start(command(plain_only, Chromium(executable=tmp_path / "none"), prompts_file, tmp_path / "out",
                      "--variants", "plain-wall,mtp-wall"))
    assert not (tmp_path / "out").exists()


def test_bench_of_a_model_without_assistant_is_plain() -> None:
    assert bundle_variants(None, "plain-wall,mtp-wall", {"text_decoder"})[0] == choose_variants("plain-wall")
    assert bundle_variants(None, ALL_VARIANTS, {"text_decoder", "k2_round"}) == (choose_variants(ALL_VARIANTS), "")
    assert bundle_variants("mtp-wall", ALL_VARIANTS, {"text_decoder", "k2_round"}) == (choose_variants("mtp-wall"), "")
    with pytest.raises(UsageError, match="no program"):
        bundle_variants(None, ALL_VARIANTS, {})


def test_a_wrong_token_in_mtp_fails_the_run(fake_bundle: Path, chromium: Chromium, tmp_path: Path) -> None:
    """R12: the difference is named, and no record of such a run is left."""
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps([{"id": "mutant", "tokens": [909, 3], "max_new_tokens": 8}]))
    with pytest.raises(BrowserError, match=r"(?s)MTP equals plain: NO.*'mutant'.*differ from token 1 on"):
        main(command(fake_bundle, chromium, prompts, tmp_path / "out", "--variants", "plain-wall,mtp-wall"))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("damage", "says"), [
    pytest.param(lambda b: (b / WASM).unlink(), "gemma4.wasm is missing on the server", id="a-404"),
    pytest.param(lambda b: replace(b, WASM, lambda d: d[:12], list_it=True), "gemma4.wasm could not be started", id="b-cut"),
    pytest.param(lambda b: replace(b, WASM, lambda _: MISSING_IMPORT, list_it=True), "gemma4.wasm could not be started.*missing",
                 id="c-import"),
    pytest.param(lambda b: replace(b, WASM, flip(3)), "gemma4.wasm.*sha256", id="flipped"),
    pytest.param(lambda b: (b / "run.html").unlink(), "run.html answered 404", id="no-runner"),
    pytest.param(lambda b: (b / "runner.js").unlink(), "runner.js|window.gemma4web", id="no-runner-script"),
    pytest.param(lambda b: (b / "worker.js").unlink(), "worker", id="no-worker"),
    pytest.param(lambda b: edit_manifest(b, lambda m: m["variants"].pop("plain-wall")), "no variant", id="no-variant"),
])
def test_a_broken_bundle_fails_in_time(fake_bundle: Path, chrome: Chrome, tmp_path: Path, damage: Callable[[Path], None],
                                       says: str) -> None:
    """P04 a-c: an error that names the file, not a timeout."""
    broken = copy_bundle(fake_bundle, tmp_path / "bundle")
    damage(broken)
    begin = time.monotonic()
    with pytest.raises(BrowserError, match=f"(?s)plain-wall: .*({says})"):
        one_variant(chrome, broken)
    assert time.monotonic() - begin < 12


def test_a_reset_connection_fails_the_run(fake_bundle: Path, chrome: Chrome) -> None:
    """P04 d."""
    handler = type("Handler", (BreakingHandler,), {"reset": frozenset({"gemma4.wasm"})})
    with pytest.raises(BrowserError, match=r"(?s)gemma4\.wasm: the connection broke after"):
        one_variant(chrome, fake_bundle, handler=handler)


@pytest.mark.parametrize(("first", "says"), [
    (901, "GPU device was lost"), (902, "the runtime stopped in generate"), (903, "the runtime aborted: out of memory"),
    (905, "refused by the stand-in"), (906, "unreachable in a callback"),
    (907, "uncaught GPU error: Value 65535 is invalid for WGPUBufferUsage"), (908, "1 GPU objects are still owned after unload"),
    (910, "console error: the stand-in complains"), (1024, "the token id 1024, this model knows 0 to 1023"),
])
def test_what_goes_wrong_while_running_fails_the_run(fake_bundle: Path, chrome: Chrome, first: int, says: str) -> None:
    with pytest.raises(BrowserError, match=says):
        one_variant(chrome, fake_bundle, [{"id": "bad", "tokens": [first, 3], "max_new_tokens": 16}])


def test_a_prompt_longer_than_the_context_fails_the_run(fake_bundle: Path, chrome: Chrome) -> None:
    with pytest.raises(BrowserError, match="the prompt has 201 tokens, this model takes at most 200"):
        one_variant(chrome, fake_bundle, [{"id": "long", "tokens": [7] * 201, "max_new_tokens": 1}])


@pytest.mark.parametrize(("most", "remedy"), [
    (None, "export the model with a larger --context"), (300, "larger --context, of at most 300"),
    (200, "shorten the prompt: more positions are beyond the model itself"),
])
def test_the_page_advises_no_context_beyond_the_model(fake_bundle: Path, chrome: Chrome, tmp_path: Path, most: int | None,
                                                      remedy: str) -> None:
    bundle = copy_bundle(fake_bundle, tmp_path / "bundle")
    if most is not None:
        edit_manifest(bundle, lambda document: document["model"]["architecture"].update(target={"max_positions": most}))
    with pytest.raises(BrowserError, match=f"(?s)prompt \"late\": the prompt has 201 tokens.*remedy: .*{remedy}$"):
        one_variant(chrome, bundle, [*PROMPTS, {"id": "late", "tokens": [7] * 201, "max_new_tokens": 1}])


@pytest.mark.parametrize("start", [main, bench_main])
@pytest.mark.parametrize(("tokens", "most", "says"), [
    ([5, 1024], None, "prompt 'late': it holds the token id 1024, this model knows 0 to 1023"),
    ([7] * 201, None, r"prompt 'late': it has 201 tokens, this model takes at most 200\n  remedy: shorten it, or export .* --context$"),
    ([7] * 201, 300, "--context, of at most 300$"), ([7] * 201, 200, "shorten it: more positions are beyond the model itself$"),
])
def test_ids_that_a_model_does_not_take_are_refused_before_a_browser_starts(
        start: Callable[[list[str]], int], fake_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
        tokens: list[int], most: int | None, says: str) -> None:
    """By the prompt's own id, and though another prompt stands before it."""
    monkeypatch.setattr("gemma4web.browser.launched", lambda *_: pytest.fail("a browser was started"))
    bundle, path = copy_bundle(fake_bundle, tmp_path / "bundle"), tmp_path / "late.json"
    if most is not None:
        edit_manifest(bundle, lambda document: document["model"]["architecture"].update(target={"max_positions": most}))
    path.write_text(json.dumps([*PROMPTS, {"id": "late", "tokens": tokens, "max_new_tokens": 1}]))
    with pytest.raises(UsageError, match=f"(?s){says}"):
        start(command(bundle, Chromium(executable=Path(sys.executable)), path, tmp_path))


def test_finished_answers_outlive_the_run(fake_bundle: Path, chromium: Chromium, tmp_path: Path,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """The runtime stops in the last prompt: what was answered by then is told before the error, and no record is made of it."""
    path = tmp_path / "prompts.json"
    path.write_text(json.dumps([*PROMPTS, {"id": "bad", "tokens": [902, 3], "max_new_tokens": 16}]))
    with pytest.raises(BrowserError, match="the runtime stopped in generate"):
        main(command(fake_bundle, chromium, path, tmp_path, "--variants", "plain-wall"))
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("finished before that: ")]
    assert told == [f"finished before that: plain-wall, {name}: ids {' '.join(map(str, expected(ids, count)))}"
                    for name, ids, count in (("long", [2, 17, 4, 99], 24), ("one", [5], 1))]
    assert not (tmp_path / "run.json").exists()


def test_text_without_a_tokenizer_fails_with_the_reason(fake_bundle: Path, chrome: Chrome) -> None:
    with pytest.raises(BrowserError, match=r"(?s)exported without a tokenizer.*remedy: give the prompt as token ids"):
        one_variant(chrome, fake_bundle, [{"id": "text", "text": "hello", "max_new_tokens": 1}])


def test_a_page_that_hangs_meets_its_deadline(fake_bundle: Path, chrome: Chrome) -> None:
    begin = time.monotonic()
    with pytest.raises(BrowserError, match=r"(?s)no result after 4 s \(last: generating \"hang\"\).*--deadline"):
        one_variant(chrome, fake_bundle, [{"id": "hang", "tokens": [904], "max_new_tokens": 9}], deadline_s=4)
    assert time.monotonic() - begin < 30


def test_a_renderer_that_crashes_fails_the_run(fake_bundle: Path, chrome: Chrome, tmp_path: Path) -> None:
    broken = copy_bundle(fake_bundle, tmp_path / "bundle")
    replace(broken, "runner.js", lambda data: data + b"\nsetTimeout(() => { location.href = 'chrome://crash'; }, 100);")
    with pytest.raises(BrowserError):
        one_variant(chrome, broken)


def test_another_server_is_noticed(fake_bundle: Path, chrome: Chrome, monkeypatch: pytest.MonkeyPatch) -> None:
    """P59: a stale server answers in our place; its nonce is not ours."""
    monkeypatch.setattr(BundleServer, "nonce", property(lambda self: os.urandom(4).hex(), lambda self, value: None), raising=False)
    with pytest.raises(BrowserError, match="another server answered"):
        one_variant(chrome, fake_bundle)


def test_a_gpu_run_on_a_software_adapter_is_refused(fake_bundle: Path, chromium: Chromium,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """B6, P53: silently falling back to the software adapter is a failure, not a result."""
    monkeypatch.setattr(browser_module, "launch_flags", lambda *, gpu, extra: launch_flags(gpu=False, extra=extra))
    with pytest.raises(BrowserError, match=r"a GPU was asked for, but the adapter is test fake \(software\)"):
        run(fake_bundle, chromium, gpu=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing_behind(fake_bundle: Path, chromium: Chromium, tmp_path: Path, number: int) -> None:
    """P56, with the real browser: no process, no folder, no port."""
    prompts = tmp_path / "p.json"
    prompts.write_text(json.dumps([{"id": "hang", "tokens": [904], "max_new_tokens": 9}]))
    before = set(runs_folder().iterdir())
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; from gemma4web.run_command import main; main(sys.argv[1:])",
         *command(fake_bundle, chromium, prompts, tmp_path / "out", "--variants", "plain-wall")],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if 'generating "hang"' in line:
            break
    own = [path for path in set(runs_folder().iterdir()) - before if f"run-{process.pid}-" in path.name]
    assert len(own) == 1
    assert processes_of(own[0]) != []
    process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=20)
    assert process.returncode not in (None, 0)
    assert processes_of(own[0]) == []
    assert not own[0].exists()


@pytest.mark.parametrize("names", ["", "plain", "plain-wall,plain-wall", "plain-wall,nothing"])
def test_unknown_variants_are_refused(names: str) -> None:
    with pytest.raises(UsageError, match="not a list without repetition of plain-wall"):
        choose_variants(names)


def test_what_is_no_bundle_is_refused_before_a_browser_starts(tmp_path: Path, chromium: Chromium) -> None:
    with pytest.raises(UsageError, match="no staged bundle"):
        run(tmp_path, chromium)


@pytest.mark.parametrize(("bundle", "record", "report"), [
    ("build/bundle", "build/records/run.json", "build/report/index.html"),
    ("build/bundle-mine", "build/records/run-mine.json", "build/report/index-mine.html"),
    ("build/bundle-debug", "build/records/run-debug.json", "build/report/index-debug.html"),
    ("/srv/bundle", "build/records/run-bundle.json", "build/report/index-bundle.html"),
])
def test_each_bundle_has_a_record_of_its_own(bundle: str, record: str, report: str) -> None:
    """MODEL= does not overwrite what was recorded of the default model."""
    named = argparse.Namespace(bundle=Path(bundle), record=None, report=None)
    assert output_paths(named, "run", "index") == (Path(record), Path(report))
    assert output_paths(argparse.Namespace(bundle=Path(bundle), record=Path("a"), report=Path("b")), "run", "index") == (
        Path("a"), Path("b"))


def test_no_browser_outside_the_checkout_names_the_option(fake_bundle: Path, prompts_file: Path, tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"(?s)build/browser.json does not exist here.*remedy: name one with --browser"):
        main(["--bundle", str(fake_bundle), "--prompts", str(prompts_file)])


def test_a_missing_browser_is_named(fake_bundle: Path, prompts_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no-chromium is no file"):
        main(command(fake_bundle, Chromium(executable=tmp_path / "no-chromium"), prompts_file, tmp_path / "out"))
