"""``python -m gemma4web export`` by hub names, against a stand-in for a hub: the same model as from files, whatever happens."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hub_site
import pytest
from hub_site import Site, stalls_after, status

from gemma4web import __main__ as command_line
from gemma4web.errors import CheckpointError, DiskFullError, FetchError, PublishError, UsageError
from gemma4web.export import preview
from gemma4web.export.folder import open_folder
from gemma4web.files import sha256_file

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORY, TINY, TINY_ASSISTANT = "stories/story-GGUF", "tiny/tiny-mix", "tiny/tiny-mix-assistant"
SMALL = ("--context", "64", "--prefill-rows", "4")
NO_SOCKETS = """\
import os, sys
def watch(event, what):
    if event.startswith("socket."):
        os.write(2, f"{event} {what}".encode())
        os._exit(99)
sys.addaudithook(watch)
from gemma4web.__main__ import main
code = main(sys.argv[1:])
sys.exit(code or 98 * ("requests" in sys.modules))
"""


def _files(folder: Path, *suffixes: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in suffixes}


@pytest.fixture(scope="module")
def servers() -> Iterator[Site]:
    with hub_site.serving() as site:
        yield site


@pytest.fixture
def site(servers: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The fixtures as repositories of the hub that the environment names, with a cache of the test's own."""
    servers.clear()
    servers.add(STORY, _files(FIXTURES / "story", ".gguf"))
    servers.add(TINY, _files(FIXTURES / "tiny-mix" / "target", ".json", ".safetensors"))
    servers.add(TINY_ASSISTANT, _files(FIXTURES / "tiny-mix" / "assistant", ".json", ".safetensors"))
    monkeypatch.setenv("HF_ENDPOINT", servers.hub)
    monkeypatch.setenv("GEMMA4WEB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return servers


def story(site: Site, *, assistant: bool = True, revision: str = "") -> list[str]:
    at = f"{STORY}@{revision or site.branches[STORY, 'main']}"
    return ["--target", f"{at}:story-target.gguf", *(["--assistant", f"{at}:story-assistant.gguf"] if assistant else [])]


def tiny(site: Site) -> list[str]:
    target, assistant = (f"{repo}@{site.branches[repo, 'main']}" for repo in (TINY, TINY_ASSISTANT))
    return ["--target", target, "--assistant", assistant]


LOCAL = {"story": ["--target", str(FIXTURES / "story/story-target.gguf"), "--assistant", str(FIXTURES / "story/story-assistant.gguf")],
         "tiny": ["--target", str(FIXTURES / "tiny-mix/target"), "--assistant", str(FIXTURES / "tiny-mix/assistant")]}


def export(inputs: list[str], out: Path, *more: str) -> int:
    return command_line.main(["export", *inputs, "--out", str(out), *SMALL, *more])


def start(inputs: list[str], out: Path, *more: str, code: str | None = None, **options: Any) -> subprocess.Popen[str]:
    program = ["-m", "gemma4web"] if code is None else ["-c", code]
    return subprocess.Popen([sys.executable, *program, "export", *inputs, "--out", str(out), *SMALL, *more],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=120)
    assert "Traceback" not in errors, errors
    return process.returncode, out, errors


def partials(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob(".*.partial"))


@pytest.mark.parametrize("model", ["story", "tiny"])
def test_by_name_it_is_the_same_model(site: Site, tmp_path: Path, model: str) -> None:
    """X19: shards and text files byte for byte, programs but for the receipt that they are bound to, which pins the commit."""
    named = story(site) if model == "story" else tiny(site)
    assert export(LOCAL[model], tmp_path / "files") == 0 and export(named, tmp_path / "named") == 0
    files, hub = open_folder(tmp_path / "files"), open_folder(tmp_path / "named")
    assert set(files.receipt["files"]) == set(hub.receipt["files"])
    for name in set(files.receipt["files"]) - {"source.json", "text_decoder.g4p", "k2_round.g4p"}:
        assert (files.path / name).read_bytes() == (hub.path / name).read_bytes(), name
    for method in ("text_decoder", "k2_round"):
        one, other = files.program(method), hub.program(method)
        assert one.source_sha256 == files.receipt["source_sha256"] != other.source_sha256
        assert replace(one, source_sha256="") == replace(other, source_sha256="")
    bound = ("files", "source_sha256", "acquisition")
    assert {key: value for key, value in files.receipt.items() if key not in bound} == {
        key: value for key, value in hub.receipt.items() if key not in bound}


def test_the_receipts_pin_what_was_fetched(site: Site, tmp_path: Path) -> None:
    """X19: hub, repository, commit, length and sha256 of every file, in the source receipt and in the model's."""
    assert export(tiny(site), tmp_path / "model") == 0
    receipt = json.loads((tmp_path / "model" / "model.json").read_bytes())
    source = json.loads((tmp_path / "model" / "source.json").read_bytes())
    assert receipt["acquisition"] == source["inputs"]
    for role, repo in (("target", TINY), ("assistant", TINY_ASSISTANT)):
        folder = FIXTURES / "tiny-mix" / role
        assert source["inputs"][role] == {
            "name": repo.split("/")[1], "hub": site.hub, "repo": repo, "revision": site.branches[repo, "main"],
            "files": {path.name: {"bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in folder.iterdir()}}


def test_a_file_in_a_folder_of_the_repository(site: Site, tmp_path: Path) -> None:
    commit = site.add("stories/deep", {"gguf/q4/story.gguf": (FIXTURES / "story/story-target.gguf").read_bytes()})
    assert export(["--target", f"stories/deep@{commit}:gguf/q4/story.gguf"], tmp_path / "model") == 0
    source = json.loads((tmp_path / "model" / "source.json").read_bytes())["inputs"]["target"]
    assert set(source["files"]) == {"gguf/q4/story.gguf"} and source["name"] == "story.gguf"


def test_a_branch_is_pinned_in_the_receipt_and_told(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commit = site.branches[STORY, "main"]
    assert export(story(site, assistant=False, revision="main"), tmp_path / "model") == 0
    assert f"main is commit {commit}; to pin it, name {STORY}@{commit}:story-target.gguf" in capsys.readouterr().err
    assert json.loads((tmp_path / "model" / "source.json").read_bytes())["inputs"]["target"]["revision"] == commit


def test_a_branch_of_both_inputs_is_looked_up_once(site: Site, tmp_path: Path) -> None:
    """Else a push in between would give a pair that never belonged together."""
    assert export(story(site, revision="main"), tmp_path / "model") == 0
    assert len([asked for asked in site.asked if "/revision/" in asked.path]) == 1


def test_local_inputs_open_no_socket(tmp_path: Path, site: Site) -> None:
    """Nor is the client imported. The same run by a name ends at the first socket, so the watch would see one."""
    code, _, errors = finished(start(LOCAL["story"], tmp_path / "model", code=NO_SOCKETS))
    assert code == 0, errors
    assert finished(start(story(site), tmp_path / "other", code=NO_SOCKETS))[0] == 99
    assert not (tmp_path / "other").exists()


def test_offline_takes_the_cache_and_opens_no_socket(tmp_path: Path, site: Site) -> None:
    code, _, errors = finished(start(story(site), tmp_path / "model", "--offline"))
    assert code == FetchError.exit_code and "without --offline" in errors and site.asked == []
    assert export(story(site), tmp_path / "model") == 0
    code, _, errors = finished(start(story(site), tmp_path / "again", "--offline", code=NO_SOCKETS))
    assert code == 0, errors
    for path in (tmp_path / "model").iterdir():
        assert path.read_bytes() == (tmp_path / "again" / path.name).read_bytes(), path.name


def _wait_for(found: Any, what: str) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.02)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_fetch_goes_on(site: Site, tmp_path: Path, how: signal.Signals) -> None:
    """X17 and P44: nothing is published, what came is kept, the next run asks for the rest only."""
    go_on = threading.Event()
    site.fault("story-target.gguf", stalls_after(5_000_000, go_on))
    with start(story(site), tmp_path / "model") as process:
        _wait_for(lambda: any(path.stat().st_size == 5_000_000 for path in partials(tmp_path)), "5 MB")
        process.send_signal(how)
        code, out, errors = finished(process)
    go_on.set()
    assert (code, out) == (130 if how is signal.SIGINT else -signal.SIGKILL, "")
    assert ("interrupted" in errors) == (how is signal.SIGINT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    site.asked.clear()
    code, _, errors = finished(start(story(site), tmp_path / "model"))
    assert code == 0 and "5.0 of 8.9 MB are here already" in errors
    assert [asked.headers.get("range") for asked in site.asked_for("story-target.gguf", "store")] == ["bytes=5000000-"]
    open_folder(tmp_path / "model")
    assert partials(tmp_path) == []


def test_two_processes_share_one_download(site: Site, tmp_path: Path) -> None:
    go_on = threading.Event()
    site.fault("story-target.gguf", stalls_after(1_000_000, go_on))
    with start(story(site), tmp_path / "one") as first:
        _wait_for(lambda: partials(tmp_path), "the first one's file")
        with start(story(site), tmp_path / "two") as second:
            assert second.stderr is not None
            waits = second.stderr.readline()
            assert "another export is fetching" in waits and "waiting for it" in waits
            go_on.set()
            assert finished(first)[0] == 0 and finished(second)[0] == 0
    assert len([asked for asked in site.asked if "/tree/" in asked.path]) == 2
    assert len(site.asked_for("story-target.gguf", "store")) == len(site.asked_for("story-assistant.gguf", "store")) == 1
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_a_full_disk(site: Site, tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: the same write fails in the same place."""
    limit = 1 << 20
    code, out, errors = finished(start(story(site), tmp_path / "model",
                                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))))
    assert (code, out) == (DiskFullError.exit_code, "") and "MB are free there" in errors and "remedy: free some space" in errors
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    assert [path.stat().st_size for path in partials(tmp_path)] == [limit]
    assert export(story(site), tmp_path / "model") == 0
    open_folder(tmp_path / "model")


def test_a_cached_file_that_changed_is_not_exported(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """X19: what a receipt pins is what was read, not what was fetched once. The remedy works."""
    assert export(story(site), tmp_path / "model") == 0
    place = next((tmp_path / "cache").rglob("story-target.gguf"))
    before, data = place.stat(), bytearray(place.read_bytes())
    data[len(data) // 2] ^= 1
    place.write_bytes(data)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert export(story(site), tmp_path / "other") == CheckpointError.exit_code
    assert f"rm '{place}'" in capsys.readouterr().err and not (tmp_path / "other").exists()
    place.unlink()
    assert export(story(site), tmp_path / "other") == 0


def test_a_taken_destination_is_refused_before_anything_is_fetched(site: Site, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    assert export(story(site), tmp_path / "model") == PublishError.exit_code
    assert site.asked == []


@pytest.mark.parametrize(("inputs", "code", "says"), [
    (["--target", "owner/gated@main"], FetchError.exit_code, ["who reads owner/gated (401)", "accept the terms at", "HF_TOKEN"]),
    (["--target", "owner/absent@main"], FetchError.exit_code, ["has no repository owner/absent", "look it up at"]),
    (["--target", f"{TINY}@{'0' * 40}"], FetchError.exit_code, ["has no revision " + "0" * 40]),
    (["--target", f"{STORY}@main"], CheckpointError.exit_code, ["has no config.json", ":FILE", "story-target.gguf"]),
    (["--target", f"{STORY}@main:story.gguf"], CheckpointError.exit_code, ["has no file story.gguf", "story-target.gguf"]),
    (["--target", TINY], UsageError.exit_code, ["names no revision", f"{TINY}@COMMIT"]),
    (["--target", f"{TINY}@main:../x.gguf"], UsageError.exit_code, ["no GGUF file of a repository", "owner/name@revision"]),
    (["--target", f"{TINY}@main", "--hub", "http://me:word@host"], UsageError.exit_code, ["holds a user name or a password"]),
    (["--target", f"{TINY_ASSISTANT}@main"], CheckpointError.exit_code, ["remedy: "]),
])
def test_errors_say_what_and_what_to_do(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], inputs: list[str], code: int,
                                        says: list[str]) -> None:
    site.add("owner/gated", {"config.json": b"{}"})
    site.gated.add("owner/gated")
    assert export(inputs, tmp_path / "model") == code
    errors = capsys.readouterr().err
    assert all(text in errors for text in [*says, "remedy: "]), errors
    assert "word" not in errors.replace("password", "") and not (tmp_path / "model").exists()


def test_a_token_opens_a_gated_repository(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    """And stands in no output, no receipt and no file of the cache."""
    site.gated.add(STORY)
    monkeypatch.setenv("HF_TOKEN", "good")
    assert export(story(site), tmp_path / "model") == 0
    output = capsys.readouterr()
    assert "good" not in output.out + output.err
    assert not [path for path in tmp_path.rglob("*.json") if b'"good"' in path.read_bytes() or b"Bearer" in path.read_bytes()]


def _tree(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in sorted(folder.rglob("*"))}


def _shown(text: str) -> dict[str, str]:
    """File -> size, of the rows that a dry run prints."""
    return {found[1]: found[2] for line in text.splitlines() if (found := re.search(r"│\s+(\S+)\s+│.*│\s+([\d.,]+ M?B)\s+│", line))}


@pytest.mark.parametrize("where", ["files", "hub", "cache"])
@pytest.mark.parametrize("model", ["story", "tiny"])
def test_a_dry_run_tells_and_writes_nothing(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, where: str,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """X13: shards and census are those of the export. Of what is not here yet only beginnings and tables are fetched."""
    monkeypatch.setattr(preview, "_HEAD_BYTES", 1 << 10)
    named = story(site) if model == "story" else tiny(site)
    inputs = LOCAL[model] if where == "files" else named
    (tmp_path / "exports").mkdir()
    assert export(LOCAL[model], tmp_path / "exports" / "model") == 0
    if where == "cache":
        assert export(named, tmp_path / "exports" / "named") == 0
    capsys.readouterr()
    site.asked.clear()
    before = _tree(tmp_path)
    assert export(inputs, tmp_path / "exports" / "planned", "--dry-run") == 0
    assert _tree(tmp_path) == before
    text = capsys.readouterr().out
    folder, shown = open_folder(tmp_path / "exports" / "model"), _shown(text)
    for name, file in folder.receipt["files"].items():
        if not name.endswith((".g4p", "source.json")):
            assert shown[name] == (f"{file['bytes'] / 1e6:,.1f} MB" if file["bytes"] >= 100_000 else f"{file['bytes']:,} B")
    for method in ("text_decoder", "k2_round"):
        census = folder.program(method).census
        row = next(line for line in text.splitlines() if f" {method} " in line)
        assert re.findall(r"\d+", row.replace(method, "")) == [str(number) for number in (
            census.ops, census.argmax, census.scatter, census.top_k, census.attention_target, census.attention_assistant,
            census.cache_writes)]
    assert ("2 unique" in text) and ("to be fetched" in text)
    if where == "hub":
        weights = [asked for asked in site.asked if asked.server == "store"]
        spans = [tuple(map(int, asked.headers["range"].removeprefix("bytes=").split("-"))) for asked in weights]
        assert 0 < sum(end - begin + 1 for begin, end in spans) < 1_000_000
    else:
        assert site.asked == []


def test_a_dry_run_finds_what_an_export_would_refuse(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "there").mkdir()
    assert export(story(site), tmp_path / "there", "--dry-run") == PublishError.exit_code
    assert export(story(site), tmp_path / "model", "--dry-run", "--max-shard-bytes", "1000") == CheckpointError.exit_code
    swapped = ["--assistant", story(site)[1], "--target", story(site)[3]]
    assert export(swapped, tmp_path / "model", "--dry-run") == CheckpointError.exit_code
    assert "remedy: " in capsys.readouterr().err and [path.name for path in tmp_path.iterdir()] == ["there"]


def test_a_dry_run_needs_a_hub_that_serves_parts(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "_HEAD_BYTES", 1 << 14)
    site.fault("story-target.gguf", *[lambda handler, data: handler.file(data, ranges=False)] * 3)
    assert export(story(site), tmp_path / "model", "--dry-run") == FetchError.exit_code
    assert "leave out --dry-run" in capsys.readouterr().err


def test_a_failing_hub_is_told_of_while_it_is_waited_for(site: Site, tmp_path: Path) -> None:
    """What a person sees of a fetch without a terminal: no control characters, each wait, and the end."""
    site.fault("story-target.gguf", status(503), status(429, {"Retry-After": "1"}))
    code, out, errors = finished(start(story(site, assistant=False), tmp_path / "model"))
    assert code == 0 and "\x1b" not in errors and str(tmp_path / "model") in out
    lines = [re.sub(r"localhost:\d+", "HOST", line) for line in errors.splitlines()]
    assert lines[:3] == [f"fetching story-target.gguf of {STORY} ...",
                         "story-target.gguf: HOST answered 503 Service Unavailable; attempt 2 of 5 in 1 s",
                         "story-target.gguf: HOST answered 429 Too Many Requests; attempt 3 of 5 in 2 s"]
    assert lines[3].startswith(f"fetching story-target.gguf of {STORY}: done after ")
