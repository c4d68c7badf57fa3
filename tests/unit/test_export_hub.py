"""What the hub's API says, and what it is not believed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hub_site
import pytest
from fake_tools import Lines
from hub_site import Site

from gemma4web.errors import CheckpointError, FetchError
from gemma4web.export.hub import HubFile, list_files, resolve_commit
from gemma4web.export.hub_name import HubName
from gemma4web.export.transport import Patience, Transport

REPO = "owner/model"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 100, "gguf/a.gguf": b"g" * 10, "gguf/deep/b.gguf": b"h", "README.md": b"r"}


@pytest.fixture(scope="module")
def servers() -> Iterator[Site]:
    with hub_site.serving() as site:
        yield site


@pytest.fixture
def site(servers: Site) -> Site:
    servers.clear()
    servers.add(REPO, FILES)
    return servers


@pytest.fixture
def transport(site: Site) -> Iterator[Transport]:
    transport = Transport(site.hub, progress=Lines(), patience=Patience(attempts=2, backoff_s=0.01))
    yield transport
    transport.close()


def name_of(site: Site, file: str | None = None) -> HubName:
    return HubName(repo=REPO, revision=site.branches[REPO, "main"], file=file)


def test_sizes_and_hashes(site: Site, transport: Transport) -> None:
    """sha256 of a large file, git's id of a small one (`printf '{}' | git hash-object --stdin`); folders are left out."""
    found = list_files(transport, name_of(site))
    assert set(found) == {"config.json", "model.safetensors", "README.md"}
    assert found["config.json"] == HubFile(path="config.json", bytes=2, sha256=None,
                                           git_sha1="9e26dfeeb6e641a33dae4961196235bdb965b21b")
    assert found["model.safetensors"] == HubFile(
        path="model.safetensors", bytes=100, git_sha1=None,
        sha256="6ff1386a6f0d444e2af43e9a9e1cdc1394709fc87b5c2a625e16041fec2b1131")


def test_the_folder_of_a_named_file(site: Site, transport: Transport) -> None:
    assert set(list_files(transport, name_of(site, "gguf/a.gguf"))) == {"gguf/a.gguf"}
    assert set(list_files(transport, name_of(site, "gguf/deep/b.gguf"))) == {"gguf/deep/b.gguf"}
    with pytest.raises(CheckpointError, match="owner/model has no files in none"):
        list_files(transport, name_of(site, "none/a.gguf"))


def test_pages(site: Site, transport: Transport) -> None:
    site.add(REPO, {f"file-{number:03}.json": b"{}" for number in range(25)})
    site.page_entries = 10
    assert len(list_files(transport, name_of(site))) == 25
    assert len(site.asked) == 3


def test_pages_without_end(site: Site, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    site.add(REPO, {f"file-{number:03}.json": b"{}" for number in range(300)})
    site.page_entries = 1
    with pytest.raises(FetchError, match="more than 200 pages"):
        list_files(transport, name_of(site))


def test_pages_stay_with_the_hub(site: Site, transport: Transport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token must not follow a link to another host."""
    site.add(REPO, {"a.json": b"", "b.json": b""})
    site.page_entries, hub = 1, site.hub
    monkeypatch.setattr(site, "hub", "http://elsewhere.invalid")
    with pytest.raises(FetchError, match="on another host"):
        list_files(transport, name_of(site))
    assert site.hub != hub


def test_a_branch_is_a_commit(site: Site, transport: Transport) -> None:
    commit = site.branches[REPO, "main"]
    site.branches[REPO, "refs/pr/1"] = commit
    for branch in ("main", "refs/pr/1"):
        assert resolve_commit(transport, HubName(repo=REPO, revision=branch)) == commit


@pytest.mark.parametrize("commit", ["main", "", "F" * 40, None, 5])
def test_a_commit_that_is_none(site: Site, transport: Transport, commit: Any) -> None:
    site.branches[REPO, "odd"] = commit
    site.repos[REPO][commit] = {}
    with pytest.raises(FetchError, match="names no commit"):
        resolve_commit(transport, HubName(repo=REPO, revision="odd"))


@pytest.mark.parametrize("listing", [
    [5], [{"type": "file"}], [{"type": "file", "path": 5}],
    *([hub_site.entry("config.json", b"{}") | change] for change in (
        {"size": -1}, {"size": "2"}, {"size": 2.0}, {"size": True}, {"size": 1 << 60}, {"lfs": {"oid": "0" * 63, "size": 2}},
        {"lfs": {"oid": "X" * 64, "size": 2}}, {"lfs": {"oid": "0" * 64, "size": 3}}, {"lfs": []})),
    [hub_site.entry("config.json", b"{}")] * 2,
])
def test_listings_that_cannot_be(site: Site, transport: Transport, listing: list[Any]) -> None:
    site.listings[REPO] = listing
    with pytest.raises(FetchError, match="lists"):
        list_files(transport, name_of(site))


@pytest.mark.parametrize("path", ["../config.json", "/etc/passwd", "a/../b", "a\\b.json", "a\0b", "C:x", ".", ""])
def test_paths_with_tricks(site: Site, transport: Transport, path: str) -> None:
    """P49: one such path, whatever it is of, and the whole listing is not believed."""
    site.listings[REPO] = [hub_site.entry("config.json", b"{}"), hub_site.entry(path, b"")]
    with pytest.raises(FetchError, match="lists the path") as caught:
        list_files(transport, name_of(site))
    assert "do not use this repository" in caught.value.advice


@pytest.mark.parametrize(("token", "repo", "revision", "message", "remedy"), [
    (None, "owner/gated", "main", r"wants to know who reads owner/gated \(401\)", "set HF_TOKEN"),
    ("bad", "owner/gated", "main", r"lets the holder of HF_TOKEN not read owner/gated \(403\)", "accept the terms at"),
    (None, "owner/absent", "main", "has no repository owner/absent", "look it up at"),
    (None, REPO, "absent", "has no revision absent of owner/model", "look it up at"),
])
def test_refusals_name_the_remedy(site: Site, token: str | None, repo: str, revision: str, message: str, remedy: str) -> None:
    site.add("owner/gated", FILES)
    site.gated.add("owner/gated")
    transport = Transport(site.hub, token=token, progress=Lines())
    with pytest.raises(FetchError, match=message) as caught:
        resolve_commit(transport, HubName(repo=repo, revision=revision))
    transport.close()
    assert remedy in caught.value.advice and f"{site.hub}/{repo}" in caught.value.advice
    assert len(site.asked) == 1 and "bad" not in str(caught.value)


def _answers(monkeypatch: pytest.MonkeyPatch, data: bytes, **headers: str) -> None:
    monkeypatch.setattr(hub_site.Handler, "do_GET", lambda handler: handler.answer(200, data, headers))


@pytest.mark.parametrize(("data", "kind", "message"), [
    (b"<html>sign in", "text/html", "a web page came instead of the list of files"),
    (b"nothing", "application/json", "not JSON"), (b"[" * 100_000, "application/json", "not JSON"),
    (b"{}", "application/json", "no list"), (b" " * (33 << 20), "application/json", "more than 32 MiB"),
])
def test_answers_that_are_none(site: Site, transport: Transport, monkeypatch: pytest.MonkeyPatch, data: bytes, kind: str,
                               message: str) -> None:
    _answers(monkeypatch, data, **{"Content-Type": kind})
    with pytest.raises(FetchError, match=message):
        list_files(transport, name_of(site))
