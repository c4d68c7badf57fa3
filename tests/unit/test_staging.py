"""Staging as one step. Contract codes: X14, X18, B2, P48, P49, P50."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_case import Checkout, put, stage, write_model_receipt

from gemma4web import staging, verification
from gemma4web.errors import PublishError, RecordError, UsageError
from gemma4web.files import sha256_file

CHECKOUT = Path(__file__).resolve().parents[2]


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def siblings(checkout: Checkout) -> list[str]:
    return [path.name for path in checkout.bundle.parent.iterdir() if path.name.startswith(".bundle")]


def test_staged_bundle_holds_what_it_claims(staged: Checkout) -> None:
    assert verification.verify(staged.bundle) == []
    assert siblings(staged) == []
    assert "all as claimed" in verification.verify_or_raise(staged.bundle)
    document = json.loads((staged.bundle / "manifest.json").read_bytes())
    assert document["model"]["path"] == "model"
    assert document["source_receipt"]["sha256"] == sha256_file(staged.receipt)


def test_staging_twice_gives_equal_bytes(staged: Checkout) -> None:
    before = content(staged.bundle)
    stage(staged)
    assert content(staged.bundle) == before


def test_staging_replaces_the_whole_folder(staged: Checkout) -> None:
    (staged.bundle / "left over.txt").write_text("x", encoding="utf-8")
    stage(staged)
    assert not (staged.bundle / "left over.txt").exists()


def rewrite_model(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((folder / "model.json").read_bytes())
    change(document)
    write_model_receipt(folder, document)


def test_shard_of_another_export_is_found(checkout: Checkout) -> None:
    """A program never meets weights that it was not made for, even if every receipt was made to agree."""
    shard = checkout.model / "target-00001-of-00001.safetensors"
    shard.write_bytes(b"TARGET")
    rewrite_model(checkout.model, lambda d: d["files"][shard.name].update(sha256=sha256_file(shard)))
    with pytest.raises(PublishError, match=r"target-00001-of-00001.safetensors is not the shard that model/\w+.g4p"):
        stage(checkout)


def test_program_of_another_method_is_found(checkout: Checkout) -> None:
    """X1: the program that model.json names for a method is of that method."""
    def swap(document: dict[str, Any]) -> None:
        methods = document["methods"]
        methods["text_decoder"]["program"], methods["k2_round"]["program"] = "k2_round.g4p", "text_decoder.g4p"
    rewrite_model(checkout.model, swap)
    with pytest.raises(PublishError, match="is a program of 'k2_round', wanted 'text_decoder'"):
        stage(checkout)


@pytest.mark.parametrize(("change", "said"), [
    (lambda d: d.pop("source_sha256"), "not bound to a source receipt"),
    (lambda d: d.update(source_sha256="0" * 64), "not bound to a source receipt"),
    (lambda d: d["files"].pop("source.json"), "not bound to a source receipt"),
    (lambda d: d.update(schema=2), "not a model receipt of schema 1"), (lambda d: d.update(schema=True), "of schema 1"),
    (lambda d: d.update(files=[]), "no valid `files`"), (lambda d: d.update(methods={}), "names no method"),
    (lambda d: d["files"].update(x={"bytes": -1, "sha256": "0" * 64}), "no valid `files`"),
    (lambda d: d["files"].update(x={"bytes": 1, "sha256": "0" * 63}), "no valid `files`"),
    (lambda d: d["files"].update({"../x": {"bytes": 1, "sha256": "0" * 64}}), "no bundle may hold"),
    (lambda d: d["files"].update({"x": {"bytes": 1, "sha256": "0" * 64}}), "exactly the files"),
])
def test_bad_model_receipts_are_refused(checkout: Checkout, change: Any, said: str) -> None:
    """X18, P49, P50: an unbound or malformed model is never staged, and nothing is written."""
    rewrite_model(checkout.model, change)
    with pytest.raises((PublishError, RecordError), match=said) as caught:
        stage(checkout)
    assert "export the model again" in caught.value.advice
    assert not checkout.bundle.exists()
    assert siblings(checkout) == []


@pytest.mark.parametrize("both", [False, True])
def test_another_source_by_hand_is_refused(checkout: Checkout, both: bool) -> None:
    """X19, X20: where a model came from stands in two receipts, and each program is bound to one of them."""
    def relabel(document: dict[str, Any]) -> None:
        document["acquisition"]["target"]["repo"] = "better/model"
        if both:
            source = checkout.model / "source.json"
            source.write_text(json.dumps({"schema": 1, "inputs": document["acquisition"]}), encoding="utf-8")
            document["source_sha256"] = sha256_file(source)
            document["files"]["source.json"] = {"bytes": source.stat().st_size, "sha256": sha256_file(source)}
    rewrite_model(checkout.model, relabel)
    with pytest.raises(PublishError, match="was exported from other inputs than" if both else "`acquisition` is not what"):
        stage(checkout)
    assert not checkout.bundle.exists()


def test_unfinished_export_is_refused(checkout: Checkout) -> None:
    """X15: no model receipt, not published."""
    (checkout.model / "model.json").unlink()
    with pytest.raises(PublishError, match=r"holds no model\.json: it is not a finished export"):
        stage(checkout)


def test_stranger_in_the_model_folder_is_refused(checkout: Checkout) -> None:
    (checkout.model / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(PublishError, match=r"notes\.txt"):
        stage(checkout)


def test_no_source_receipt_no_staging(checkout: Checkout) -> None:
    """X18."""
    checkout.receipt.unlink()
    with pytest.raises(PublishError, match="there is no source receipt"):
        stage(checkout)
    assert not checkout.bundle.exists()


SOURCES = ("build/plain-wall/gemma4.wasm", "web/index.html", "build/model/target-00001-of-00001.safetensors")


@pytest.mark.parametrize("name", SOURCES)
def test_source_that_changed_is_never_staged(staged: Checkout, name: str) -> None:
    before = content(staged.bundle)
    (staged.root / name).write_bytes(b"tampered")
    with pytest.raises(PublishError, match=f"{Path(name).name} is not the file that was built"):
        stage(staged)
    assert content(staged.bundle) == before
    assert siblings(staged) == []


@pytest.mark.parametrize("name", SOURCES)
def test_symbolic_links_are_refused(staged: Checkout, name: str) -> None:
    """P49: even a link to the very same bytes."""
    path = staged.root / name
    path.rename(staged.root / "elsewhere")
    path.symlink_to(staged.root / "elsewhere")
    with pytest.raises(PublishError, match="is a symbolic link"):
        stage(staged)


def test_missing_source_and_odd_files(staged: Checkout) -> None:
    path = staged.root / "web/index.html"
    path.unlink()
    with pytest.raises(PublishError, match=r"index\.html is missing"):
        stage(staged)
    path.mkdir()
    with pytest.raises(PublishError, match=r"index\.html is not a regular file|Is a directory"):
        stage(staged)


def failing_write(monkeypatch: pytest.MonkeyPatch, nth: int, error: BaseException) -> None:
    """Makes the nth call that copies or writes fail, after it has written something."""
    calls = 0
    real_copy, real_write, real_swap = staging._copy, staging._write_new, staging._swap

    def count(*arguments: Any, real: Callable[..., None]) -> None:
        nonlocal calls
        calls += 1
        if calls == nth:
            if real is real_copy:
                (arguments[1] / "half written").parent.mkdir(parents=True, exist_ok=True)
                (arguments[1] / "half written").write_bytes(b"half")
            raise error
        real(*arguments)

    for name, real in (("_copy", real_copy), ("_write_new", real_write), ("_swap", real_swap)):
        monkeypatch.setattr(staging, name, lambda *arguments, real=real: count(*arguments, real=real))


STEPS = 3 + 8 + 1 + 6 + 1 + 2  # page, runtime, receipt, model, word to the host, manifest and swap


@pytest.mark.parametrize("nth", range(1, STEPS + 1))
def test_full_disk_at_any_step(staged: Checkout, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """X14: whichever write meets the full disk, the old bundle stands byte for byte and nothing is left behind."""
    before = content(staged.bundle)
    failing_write(monkeypatch, nth, OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(PublishError, match="the disk is full while staging") as caught:
        stage(staged)
    assert "free some space" in caught.value.advice
    monkeypatch.undo()
    assert content(staged.bundle) == before
    assert siblings(staged) == []


@pytest.mark.parametrize("nth", [1, STEPS // 2, STEPS - 1, STEPS])
def test_interrupt_at_a_step(staged: Checkout, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    """X17: SIGINT rolls back and then propagates."""
    before = content(staged.bundle)
    failing_write(monkeypatch, nth, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        stage(staged)
    monkeypatch.undo()
    assert content(staged.bundle) == before
    assert siblings(staged) == []


def test_failure_leaves_no_first_bundle(checkout: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_write(monkeypatch, STEPS - 1, OSError(errno.EACCES, "Permission denied"))
    with pytest.raises(PublishError, match="Permission denied"):
        stage(checkout)
    assert not checkout.bundle.exists()
    assert siblings(checkout) == []


def test_second_rename_fails(staged: Checkout, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle that was moved aside comes back."""
    before = content(staged.bundle)
    real = Path.rename

    def rename(self: Path, target: Path) -> Path:
        if self.name == ".bundle.staging":
            raise OSError(errno.EIO, "Input/output error")
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(PublishError, match="Input/output error"):
        stage(staged)
    monkeypatch.undo()
    assert content(staged.bundle) == before
    assert siblings(staged) == []


@pytest.mark.parametrize("moved", [True, False])
def test_debris_of_a_kill_is_cleared(staged: Checkout, moved: bool) -> None:
    before = content(staged.bundle)
    previous = staged.bundle.with_name(".bundle.previous")
    if moved:
        staged.bundle.rename(previous)
    else:
        shutil.copytree(staged.bundle, previous)
    (staged.bundle.with_name(".bundle.staging") / "half").mkdir(parents=True)
    stage(staged)
    assert content(staged.bundle) == before
    assert siblings(staged) == []


def test_bundle_that_is_no_folder(staged: Checkout) -> None:
    shutil.rmtree(staged.bundle)
    staged.bundle.write_text("mine", encoding="utf-8")
    with pytest.raises(PublishError, match="is not a folder"):
        stage(staged)
    assert staged.bundle.read_text(encoding="utf-8") == "mine"


def test_host_limits_are_checked_before_writing(checkout: Checkout) -> None:
    """P48."""
    with pytest.raises(UsageError, match="'geocities' is no known host"):
        stage(checkout, host="geocities")
    with (checkout.root / "web/big.bin").open("wb") as stream:
        stream.truncate(26 << 20)
    checkout.write_receipt()
    with pytest.raises(PublishError, match=r"big\.bin has 27262976 bytes, cloudflare-pages serves at most"):
        stage(checkout, host="cloudflare-pages")
    assert not checkout.bundle.exists()


def test_every_bundle_can_go_to_github_pages(staged: Checkout) -> None:
    """P48: the vendored modules have names with `_`, which GitHub Pages drops unless `.nojekyll` is there."""
    vendored = [entry["as"] for entry in json.loads((CHECKOUT / "web/vendor.json").read_bytes())["files"]]
    assert any("/_" in name for name in vendored), "the case that this test is about"
    for name in vendored:
        put(staged.root, f"web/{name}", f"bytes of {name}")
    staged.write_receipt()
    for host in ("github-pages", "any"):
        manifest = stage(staged, host=host)
        assert {".nojekyll", *vendored} <= set(manifest.files)
        assert (staged.bundle / ".nojekyll").is_file()
        assert verification.verify(staged.bundle) == []


def test_unpublishable_names_are_refused(checkout: Checkout) -> None:
    """P49: what a host or file system would take for another name."""
    for name in ("nul.js", "a b .", "App.js"):
        path = checkout.root / "web" / name
        path.write_text("x", encoding="utf-8")
        checkout.write_receipt()
        with pytest.raises(PublishError, match="cannot be published"):
            stage(checkout)
        path.unlink()


def test_stamp_sees_sizes_and_times(staged: Checkout) -> None:
    stamp = staged.root / "build/bundle.stamp.json"
    assert not staging.is_untouched(staged.bundle, stamp)
    staging.write_stamp(staged.bundle, stamp)
    assert staging.is_untouched(staged.bundle, stamp)
    os.utime(staged.bundle / "app.js", ns=(0, 0))
    assert not staging.is_untouched(staged.bundle, stamp)
    staging.write_stamp(staged.bundle, stamp)
    (staged.bundle / "extra").write_bytes(b"")
    assert not staging.is_untouched(staged.bundle, stamp)
    staging.write_stamp(staged.bundle, stamp)
    (staged.bundle / "model/empty").mkdir()
    assert not staging.is_untouched(staged.bundle, stamp)
    stamp.write_text("{}", encoding="utf-8")
    assert not staging.is_untouched(staged.bundle, stamp)
