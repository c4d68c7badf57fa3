"""Help, dry runs, cleaning, wrong options, MODEL=: what a user types. Contract codes: B1, V12, X18."""

from __future__ import annotations

import fcntl
import re
import shutil
from pathlib import Path

import pytest
from tiny_project import CHECKOUT, Project

from gemma4web.__main__ import COMMANDS

ALIASES = ("toolchain", "plain", "mtp", "bundle", "verify", "run", "serve", "bench", "bench-kernels", "test", "check", "kernels",
           "kernels-lock")


@pytest.fixture
def bare(fresh: Project) -> Project:
    """A project on a machine without any tool."""
    shutil.rmtree(fresh.root / "tools")
    shutil.rmtree(fresh.root / "node_modules")
    return fresh


def test_help_needs_no_tool(bare: Project) -> None:
    out = bare.scons("-h").out
    for name in ALIASES:
        assert re.search(rf"^  (\S+, )?{name}[ ,]", out, flags=re.MULTILINE), name
    assert re.search(r"^  DEBUG=  .*\(0\|1\) \[0\]$", out, flags=re.MULTILINE), "as the README writes it"
    assert bare.calls() == []


def test_dry_run_needs_no_tool_and_writes_nothing(bare: Project) -> None:
    before = bare.snapshot()
    out = bare.scons("-n", "bundle", "verify", "kernels").out
    assert "setting up the toolchain" in out
    assert "linking build/mtp-wall/gemma4_mtp.js" in out
    assert "staging build/bundle" in out
    assert bare.snapshot() == before


def test_dry_run_after_an_edit_writes_nothing(built: Project) -> None:
    built.edit("runtime_cpp/src/base/number.h", "int number()", "long number()")
    before = built.snapshot()
    assert "compiling runtime_cpp/src/base/number.cc for shared" in built.scons("-n").out
    assert built.snapshot() == before


def test_clean_leaves_nothing_and_needs_no_tool(built: Project) -> None:
    built.scons("DEBUG=1")
    compiled = built.path("runtime_cpp/webgpu_port/__pycache__/webgpu_port.port.cpython-311.pyc")
    compiled.parent.mkdir(parents=True)
    compiled.write_bytes(b"compiled when emcc loaded the port")
    shutil.rmtree(built.root / "tools")
    built.scons("-c")
    left = [path for path in (built.root / "build").rglob("*") if path.is_file()]
    assert left == []
    assert not compiled.parent.exists()
    assert built.path("runtime_cpp/kernels/kernels.lock.json").is_file()


def test_clean_spares_foreign_files_and_the_cache(built: Project) -> None:
    foreign, cached = built.path("build/notes/mine.txt"), built.path("cache/tool")
    for path in (foreign, cached):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine", encoding="utf-8")
    built.scons("-c")
    assert foreign.is_file()
    assert cached.is_file()


def test_cleaning_the_lock_alias_spares_the_committed_lock(built: Project) -> None:
    built.scons("-c", "kernels-lock", "kernels")
    assert built.path("runtime_cpp/kernels/kernels.lock.json").is_file()


def test_unknown_option_is_refused(built: Project) -> None:
    result = built.scons("BROSWER=/bin/chromium", expect=2)
    assert "UsageError: BROSWER is no option" in result.out
    assert "Traceback" not in result.out


@pytest.mark.parametrize(("option", "said"), [
    ("PROVIDER=dawn", "PROVIDER"), ("HOST=geocities", "HOST"), ("DEBUG=perhaps", "DEBUG"),
    ("DEFINE=plain:X=1", "plain"), ("DEFINE=plain-wall:X", "NAME=VALUE"), ("MODEL=no/such/folder", "no/such/folder"),
    ("REPEATS=none", "REPEATS"), ("PORT=http", "PORT"), ("PORT=65536", "PORT"), ("PORT=", "PORT"), ("PROMPTS=no.json", "no.json"),
])
def test_bad_option_values_are_refused(built: Project, option: str, said: str) -> None:
    result = built.scons("run" if option.startswith("PROMPTS") else "bundle", option, expect=2)
    assert said in result.out
    assert "Traceback" not in result.out
    assert built.calls() == []


def test_serving_on_a_port_of_ones_own(built: Project) -> None:
    """B1: the remedy for a port in use, `scons serve PORT=N`, is one that SCons knows."""
    assert f"stand-in serve --bundle {built.path('build/bundle')} --port 8420" in built.scons("serve").out
    assert "--port 0" in built.scons("serve", "PORT=0").out


def test_second_build_waits_for_the_first(built: Project) -> None:
    """Two builds in one checkout would remove each other's outputs."""
    with built.path("SConstruct").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        process = built.start()
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("another scons works in this checkout; waiting for it" in line for line in lines)
        assert built.scons("-n").code == 0, "looking does not wait"
        assert process.poll() is None
    assert "`bundle' is up to date" in process.communicate(timeout=60)[0]
    assert process.returncode == 0


def test_stale_lock_fails_and_one_command_mends_it(built: Project) -> None:
    """O7: drift between kernels and lock fails, naming the kernel."""
    built.edit("runtime_cpp/kernels/include/twice.wgsl", "x + x", "2.0 * x")
    result = built.scons(expect=2)
    assert "changed: double" in result.out
    assert "scons kernels-lock" in result.out
    assert built.scons("kernels-lock", "bundle").code == 0
    assert built.scons().up_to_date


def test_orphaned_lock_entry_fails(built: Project) -> None:
    """V11: a lock entry without a kernel file is caught."""
    kernel = built.path("runtime_cpp/kernels/double.wgsl")
    kernel.with_name("other.wgsl").write_text(kernel.read_text(encoding="utf-8"), encoding="utf-8")
    built.scons("kernels-lock", "bundle")
    kernel.with_name("other.wgsl").unlink()
    assert "orphaned: other" in built.scons(expect=2).out


def test_model_has_a_bundle_of_its_own(built: Project) -> None:
    shutil.copytree(built.root / "build/model", built.root / "exports/other-model")
    before = built.path("build/bundle/manifest.json").read_bytes()
    built.scons("bundle", "verify", "MODEL=exports/other-model")
    assert built.path("build/bundle-other-model/model/model.json").is_file()
    assert built.path("build/bundle/manifest.json").read_bytes() == before
    assert built.calls() == []
    assert "up to date" in built.scons("bundle", "MODEL=exports/other-model").out


def test_model_outside_the_checkout(built: Project, tmp_path: Path) -> None:
    model = tmp_path / "far away" / "other model"
    shutil.copytree(built.root / "build/model", model)
    built.scons("bundle", "verify", f"MODEL={model}")
    bundle, = built.path("build").glob("bundle-other model-????????")
    assert (bundle / "model/model.json").is_file()


def test_no_two_models_and_no_debug_build_share_a_bundle(built: Project) -> None:
    """B2: one folder, one owner. Names alone collide: exports/debug with DEBUG=1, a/mine with b/mine."""
    places = ("exports/debug", "exports/mine", "exports/mine-debug", "a/mine", "b/mine", "b/mine-debug", "b/debug")
    named = {}
    for place in places:
        built.path(place).mkdir(parents=True)
        built.path(f"{place}/model.json").write_text("{}\n", encoding="utf-8")
    for words in ((), ("DEBUG=1",)):
        for place in ("", *(f"MODEL={place}" for place in places)):
            out = built.scons("-n", "verify", *words, *filter(None, [place])).out
            named[place, words], = re.findall(r"verifying build/(\S+)", out)
    assert len(set(named.values())) == len(named), named
    assert {named["", ()], named["", ("DEBUG=1",)], named["MODEL=exports/mine", ()]} == {
        "bundle", "bundle-debug", "bundle-mine"}


def test_readme_tables_name_real_targets_and_options() -> None:
    """V12: every alias and option in the README exists, and every one that exists is in the README."""
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    construct = (CHECKOUT / "SConstruct").read_text(encoding="utf-8")
    for name in ALIASES:
        assert re.search(rf"^\| `scons {name}`", readme, flags=re.MULTILINE), name
    for command in COMMANDS:
        assert f"`{command}`" in readme, command
    options = set(re.findall(r'^    (?:EnumVariable|BoolVariable|)\("([A-Z_]+)"', construct, flags=re.MULTILINE))
    assert options == set(re.findall(r"^\| `([A-Z_]+)=", readme, flags=re.MULTILINE))
