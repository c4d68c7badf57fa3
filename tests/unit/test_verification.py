"""Verification of a staged bundle: every claim is recomputed, every lie named. Contract codes: V1, X15, B2, P49, P50."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bundle_case import Checkout, stage

from gemma4web import verification
from gemma4web.__main__ import main
from gemma4web.errors import Gemma4WebError, VerifyError
from gemma4web.files import dump_json, sha256_file


def test_every_flipped_bit_is_named(staged: Checkout) -> None:
    """V1: one bit in any file, receipts and manifest included."""
    for path in sorted(staged.bundle.rglob("*")):
        if path.is_dir():
            continue
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        problems = verification.verify(staged.bundle)
        assert problems, path
        assert path.name in " ".join(problems), (path, problems)
        path.write_bytes(data)
    assert verification.verify(staged.bundle) == []


def test_truncated_missing_extra_and_linked(staged: Checkout) -> None:
    bundle = staged.bundle
    (bundle / "app.js").write_bytes(b"")
    (bundle / "run.html").unlink()
    (bundle / "runtime/orphan.wasm").write_bytes(b"x")
    (bundle / "empty").mkdir()
    (bundle / "index.html").unlink()
    (bundle / "index.html").symlink_to(staged.root / "web/index.html")
    problems = "\n".join(verification.verify(bundle))
    for line in ("app.js differs: 0 bytes", "run.html is missing", "runtime/orphan.wasm is extra", "empty is an extra",
                 "index.html is not a regular file"):
        assert line in problems


def test_linked_folder_is_found(staged: Checkout) -> None:
    """P49: a folder that leads out of the bundle."""
    shutil.move(staged.bundle / "model", staged.root / "elsewhere")
    (staged.bundle / "model").symlink_to(staged.root / "elsewhere")
    assert "model is not a regular file" in verification.verify(staged.bundle)


def rewrite_manifest(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """What someone does who edits a file and then makes the manifest agree with it."""
    document = json.loads((bundle / "manifest.json").read_bytes())
    change(document)
    for path in document["files"]:
        data = (bundle / path).read_bytes()
        document["files"][path] = {"bytes": len(data), "sha256": sha256_file(bundle / path)}
    for module in document["variants"].values():
        for part in ("js", "wasm"):
            module[part].update(document["files"][module[part]["path"]])
    document["source_receipt"]["sha256"] = document["files"]["receipt.json"]["sha256"]
    (bundle / "manifest.json").write_text(dump_json(document), encoding="utf-8")


@pytest.mark.parametrize("name", ["index.html", "runtime/gemma4.wasm", "runtime/gemma4_mtp.js"])
def test_manifest_that_was_made_to_agree(staged: Checkout, name: str) -> None:
    """The manifest alone proves nothing: its files are compared with what the receipt says was built."""
    (staged.bundle / name).write_bytes(b"tampered")
    rewrite_manifest(staged.bundle, lambda document: None)
    assert verification.verify(staged.bundle) == [f"{name} is not the file that receipt.json says was built"]


@pytest.mark.parametrize(("change", "said"), [
    (lambda d: d["toolchain"].update(emcc="9"), "the toolchain is not the one in receipt.json"),
    (lambda d: d["provider"].update(kind="other"), "the provider is not the one in receipt.json"),
    (lambda d: d["variants"]["plain-wall"]["recipe"]["flags"].append("-O3"), "the recipe of plain-wall is not"),
    (lambda d: d["model"].update(name="bigger"), "`model` is not the content of model/model.json"),
])
def test_claims_that_the_receipts_contradict(staged: Checkout, change: Any, said: str) -> None:
    rewrite_manifest(staged.bundle, change)
    problems = verification.verify(staged.bundle)
    assert len(problems) == 1
    assert said in problems[0]


def test_listed_stranger_is_found(staged: Checkout) -> None:
    (staged.bundle / "stranger.js").write_bytes(b"x")
    rewrite_manifest(staged.bundle, lambda d: d["files"].update({"stranger.js": {}}))
    assert verification.verify(staged.bundle) == ["stranger.js comes neither from receipt.json nor from the model"]


def test_a_bundle_without_its_word_to_the_host_is_found(staged: Checkout) -> None:
    """B2, P48: `.nojekyll` is a file as any other: listed, hashed, and what it has to be."""
    (staged.bundle / ".nojekyll").write_bytes(b"x")
    assert verification.verify(staged.bundle)[0].startswith(".nojekyll differs: 1 bytes")
    rewrite_manifest(staged.bundle, lambda d: None)
    assert verification.verify(staged.bundle) == [".nojekyll is not the file that every bundle holds for static hosts"]
    (staged.bundle / ".nojekyll").unlink()
    assert verification.verify(staged.bundle)[0] == ".nojekyll is missing"
    rewrite_manifest(staged.bundle, lambda d: d["files"].pop(".nojekyll"))
    assert verification.verify(staged.bundle) == [".nojekyll is not the file that every bundle holds for static hosts"]


def test_edited_receipt_is_found(staged: Checkout) -> None:
    path = staged.bundle / "receipt.json"
    document = json.loads(path.read_bytes())
    document["sources"]["runtime_cpp/src/a.cc"]["sha256"] = "0" * 64
    path.write_text(dump_json(document), encoding="utf-8")
    rewrite_manifest(staged.bundle, lambda d: None)
    assert any("changed between the actions" in problem for problem in verification.verify(staged.bundle))


def test_each_remedy_is_printed_once(staged: Checkout) -> None:
    """A manifest or a receipt that cannot be read comes with a remedy of its own, which is not that of the bundle."""
    (staged.bundle / "manifest.json").write_text("{", encoding="utf-8")
    for path in ("manifest.json", "model/model.json"):
        with pytest.raises(VerifyError) as caught:
            verification.verify_or_raise(staged.bundle)
        assert str(caught.value).count("remedy:") == 1, path
        stage(staged)
        (staged.bundle / "model/model.json").write_text("[]", encoding="utf-8")
        rewrite_manifest(staged.bundle, lambda d: None)


def test_command(staged: Checkout, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(staged.bundle)]) == 0
    assert "all as claimed" in capsys.readouterr().out
    (staged.bundle / "app.js").write_bytes(b"x")
    assert main(["verify", str(staged.bundle)]) == VerifyError.exit_code
    error = capsys.readouterr().err
    assert "app.js differs" in error
    assert error.count("remedy: stage the bundle again") == 1
    assert main(["verify", str(staged.root / "none")]) == VerifyError.exit_code
    assert "there is no bundle at" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code", "says"), [
    (["--nonsense"], 2, "unrecognized arguments: --nonsense"), (["x", "y"], 2, "unrecognized arguments: y"),
    (["--help"], 0, "Recomputes every claim"),
])
def test_command_line(words: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", *words])
    assert caught.value.code == code
    assert says in "".join(capsys.readouterr())


def test_bundle_without_manifest_is_unpublished(staged: Checkout) -> None:
    """X15 for bundles: the manifest is what makes the folder one."""
    (staged.bundle / "manifest.json").unlink()
    with pytest.raises(Gemma4WebError, match=r"manifest\.json"):
        verification.verify_or_raise(staged.bundle)
