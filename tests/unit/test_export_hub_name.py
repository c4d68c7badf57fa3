"""How checkpoints are named: what exists here wins, and a hub name with a trick in it goes nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4web.errors import UsageError
from gemma4web.export.hub_name import HubName, case_collision, locate, normal_endpoint, path_fault

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(("text", "repo", "revision", "file"), [
    (f"google/gemma-4@{COMMIT}", "google/gemma-4", COMMIT, None),
    ("google/gemma-4@main", "google/gemma-4", "main", None),
    ("google/gemma_4.1@refs/pr/3", "google/gemma_4.1", "refs/pr/3", None),
    (f"google/gemma-4@{COMMIT}:gguf/model-Q4_0.gguf", "google/gemma-4", COMMIT, "gguf/model-Q4_0.gguf"),
])
def test_hub_names(text: str, repo: str, revision: str, file: str | None) -> None:
    name = locate(text)
    assert name == HubName(repo=repo, revision=revision, file=file) and str(name) == text
    assert isinstance(name, HubName) and name.is_pinned == (revision == COMMIT)


@pytest.mark.parametrize("text", ["model.gguf", "a/b/c", "/tmp/x@y", "./a/b@main", "../b@main", "~/b@main", "a/b.gguf", "a b/c"])
def test_paths(text: str) -> None:
    assert locate(text) == Path(text)


def test_what_exists_here_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "google").mkdir()
    for name in ("gemma", "gemma@main"):
        (tmp_path / "google" / name).mkdir()
        assert locate(f"google/{name}") == Path(f"google/{name}")


@pytest.mark.parametrize(("text", "complaint"), [
    ("google/gemma", "names no revision"), ("google/gemma@", "names the revision ''"), ("google/ge..mma@main", "the repository"),
    ("google/gemma@ma..in", "the revision"), ("google/gemma@-x", "the revision"), ("google/gem%2fma@main", "the repository"),
    ("google/gemma@main:", "the file ''"), ("google/gemma@main:../x.gguf", "the file"), ("google/gemma@main:/x.gguf", "the file"),
    ("google/gemma@main:a\\x.gguf", "the file"), ("google/gemma@main:a\0.gguf", "the file"), ("google/gemma@main:x.bin", "no GGUF"),
])
def test_faulty_names_come_with_the_spelling(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint) as caught:
        locate(text)
    assert "commit" in caught.value.advice or "owner/name@revision" in caught.value.advice


@pytest.mark.parametrize("path", ["", "/etc/passwd", "..", "../x", "a/../x", "a//b", "./a", "a/.", "a\\b", "a\0b", "a\nb", "a\x1b[2Jb", "a\x9bb", "C:x",
                                  "a/" + "x" * 201, "\ud800"])
def test_paths_that_no_folder_of_ours_holds(path: str) -> None:
    assert path_fault(path)


@pytest.mark.parametrize("path", ["config.json", "a b/ü.gguf", "..a", "a..b", ".hidden", "x" * 200])
def test_ordinary_paths(path: str) -> None:
    assert path_fault(path) is None


def test_case_collisions() -> None:
    assert case_collision(["a", "b", "A"]) == ("a", "A")
    assert case_collision(["a", "b", "a"]) is None


@pytest.mark.parametrize("text", ["", "huggingface.co", "ftp://x", "http://", "https://h?x=1", "https://h#x", "http://[::1", "http://h:x"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="no address of a hub"):
        normal_endpoint(text)


def test_an_address_with_a_password_is_not_repeated() -> None:
    with pytest.raises(UsageError, match="holds a user name or a password") as caught:
        normal_endpoint("https://me:word@hub.example")
    assert "word@" not in str(caught.value) and "HF_TOKEN" in caught.value.advice


def test_a_final_slash_is_dropped() -> None:
    assert normal_endpoint("https://hub.example/mirror/") == "https://hub.example/mirror"
