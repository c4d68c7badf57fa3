"""The staged bundle: closed-world, verified, replaced as a whole. Contract codes: X14, X18, X20, V1, V8, B2, P49."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from tiny_project import Project

EVERY_FILE = (
    ".nojekyll", "index.html", "run.html", "app.js", "vendor/pkg/a.js", "receipt.json",
    "runtime/gemma4.js", "runtime/gemma4.wasm", "runtime/gemma4_mtp_profile.js", "runtime/gemma4_mtp_profile.wasm",
    "model/model.json", "model/source.json", "model/k2_round.g4p", "model/target-00001-of-00001.safetensors",
)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_bundle_holds_exactly_its_files(built: Project) -> None:
    """B2: listed = present; what only the project needs (types, templates) is not published."""
    bundle = built.path("build/bundle")
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    present = {path.relative_to(bundle).as_posix() for path in bundle.rglob("*") if path.is_file()}
    assert present == {"manifest.json", *manifest["files"]}
    assert set(EVERY_FILE) <= present
    assert not {"tsconfig.json", "vendor.json", "templates/report.html.j2"} & present
    assert sorted(manifest["variants"]) == ["mtp-profile", "mtp-wall", "plain-profile", "plain-wall"]


@pytest.mark.parametrize("name", EVERY_FILE)
def test_flipped_bit_is_named(built: Project, name: str) -> None:
    """V1: any change of any file, receipts included, is found and named."""
    path = built.path(f"build/bundle/{name}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    result = built.scons("verify", expect=2)
    assert f"{name} differs" in result.out
    assert "Traceback" not in result.out


@pytest.mark.parametrize("secretly", [False, True])
def test_verification_reports_and_its_remedy_mends(built: Project, secretly: bool) -> None:
    """V1: damage is reported, never mended on the way; what the error advises mends it even if size and time were kept."""
    path = built.path("build/bundle/index.html")
    status = path.stat()
    path.write_text(path.read_text(encoding="utf-8").replace("page", "PAGE"), encoding="utf-8")
    if secretly:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    for _ in range(2):
        result = built.scons("verify", expect=2)
        assert "index.html differs" in result.out
        assert "remedy: stage the bundle: `scons bundle`" in result.out
        assert built.calls() == []
    assert "staging build/bundle" in built.scons("bundle").out
    assert built.scons("verify").code == 0


def test_missing_and_extra_files_are_named(built: Project) -> None:
    """B2, V1: all of them in one answer, and none is put back or taken away by looking."""
    built.path("build/bundle/app.js").unlink()
    built.path("build/bundle/model/k2_round.g4p").unlink()
    built.path("build/bundle/runtime/orphan.wasm").write_bytes(b"")
    before = built.snapshot()
    out = built.scons("verify", expect=2).out
    for problem in ("app.js is missing", "model/k2_round.g4p is missing", "runtime/orphan.wasm is extra"):
        assert problem in out
    assert built.snapshot().items() >= {name: state for name, state in before.items() if "build/bundle/" in name}.items()
    assert not built.path("build/bundle/app.js").exists()
    assert "all as claimed" in built.scons("bundle", "verify").out, "staging puts back what was removed, and drops the rest"
    assert not built.path("build/bundle/runtime/orphan.wasm").exists()


def test_an_extra_empty_folder_is_dropped_by_the_remedy(built: Project) -> None:
    """What verification names, staging must see too: it used to find everything up to date."""
    built.path("build/bundle/model/empty").mkdir()
    assert "model/empty is an extra, empty folder" in built.scons("verify", expect=2).out
    built.path("build/bundle/model/again").mkdir()
    assert built.scons("bundle").code == 0
    assert "all as claimed" in built.scons("verify").out


def test_verifying_what_was_never_staged_says_so(fresh: Project) -> None:
    result = fresh.scons("verify", "DEBUG=1", expect=2)
    assert "there is no bundle at" in result.out
    assert "remedy: stage the bundle: `scons bundle DEBUG=1`" in result.out
    assert fresh.calls() == [], "verification builds nothing"


def test_verifying_an_old_bundle_names_what_changed_since(built: Project) -> None:
    """The bundle is what it claims, yet not what the checkout would give."""
    built.path("web/app.js").write_text("export const page = 2;\n", encoding="utf-8")
    built.path("web/other.js").write_text("export {};\n", encoding="utf-8")
    out = built.scons("verify").out
    assert "all as claimed" in out
    assert "the checkout has changed since: web/app.js, web/other.js; `scons bundle` brings the bundle up to date" in out
    assert "changed since" not in built.scons("bundle", "verify").out


def test_removed_page_file_leaves_the_bundle(built: Project) -> None:
    built.path("web/app.js").unlink()
    built.scons()
    assert not built.path("build/bundle/app.js").exists()


def test_tampered_build_output_is_never_staged(built: Project) -> None:
    """The copy is compared with what the link wrote, so a changed output is not blessed by staging it."""
    wasm = built.path("build/plain-wall/gemma4.wasm")
    wasm.write_bytes(wasm.read_bytes()[::-1])
    before = built.path("build/bundle/manifest.json").read_bytes()
    result = built.scons(expect=2)
    assert "build/plain-wall/gemma4.wasm is not what its action wrote" in result.out
    assert built.path("build/bundle/manifest.json").read_bytes() == before
    wasm.unlink()
    assert built.scons("bundle", "verify").code == 0


def test_tampered_shard_is_never_staged(built: Project) -> None:
    model = built.path("exports/m")
    shutil.copytree(built.root / "build/model", model)
    shard = model / "target-00001-of-00001.safetensors"
    shard.write_bytes(shard.read_bytes() + b"x")
    result = built.scons("MODEL=exports/m", expect=2)
    assert "target-00001-of-00001.safetensors is not the file that was built" in result.out
    assert files_below(built.path("build/bundle-m")) == []


def test_model_without_source_receipt_is_never_staged(built: Project) -> None:
    """X18: no hashed source receipt, no staging."""
    model = built.path("exports/m")
    shutil.copytree(built.root / "build/model", model)
    document = json.loads((model / "model.json").read_bytes())
    del document["files"]["source.json"]
    (model / "source.json").unlink()
    (model / "model.json").write_text(json.dumps(document), encoding="utf-8")
    result = built.scons("MODEL=exports/m", expect=2)
    assert "not bound to a source receipt" in result.out
    assert files_below(built.path("build/bundle-m")) == []


def test_symlinked_page_file_is_refused(built: Project) -> None:
    """P49: nothing outside the checkout can slip in through a link."""
    secret = built.path("secret.txt")
    secret.write_text("secret", encoding="utf-8")
    built.path("web/link.js").symlink_to(secret)
    result = built.scons(expect=2)
    assert "link.js is a symbolic link" in result.out
    assert not built.path("build/bundle/link.js").exists()


def test_interrupt_while_staging_keeps_a_whole_bundle(built: Project) -> None:
    """X17 for the build's own folder: SIGINT leaves the old bundle or the new one, never a mixture or debris."""
    built.path("web/large.bin").write_bytes(os.urandom(1 << 20) * 64)
    process = built.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("staging build/bundle"):
            process.send_signal(signal.SIGINT)
            break
    process.stdout.read()
    process.wait(timeout=60)
    process.stdout.close()
    assert [path.name for path in built.path("build").iterdir() if path.name.startswith(".bundle")] == []
    assert built.scons("verify").code == 0


def test_killed_staging_is_cleared_by_the_next(built: Project) -> None:
    """SIGKILL between the two renames: the old bundle comes back, the half copy goes."""
    bundle = built.path("build/bundle")
    bundle.rename(built.path("build/.bundle.previous"))
    staging = built.path("build/.bundle.staging")
    staging.mkdir()
    (staging / "half").write_text("half", encoding="utf-8")
    built.scons("bundle", "verify")
    assert not staging.exists()
    assert not built.path("build/.bundle.previous").exists()


def test_host_limits_name_each_offender(built: Project) -> None:
    big = built.path("web/big.bin")
    with big.open("wb") as stream:
        stream.truncate(26 * 1024 * 1024)
    result = built.scons("HOST=cloudflare-pages", expect=2)
    assert "big.bin has 27262976 bytes, cloudflare-pages serves at most 26214400" in result.out


def test_case_collision_is_refused(built: Project) -> None:
    built.path("web/App.js").write_text("export {};\n", encoding="utf-8")
    assert "differ only in case" in built.scons(expect=2).out


def test_plain_output_does_not_depend_on_mtp(built: Project, tmp_path: Path) -> None:
    """X21: an edit that only MTP sees leaves the plain modules byte-identical."""
    before = {name: built.path(f"build/{name}").read_bytes()
              for name in ("plain-wall/gemma4.js", "plain-wall/gemma4.wasm", "plain-profile/gemma4_profile.wasm")}
    built.scons("DEFINE=mtp-wall:GEMMA4_TRACE=1,mtp-profile:GEMMA4_TRACE=1")
    assert {name: built.path(f"build/{name}").read_bytes() for name in before} == before
