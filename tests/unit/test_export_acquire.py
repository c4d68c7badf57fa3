"""Checkpoints by name: which files belong to one, what the cache is trusted with, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import hub_site
import pytest
from fake_tools import Lines
from hub_site import Site, breaks_after, sends, status

from gemma4web.errors import CheckpointError, DiskFullError, FetchError, ToolchainError
from gemma4web.export import acquire as module
from gemma4web.export.acquire import acquire
from gemma4web.export.acquisition import Acquisition, FileRecord
from gemma4web.export.hub_name import HubName
from gemma4web.export.snapshot import acquire_offline, cached
from gemma4web.export.transport import Patience, Transport

REPO = "owner/model"
SINGLE = {"config.json": b"{}", "model.safetensors": b"weights" * 1000}
SHARDS = {"config.json": b"{}", "tokenizer.json": b'{"t": 1}', "generation_config.json": b"{ }",
          "model.safetensors.index.json": json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors",
                                                                     "c": "model-1.safetensors"}}).encode(),
          "model-1.safetensors": b"1" * 1000, "model-2.safetensors": b"2" * 2000}
OTHERS = {"README.md": b"read", "model-3.safetensors": b"3", "pytorch_model.bin": b"p", "onnx/model.safetensors": b"o"}


@pytest.fixture(scope="module")
def servers() -> Iterator[Site]:
    with hub_site.serving() as site:
        yield site


@pytest.fixture
def site(servers: Site) -> Site:
    servers.clear()
    return servers


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def transport(site: Site, lines: Lines) -> Iterator[Transport]:
    transport = Transport(site.hub, progress=lines, patience=Patience(attempts=2, backoff_s=0.01))
    yield transport
    transport.close()


def add(site: Site, files: Mapping[str, bytes], file: str | None = None) -> HubName:
    return HubName(repo=REPO, revision=site.add(REPO, files), file=file)


def records(files: Mapping[str, bytes]) -> dict[str, FileRecord]:
    return {path: FileRecord(bytes=len(data), sha256=hashlib.sha256(data).hexdigest()) for path, data in files.items()}


def held(found: Acquisition) -> dict[str, bytes]:
    return {path.relative_to(found.root).as_posix(): path.read_bytes() for path in found.root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("files", [SINGLE, SHARDS])
def test_a_checkpoint(site: Site, transport: Transport, tmp_path: Path, files: dict[str, bytes]) -> None:
    """Exactly what an export reads; the folder is called as the repository, as that is the model's name."""
    name = add(site, {**files, **OTHERS})
    found = acquire(name, transport, tmp_path)
    assert found == Acquisition(hub=site.hub, repo=REPO, revision=name.revision, files=records(files), root=found.root,
                                path=found.root)
    assert held(found) == files and found.root.name == "model" and name.revision in found.root.parts


def test_an_index_wins_over_one_file(site: Site, transport: Transport, tmp_path: Path) -> None:
    """As a reader of the folder decides."""
    found = acquire(add(site, {**SHARDS, "model.safetensors": b"unused"}), transport, tmp_path)
    assert held(found) == SHARDS


def test_a_file_and_then_another(site: Site, transport: Transport, tmp_path: Path) -> None:
    files = {"a.gguf": b"a" * 100, "quantised/b.gguf": b"b" * 100}
    for file, data in files.items():
        found = acquire(add(site, files, file), transport, tmp_path)
        assert found.path == found.root / file and found.files == records({file: data})
    assert held(found) == files


def test_what_is_there_is_not_asked_for(site: Site, transport: Transport, tmp_path: Path) -> None:
    name = add(site, SHARDS)
    first = acquire(name, transport, tmp_path)
    site.asked.clear()
    assert acquire(name, transport, tmp_path) == first == acquire_offline(name, site.hub, tmp_path)
    assert cached(name, site.hub, tmp_path) == first and site.asked == []


def test_a_branch_is_looked_up_once_and_told(site: Site, transport: Transport, lines: Lines, tmp_path: Path) -> None:
    commit = add(site, SINGLE).revision
    found = acquire(HubName(repo=REPO, revision="main"), transport, tmp_path)
    assert found.revision == commit and f"{REPO}: main is commit {commit}; to pin it, name {REPO}@{commit}" in lines.lines
    assert len([asked for asked in site.asked if "/revision/" in asked.path]) == 1
    assert all(commit in asked.path for asked in site.asked[1:])


def test_a_branch_that_moves_does_not_mix(site: Site, transport: Transport, tmp_path: Path) -> None:
    first = acquire(HubName(repo=REPO, revision=add(site, SINGLE).revision), transport, tmp_path)
    other = {**SINGLE, "config.json": b"{  }"}
    add(site, other)
    second = acquire(HubName(repo=REPO, revision="main"), transport, tmp_path)
    assert first.root != second.root and held(first) == SINGLE and held(second) == other


@pytest.mark.parametrize("spoil", ["remove", "shorten", "flip", "forget", "garbage", "other hub"])
def test_what_went_missing_is_fetched_again(site: Site, transport: Transport, tmp_path: Path, spoil: str) -> None:
    name = add(site, SHARDS)
    found = acquire(name, transport, tmp_path)
    place, record = found.root / "model-2.safetensors", found.root.with_name("model.json")
    if spoil == "remove":
        place.unlink()
    elif spoil == "shorten":
        os.truncate(place, 5)
    elif spoil == "flip":
        place.write_bytes(place.read_bytes()[:-1] + b"x")
        os.utime(place, (2e9, 2e9))
    elif spoil == "forget":
        record.unlink()
    elif spoil == "garbage":
        record.write_text('{"schema": 1, "files": 5}')
    else:
        record.write_text(record.read_text().replace(site.hub, "https://elsewhere.example"))
    with pytest.raises(FetchError, match="is not, or not wholly, in"):
        acquire_offline(name, site.hub, tmp_path)
    site.asked.clear()
    assert acquire(name, transport, tmp_path) == found and held(found) == SHARDS
    fetched = {asked.path.rsplit("/", 1)[-1] for asked in site.asked if asked.server == "store"}
    assert fetched == ({"model-2.safetensors"} if spoil in ("remove", "shorten", "flip") else {"model-1.safetensors", "model-2.safetensors"})


def test_a_file_that_was_only_touched_is_as_good(site: Site, transport: Transport, tmp_path: Path) -> None:
    """A cache that was copied to another machine."""
    name = add(site, SINGLE)
    found = acquire(name, transport, tmp_path)
    os.utime(found.root / "model.safetensors", (2e9, 2e9))
    assert acquire_offline(name, site.hub, tmp_path) == found


def test_a_failure_keeps_what_is_whole(site: Site, transport: Transport, tmp_path: Path) -> None:
    name = add(site, SHARDS)
    site.fault("model-2.safetensors", breaks_after(500), status(500))
    with pytest.raises(FetchError, match=r"model-2\.safetensors could not be fetched"):
        acquire(name, transport, tmp_path)
    assert cached(name, site.hub, tmp_path) is None
    site.asked.clear()
    found = acquire(name, transport, tmp_path)
    assert held(found) == SHARDS
    assert [asked.headers.get("range") for asked in site.asked if asked.server == "store"] == ["bytes=500-"]


def test_a_lie_leaves_nothing(site: Site, transport: Transport, tmp_path: Path) -> None:
    name = add(site, SINGLE)
    site.fault("model.safetensors", sends(b"w" * len(SINGLE["model.safetensors"])))
    with pytest.raises(FetchError, match="it was removed"):
        acquire(name, transport, tmp_path)
    assert cached(name, site.hub, tmp_path) is None and not list(tmp_path.rglob("*safetensors*"))


def test_two_hubs_are_two_sources(site: Site, transport: Transport, tmp_path: Path) -> None:
    """What one of them gave is not passed off as the other's."""
    name = add(site, SINGLE)
    acquire(name, transport, tmp_path)
    for other in ("https://" + site.hub.removeprefix("http://"), "http://localhost:1"):
        assert cached(name, other, tmp_path) is None


@pytest.mark.parametrize(("files", "file", "message", "remedy"), [
    ({"README.md": b""}, None, r"has no config\.json at its root", "name a repository with config.json"),
    ({"config.json": b"{}"}, None, "has no safetensors at its root", "name a repository with config.json"),
    ({"b.gguf": b"", "a.gguf": b""}, None, "has no config", "FILE being one of a.gguf, b.gguf"),
    ({f"{letter}.gguf": b"" for letter in "abcdefghij"}, None, "has no config", "g.gguf, h.gguf and 2 more"),
    ({"a.gguf": b""}, "b.gguf", r"has no file b\.gguf at", "name one of a.gguf"),
    ({"a.bin": b""}, "b.gguf", r"has no file b\.gguf at", "name a repository with GGUF files"),
    ({"x/a.gguf": b""}, "y/a.gguf", "has no files in y", "look at"),
])
def test_repositories_without_it(site: Site, transport: Transport, tmp_path: Path, files: dict[str, bytes], file: str | None,
                                 message: str, remedy: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        acquire(add(site, files, file), transport, tmp_path)
    assert remedy in caught.value.advice


@pytest.mark.parametrize(("shard", "message"), [
    ("../model.safetensors", "no weight file beside it"), ("/etc/x.safetensors", "no weight file beside it"),
    ("a\\b.safetensors", "no weight file beside it"), ("a\0.safetensors", "no weight file beside it"),
    ("config.json", "no weight file beside it"), ("onnx/model.safetensors", "no weight file beside it"),
    ("model-9.safetensors", "which the repository lacks"),
])
def test_an_index_that_leads_astray(site: Site, transport: Transport, tmp_path: Path, shard: str, message: str) -> None:
    index = json.dumps({"weight_map": {"a": "model-1.safetensors", "b": shard}}).encode()
    before = sorted(path for path in tmp_path.parent.rglob("*"))
    with pytest.raises(CheckpointError, match=message):
        acquire(add(site, {**SHARDS, **OTHERS, "model.safetensors.index.json": index}), transport, tmp_path)
    assert not any(path.suffix == ".safetensors" for path in set(tmp_path.parent.rglob("*")) - set(before))


@pytest.mark.parametrize("index", [b"{}", b"[]", b"{", b'{"weight_map": {}}', b'{"weight_map": {"a": 5}}', b"\xff"])
def test_an_index_that_is_none(site: Site, transport: Transport, tmp_path: Path, index: bytes) -> None:
    with pytest.raises(CheckpointError, match=r"index\.json"):
        acquire(add(site, {**SHARDS, "model.safetensors.index.json": index}), transport, tmp_path)


def test_names_that_differ_only_in_case(site: Site, transport: Transport, tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "model-a.safetensors", "b": "model-A.safetensors"}}).encode()
    files = {"config.json": b"{}", "model.safetensors.index.json": index, "model-a.safetensors": b"1", "model-A.safetensors": b"2"}
    with pytest.raises(CheckpointError, match="differ only in case"):
        acquire(add(site, files), transport, tmp_path)


def test_a_config_larger_than_any(site: Site, transport: Transport, tmp_path: Path) -> None:
    site.listings[REPO] = [{**hub_site.entry("config.json", b"{}"), "size": 1 << 40}, hub_site.entry("model.safetensors", b"")]
    with pytest.raises(CheckpointError, match=r"config\.json has 1099511627776 bytes, wanted at most"):
        acquire(add(site, SINGLE), transport, tmp_path)


def test_a_disk_too_small_is_told_before_the_download(site: Site, transport: Transport, tmp_path: Path,
                                                      monkeypatch: pytest.MonkeyPatch) -> None:
    name = add(site, SINGLE)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=3000))
    with pytest.raises(DiskFullError, match="needs 0 MB more in .*, 0 MB are free") as caught:
        acquire(name, transport, tmp_path)
    assert "GEMMA4WEB_CACHE" in caught.value.advice and not site.asked_for("model.safetensors")


def test_a_cache_that_cannot_be_written(site: Site, transport: Transport, tmp_path: Path) -> None:
    (tmp_path / "hub").write_text("")
    with pytest.raises((FetchError, ToolchainError), match="cannot be written") as caught:
        acquire(add(site, SINGLE), transport, tmp_path)
    assert "GEMMA4WEB_CACHE" in caught.value.advice


def test_offline_a_branch_is_nothing(site: Site, transport: Transport, tmp_path: Path) -> None:
    commit = acquire(add(site, SINGLE), transport, tmp_path).revision
    site.asked.clear()
    with pytest.raises(FetchError, match="may be any commit") as caught:
        acquire_offline(HubName(repo=REPO, revision="main"), site.hub, tmp_path)
    assert f"the cache has {commit}" in caught.value.advice and site.asked == []


def test_a_fetched_file_that_changed_is_noticed(site: Site, transport: Transport, tmp_path: Path) -> None:
    found = acquire(add(site, SINGLE), transport, tmp_path)
    config = found.root / "config.json"
    assert found.check(config, found.files["config.json"]) == "config.json"
    with pytest.raises(CheckpointError, match="is not the file that was fetched from owner/model") as caught:
        found.check(config, FileRecord(bytes=2, sha256="0" * 64))
    assert f"rm '{config}'" in caught.value.advice
