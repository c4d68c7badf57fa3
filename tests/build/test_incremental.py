"""What an edit rebuilds, and what it leaves alone. Contract codes: P11, P12, V14, N1, STYLE's list of build tests."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tiny_project import VARIANTS, Project

ENTRY = [f"compile build/{name}/obj/api/entry.o" for name in VARIANTS]
TIMER = [f"compile build/{name}/obj/base/timer.o" for name in ("wall", "profile")]
NUMBER = ["compile build/shared/obj/base/number.o"]
SHADERS = ["compile build/shared/obj/gen/kernels.o"]
UNITS = [*ENTRY, *TIMER, *NUMBER, *SHADERS]
LINKS = ["link build/plain-wall/gemma4.js", "link build/plain-profile/gemma4_profile.js",
         "link build/mtp-wall/gemma4_mtp.js", "link build/mtp-profile/gemma4_mtp_profile.js"]


def test_second_build_does_nothing(built: Project) -> None:
    before = built.snapshot()
    assert built.scons().up_to_date
    assert built.calls() == []
    after = built.snapshot()
    assert {name for name in after if after[name] != before.get(name)} <= {".sconsign_sha256.dblite"}


def test_touch_does_nothing(built: Project) -> None:
    for path in (built.root / "runtime_cpp").rglob("*"):
        os.utime(path)
    assert built.scons().up_to_date
    assert built.calls() == []


@pytest.mark.parametrize(("name", "old", "new", "wanted"), [
    ("runtime_cpp/src/base/number.cc", "return 4", "return 5", NUMBER + LINKS),
    ("runtime_cpp/src/base/number.h", "int number();", "long number();", ENTRY + NUMBER + LINKS),
    ("runtime_cpp/src/api/events.js", "events", "more events", LINKS),
    ("runtime_cpp/exports.txt", "g4_number", "g4_number\ng4_other", LINKS),
    ("site_scons/gemma4web/program/program.fbs", "namespace", "// schema\nnamespace", ["flatc", *ENTRY, *LINKS]),
    ("runtime_cpp/kernels/include/twice.wgsl", "x + x", "2.0 * x", SHADERS + LINKS),
    ("runtime_cpp/src/base/timer.h", "int timer", "long timer", ENTRY + TIMER + LINKS),
], ids=["source", "header", "js-library", "exports", "schema", "wgsl-include", "profile-header"])
def test_edit_rebuilds_dependents_only(built: Project, name: str, old: str, new: str, wanted: list[str]) -> None:
    manifest = built.path("build/bundle/manifest.json").read_bytes()
    built.edit(name, old, new)
    built.scons("kernels-lock", "bundle")
    calls = built.calls()
    assert sorted(calls) == sorted(wanted)
    assert built.path("build/bundle/manifest.json").read_bytes() != manifest
    assert built.scons("verify").code == 0


@pytest.mark.parametrize(("name", "old", "new", "wanted"), [
    ("runtime_cpp/src/base/number.h", "int number()", "int numbre()", ENTRY + NUMBER + LINKS),
    ("runtime_cpp/kernels/double.wgsl", "count: u32", "count: i32", ENTRY + SHADERS + LINKS),
    ("runtime_cpp/kernels/include/twice.wgsl", "x + x", "x * x", SHADERS + LINKS),
    ("runtime_cpp/src/api/events.js", "events", "EVENTS", LINKS),
], ids=["header", "wgsl", "wgsl-include", "js-library"])
def test_edit_that_keeps_size_and_time_is_seen(built: Project, name: str, old: str, new: str,
                                               wanted: list[str]) -> None:
    """P11: time stamps are never trusted."""
    built.edit_secretly(name, old, new)
    built.scons("kernels-lock", "bundle")
    assert sorted(built.calls()) == sorted(wanted)


@pytest.mark.parametrize(("name", "old", "new", "staged"), [
    ("web/index.html", "page", "PAGE", "index.html"),
    ("node_modules/pkg/dist/a.js", "a = 1", "a = 2", None),
    ("fixtures/story/story-target.gguf", "target", "TARGET", "model/target-00001-of-00001.safetensors"),
], ids=["page", "npm-package", "checkpoint"])
def test_secret_edit_of_bundle_inputs(built: Project, name: str, old: str, new: str, staged: str | None) -> None:
    """P11 for what is staged and not compiled. npm packages are pinned by the toolchain's identity instead."""
    built.edit_secretly(name, old, new)
    built.scons()
    assert built.calls() == []
    if staged is not None:
        assert new in built.path(f"build/bundle/{staged}").read_text(encoding="utf-8")


def test_symlink_target_edit_is_seen(built: Project) -> None:
    """P11: a header that is a symbolic link rebuilds when the file it names changes."""
    header, elsewhere = built.path("runtime_cpp/src/base/number.h"), built.path("elsewhere.h")
    header.rename(elsewhere)
    header.symlink_to("../../../elsewhere.h")
    assert built.scons().up_to_date
    built.edit_secretly("elsewhere.h", "int number()", "int numbre()")
    built.scons()
    assert sorted(built.calls()) == sorted(ENTRY + NUMBER + LINKS)


def test_new_header_that_shadows_is_seen(built: Project) -> None:
    """A file that appears earlier on the include path changes what is compiled."""
    built.edit("runtime_cpp/src/base/number.cc", '"base/number.h"', '"program_generated.h"')
    built.scons()
    assert sorted(built.calls()) == sorted(NUMBER + LINKS)
    built.path("runtime_cpp/src/program_generated.h").write_text("#pragma once\nint number();\n", encoding="utf-8")
    built.scons()
    assert sorted(built.calls()) == sorted(NUMBER + ENTRY + LINKS)


def test_what_compiling_leaves_beside_the_provider_is_no_change(built: Project) -> None:
    """N1, STYLE: after one build the second does nothing. emcc loads the port's Python file, which compiles it there."""
    port = built.path("runtime_cpp/webgpu_port/webgpu_port.port.py")
    port.parent.mkdir(parents=True)
    port.write_text("# port\n", encoding="utf-8")
    built.scons()
    assert built.calls() == ["set-up"]
    for name in ("__pycache__/webgpu_port.port.cpython-311.pyc", ".webgpu_port.port.py.swp"):
        (port.parent / name).parent.mkdir(exist_ok=True)
        (port.parent / name).write_bytes(b"x")
        assert built.scons().up_to_date
    port.write_text("# PORT\n", encoding="utf-8")
    built.scons()
    assert built.calls() == ["set-up"]


@pytest.mark.parametrize(("module", "wanted"), [
    ("kernels/render.py", []),
    ("compile.py", ["flatc", *UNITS, *LINKS]),
    ("link.py", LINKS),
    ("toolchain/__init__.py", ["set-up"]),
])
def test_generator_edit_runs_it_again(built: Project, module: str, wanted: list[str]) -> None:
    """The Python that generates is an input: its edit reruns it, and equal output rebuilds nothing further."""
    built.edit(f"site_scons/gemma4web/{module}", "from __future__", "# edited\nfrom __future__")
    result = built.scons()
    assert ("generating build/gen/kernels.h" in result.out) == (module == "kernels/render.py")
    assert sorted(built.calls()) == sorted(wanted)


def test_generator_edit_that_changes_output(built: Project) -> None:
    built.edit("site_scons/gemma4web/kernels/render.py", "namespace gemma4::kernels {", "namespace gemma4::kernels {\n")
    built.scons()
    assert sorted(built.calls()) == sorted(ENTRY + SHADERS + LINKS)


def test_toolchain_change_rebuilds_everything(built: Project) -> None:
    """The toolchain's identity is a file in the graph; the receipt and the manifest carry it."""
    built.edit("tools.txt", "1.0", "1.1")
    built.scons()
    assert sorted(built.calls()) == sorted(["set-up", "flatc", *UNITS, *LINKS])
    manifest = json.loads(built.path("build/bundle/manifest.json").read_bytes())
    assert manifest["toolchain"]["version"] == "1.1"


def test_provider_change_rebuilds_everything(built: Project) -> None:
    """G9, P07: another provider reaches compile and link alike, and the manifest names it."""
    built.scons("PROVIDER=webgpu_port")
    assert sorted(built.calls()) == sorted(["set-up", "flatc", *UNITS, *LINKS])
    manifest = json.loads(built.path("build/bundle/manifest.json").read_bytes())
    assert manifest["provider"]["kind"] == "webgpu_port"


def test_one_variants_flag_rebuilds_one_variant(built: Project) -> None:
    built.scons("DEFINE=mtp-wall:GEMMA4_TRACE=1")
    assert sorted(built.calls()) == sorted([
        *(f"compile build/mtp-wall/obj/{unit}.o" for unit in ("api/entry", "base/number", "base/timer", "gen/kernels")),
        "link build/mtp-wall/gemma4_mtp.js"])
    manifest = json.loads(built.path("build/bundle/manifest.json").read_bytes())
    assert "GEMMA4_TRACE=1" in manifest["variants"]["mtp-wall"]["recipe"]["defines"]
    assert "GEMMA4_TRACE=1" not in manifest["variants"]["plain-wall"]["recipe"]["defines"]


def test_debug_has_folders_of_its_own(built: Project) -> None:
    assert built.scons("DEBUG=1").code == 0
    assert len(built.calls()) == len(UNITS) + len(LINKS)
    assert built.path("build/bundle-debug/manifest.json").is_file()
    assert built.scons().up_to_date
    assert built.calls() == []


def test_new_and_removed_sources(built: Project) -> None:
    """Source lists are globs: a new file is compiled and linked, a removed one leaves the link."""
    added = built.path("runtime_cpp/src/base/added.cc")
    added.write_text("int added() { return 1; }\n", encoding="utf-8")
    built.scons()
    assert sorted(built.calls()) == sorted(["compile build/shared/obj/base/added.o", *LINKS])
    added.unlink()
    built.scons()
    assert sorted(built.calls()) == sorted(LINKS)


def test_every_unit_is_compiled_before_the_first_link(fresh: Project) -> None:
    """V14: an error in any translation unit is reported before anything is linked."""
    fresh.scons("-j4")
    kinds = [call.split()[0] for call in fresh.calls() if call.startswith(("compile", "link"))]
    assert kinds == ["compile"] * len(UNITS) + ["link"] * len(LINKS)


def test_plain_does_not_build_mtp(fresh: Project) -> None:
    """X21: plain stands alone."""
    fresh.scons("plain")
    assert not [call for call in fresh.calls() if "mtp" in call]
    assert fresh.path("build/plain-wall/gemma4.wasm").is_file()


def test_unit_becomes_a_variants_own(built: Project) -> None:
    """A unit that begins to mention a macro leaves the shared objects, and comes back when it no longer does."""
    built.edit("runtime_cpp/src/base/number.cc", "return 4", "return GEMMA4_PROFILE")
    built.scons()
    assert sorted(built.calls()) == sorted([*(f"compile build/{name}/obj/base/number.o" for name in ("wall", "profile")),
                                            *LINKS])
    built.edit("runtime_cpp/src/base/number.cc", "return GEMMA4_PROFILE", "return 4")
    built.scons("bundle", "verify")


def test_compile_error_names_source_and_links_nothing(built: Project) -> None:
    built.edit("runtime_cpp/src/base/number.cc", "int number", "#error no\nint number")
    result = built.scons(expect=2)
    assert "CompileError: compiling runtime_cpp/src/base/number.cc" in result.out
    assert "number.cc:1:2: error: the source says #error" in result.out
    assert "Traceback" not in result.out
    assert not [call for call in built.calls() if call.startswith("link")]


def test_unseen_include_is_an_error(built: Project) -> None:
    """P11: an include that the scanner cannot see would never trigger a rebuild, so it is refused."""
    built.path("runtime_cpp/src/base/hidden.h").write_text("int hidden();\n", encoding="utf-8")
    built.edit("runtime_cpp/src/base/number.cc", "int number() {", "#include MACRO_hidden\nint number() {")
    result = built.scons(expect=2)
    assert "includes runtime_cpp/src/base/hidden.h, which the build does not see as its input" in result.out


def test_missing_output_is_made_again(built: Project) -> None:
    built.path("build/mtp-wall/gemma4_mtp.wasm").unlink()
    built.scons()
    assert built.calls() == ["link build/mtp-wall/gemma4_mtp.js"]


def test_two_folders_give_equal_bytes(built: Project, tmp_path: Path) -> None:
    """P12, N1: the same sources built in another folder give byte-equal manifests."""
    other = Project(root=tmp_path / "other")
    shutil.copytree(built.root, other.root, ignore=shutil.ignore_patterns("build", ".sconsign*", "__pycache__"))
    other.scons("-j1")
    assert len(other.calls()) == 2 + len(UNITS) + len(LINKS)
    assert (other.root / "build/bundle/manifest.json").read_bytes() == \
        (built.root / "build/bundle/manifest.json").read_bytes()
    assert str(built.root) not in (built.root / "build/bundle/receipt.json").read_text(encoding="utf-8")
