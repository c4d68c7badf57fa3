"""Flags, exports, dependency files and the two compiler steps. Contract codes: P07, P11, P12, V7, V10, V14, R10."""

from __future__ import annotations

import os
import runpy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemma4web import compile as steps
from gemma4web import link
from gemma4web.errors import CompileError
from gemma4web.receipts import read_action
from gemma4web.variants import VARIANTS, Variant

IDENTITY = {"version": "1", "provider": {"kind": "webgpu_port", "sha256": "0" * 64}}
PLAIN_WALL, PLAIN_PROFILE, MTP_WALL, _ = VARIANTS


def setting(flags: tuple[str, ...], name: str) -> str:
    found = [flag.partition("=")[2] for flag in flags if flag.startswith(f"-s{name}=")]
    assert len(found) == 1, (name, found)
    return found[0]


def test_settings_merge_as_unions() -> None:
    """P07: a list given twice is the union, never only the last one."""
    merged = link.merge_settings({"ENVIRONMENT": ("web",), "X": "1"}, {"ENVIRONMENT": ("node", "web"), "X": "1"})
    assert merged == {"ENVIRONMENT": ("node", "web"), "X": "1"}


@pytest.mark.parametrize("second", [{"X": "0"}, {"X": ("1",)}])
def test_contradicting_settings_are_refused(second: dict[str, str]) -> None:
    with pytest.raises(CompileError, match="setting X is given as '1' and as"):
        link.merge_settings({"X": "1"}, second)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("mode", steps.Mode)
def test_every_module_has_the_contracted_settings(variant: Variant, mode: steps.Mode) -> None:
    """R10: no entry, modularized, growable memory, the full export list; each list setting reaches emcc once."""
    flags = link.link_flags(variant, mode, ["g4_b", "g4_a"])
    assert "--no-entry" in flags
    assert setting(flags, "EXPORT_NAME") == variant.factory
    assert setting(flags, "EXPORTED_FUNCTIONS") == "_g4_a,_g4_b"
    assert setting(flags, "ENVIRONMENT") == "node,web,worker"
    assert setting(flags, "EXPORTED_RUNTIME_METHODS") == "HEAPU8"
    for name in ("MODULARIZE", "EXPORT_ES6", "ALLOW_MEMORY_GROWTH"):
        assert setting(flags, name) == "1"
    assert setting(flags, "FILESYSTEM") == "0"
    assert ("--closure" in flags) == (mode is steps.Mode.RELEASE)
    assert not [flag for flag in flags if "ASYNCIFY" in flag or "JSPI" in flag]


def test_flags_hold_no_absolute_path() -> None:
    """P12: what depends on the folder is no part of a recipe."""
    for variant in VARIANTS:
        for mode in steps.Mode:
            for flag in (*steps.compile_flags(steps.defines(variant, mode), mode), *link.link_flags(variant, mode, ["g4_a"])):
                assert not flag.removeprefix("-I").startswith("/"), flag


def test_recipes_of_variants_are_distinct() -> None:
    """V8: the four variants are compiled and linked differently."""
    assert len({steps.defines(variant, steps.Mode.RELEASE) for variant in VARIANTS}) == 4
    assert len({link.link_flags(variant, steps.Mode.RELEASE, ["g4_a"]) for variant in VARIANTS}) == 4


def test_warnings_are_errors() -> None:
    for mode in steps.Mode:
        assert "-Werror" in steps.compile_flags([], mode)
        assert "-Werror" in link.link_flags(PLAIN_WALL, mode, ["g4_a"])


def test_defines() -> None:
    assert steps.defines(MTP_WALL, steps.Mode.DEBUG) == ("GEMMA4_MTP=1", "GEMMA4_PROFILE=0")
    assert steps.defines(PLAIN_PROFILE, steps.Mode.RELEASE, ["X=2"]) == \
        ("GEMMA4_MTP=0", "GEMMA4_PROFILE=1", "NDEBUG=1", "X=2")
    for bad in ("X", "1X=2", "GEMMA4_MTP=1"):
        with pytest.raises(CompileError):
            steps.defines(PLAIN_WALL, steps.Mode.RELEASE, [bad])


def test_exports_are_read() -> None:
    assert link.read_exports("# head\ng4_b\n\ng4_a  # tail\n") == ("g4_b", "g4_a")


@pytest.mark.parametrize(("text", "said"), [
    ("g4_a\ng4_a\n", "exports.txt:2: g4_a is listed twice"), ("g4 a\n", "exports.txt:1: 'g4 a'"),
    ("# none\n", "lists no function"), ("g4_a,g4_b\n", "'g4_a,g4_b' is not the name"),
])
def test_bad_exports_are_refused(text: str, said: str) -> None:
    with pytest.raises(CompileError, match=said):
        link.read_exports(text)


def test_depfile() -> None:
    text = "build/a.o: runtime_cpp/src/a.cc \\\n  /opt/my\\ tools/x.h build/gen/k$$.h \\\n  runtime_cpp/src/b\\#.h\n"
    assert steps.read_depfile(text) == ["runtime_cpp/src/a.cc", "/opt/my tools/x.h", "build/gen/k$.h",
                                        "runtime_cpp/src/b#.h"]


def test_project_inputs_leave_tools_out(tmp_path: Path) -> None:
    root = tmp_path / "my project"
    found = steps.project_inputs([
        "runtime_cpp/src/gpu/../base/a.h", str(root / "build/gen/k.h"), "/usr/include/x.h", "build/plain-wall/x.h",
        f"{root}-other/runtime_cpp/src/b.h", ".venv/include/y.h"], root)
    assert found == {"runtime_cpp/src/base/a.h", "build/gen/k.h"}


@pytest.mark.parametrize("export", ["export default createGemma4;", "export{createGemma4 as default};",
                                    "export { createGemma4 as default };"])
def test_glue_is_accepted(export: str) -> None:
    link.check_glue(f'x="gemma4.wasm";{export}', PLAIN_WALL)


@pytest.mark.parametrize(("text", "said"), [
    ('"gemma4.wasm"; export default createGemma4Mtp;', "does not export createGemma4 by default"),
    ("export default createGemma4;", "does not ask for gemma4.wasm"),
    ('"gemma4.wasm"; new WebAssembly.Suspending(f); export default createGemma4;', "can suspend"),
])
def test_glue_is_refused(text: str, said: str) -> None:
    """V7, P02: another factory, another wasm, or a module that suspends is refused at the link."""
    with pytest.raises(CompileError, match=said):
        link.check_glue(text, PLAIN_WALL)


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_units_are_grouped_by_the_macros_they_mention(tmp_path: Path) -> None:
    """A unit that speaks of no variant's macro, itself or through an include, is compiled once for all."""
    put(tmp_path, {
        "runtime_cpp/src/base/a.cc": '#include "base/a.h"\n#include <vector>\n#include "no/such.h"\n',
        "runtime_cpp/src/base/a.h": '#pragma once\n#include "base/a.h"\n',
        "runtime_cpp/src/gpu/b.cc": '# include "base/a.h"\n#include "gpu/b.h"\n', "runtime_cpp/src/gpu/b.h": "#if GEMMA4_PROFILE\n",
        "runtime_cpp/src/ops/c.cc": "// GEMMA4_MTP\n", "runtime_cpp/src/api/d.cc": '#include "gpu/b.h"\nint x = GEMMA4_MTP;\n',
        "build/gen/e.cc": '#include "e.h"\n', "build/gen/e.h": "#ifdef GEMMA4_PROFILE\n",
        "runtime_cpp/src/ops/f.cc": "int MY_GEMMA4_MTP_2;\n",
    })
    mentions = steps.Mentions(tmp_path)
    groups = {name: [steps.unit_group(variant, mentions.of(name)) for variant in VARIANTS] for name in (
        "runtime_cpp/src/base/a.cc", "runtime_cpp/src/gpu/b.cc", "runtime_cpp/src/ops/c.cc", "runtime_cpp/src/api/d.cc",
        "build/gen/e.cc", "runtime_cpp/src/ops/f.cc")}
    assert groups == {
        "runtime_cpp/src/base/a.cc": ["shared"] * 4, "runtime_cpp/src/ops/f.cc": ["shared"] * 4,
        "runtime_cpp/src/gpu/b.cc": ["wall", "profile", "wall", "profile"],
        "build/gen/e.cc": ["wall", "profile", "wall", "profile"],
        "runtime_cpp/src/ops/c.cc": ["plain", "plain", "mtp", "mtp"],
        "runtime_cpp/src/api/d.cc": [variant.name for variant in VARIANTS]}


def test_a_unit_gets_the_macros_it_mentions() -> None:
    release = steps.Mode.RELEASE
    assert steps.unit_defines(MTP_WALL, release, frozenset()) == ("NDEBUG=1",)
    assert steps.unit_defines(MTP_WALL, release, frozenset({"GEMMA4_MTP"})) == ("GEMMA4_MTP=1", "NDEBUG=1")
    assert steps.unit_defines(MTP_WALL, release, frozenset(), ["X=1"]) == \
        ("GEMMA4_MTP=1", "GEMMA4_PROFILE=0", "NDEBUG=1", "X=1")
    assert steps.unit_group(MTP_WALL, frozenset(), ["X=1"]) == "mtp-wall"


def test_groups_never_mix_variants_that_differ() -> None:
    """Whatever a unit mentions, the variants of one group compile it with equal definitions."""
    for macros in ({"GEMMA4_MTP"}, {"GEMMA4_PROFILE"}, {"GEMMA4_MTP", "GEMMA4_PROFILE"}, set()):
        given: dict[str, tuple[str, ...]] = {}
        for variant in VARIANTS:
            entries = steps.unit_defines(variant, steps.Mode.RELEASE, frozenset(macros))
            assert given.setdefault(steps.unit_group(variant, frozenset(macros)), entries) == entries


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A stand-in for the tools: a shell script that plays em++."""

    toolchain: SimpleNamespace
    root: Path

    def job(self, **changes: object) -> steps.ObjectJob:
        fields = {"root": self.root, "group": "plain-wall", "source": "runtime_cpp/src/a.cc",
                  "output": "build/a.o", "flags": ("-Oz",), "defines": ("X=1",),
                  "known_inputs": frozenset({"runtime_cpp/src/a.cc", "runtime_cpp/src/a.h"}), **changes}
        return steps.ObjectJob(**fields)  # type: ignore[arg-type]


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    root = tmp_path / "my dir ünï ✓"
    script = tmp_path / "em++"
    script.write_text("""#!/bin/sh
echo "$@" >> calls
while [ $# -gt 0 ]; do
  case "$1" in
    @*) cp "${1#@}" response ;;
    -o) out="$2" ;;
    -MF) dep="$2" ;;
    -sEXPORT_NAME=*) factory="${1#*=}" ;;
  esac
  shift
done
mkdir -p "$(dirname "$out")"
if [ -f fail ]; then echo "a.cc:3:1: error: $(cat fail)" >&2; exit 1; fi
printf object > "$out"
if [ -n "$dep" ]; then cp deps "$dep"; else
  printf 'fetch("gemma4.wasm"); export default %s;' "$factory" > "$out"; printf wasm > "${out%.js}.wasm"
fi
""", encoding="utf-8")
    script.chmod(0o755)
    (root / "runtime_cpp/src").mkdir(parents=True)
    (root / "runtime_cpp/src/a.cc").write_text('#include "a.h"\n', encoding="utf-8")
    (root / "runtime_cpp/src/a.h").write_text("\n", encoding="utf-8")
    (root / "runtime_cpp/src/events.js").write_text("//\n", encoding="utf-8")
    (root / "runtime_cpp/exports.txt").write_text("g4_a\n", encoding="utf-8")
    (root / "deps").write_text("build/a.o: runtime_cpp/src/a.cc runtime_cpp/src/a.h /usr/include/x.h\n", encoding="utf-8")
    toolchain = SimpleNamespace(
        emcc=(str(script),), closure=None, em_cache=tmp_path / "cache", flatbuffers_include=tmp_path / "include",
        provider=SimpleNamespace(port="some.port.py"), environment=lambda: {"PATH": os.environ["PATH"]})
    return Compiler(toolchain=toolchain, root=root)


def test_compile_writes_object_and_log(compiler: Compiler) -> None:
    action = steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    assert set(action.inputs) == {"runtime_cpp/src/a.cc", "runtime_cpp/src/a.h"}
    assert set(action.outputs) == {"build/a.o"}
    assert action.defines == ["X=1"]
    assert read_action(compiler.root / "build/a.o.json") == action
    assert not (compiler.root / "build/a.o.d").exists()
    call = (compiler.root / "calls").read_text(encoding="utf-8")
    assert "--use-port=some.port.py" in call
    assert f"-ffile-prefix-map={compiler.root}=." in call


def test_compile_error_has_the_compilers_words(compiler: Compiler) -> None:
    (compiler.root / "fail").write_text("no such type", encoding="utf-8")
    with pytest.raises(CompileError, match=r"(?s)compiling runtime_cpp/src/a.cc for plain-wall.*a.cc:3:1: error: no such"):
        steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    assert not (compiler.root / "build/a.o.json").exists()


def test_unseen_include_is_refused(compiler: Compiler) -> None:
    """P11: what the scanner missed would never trigger a rebuild."""
    job = compiler.job(known_inputs=frozenset({"runtime_cpp/src/a.cc"}))
    with pytest.raises(CompileError, match=r"includes runtime_cpp/src/a\.h, which the build does not see"):
        steps.compile_object(job, compiler.toolchain, IDENTITY)  # type: ignore[arg-type]


def test_unit_that_mentions_a_macro_it_does_not_get_is_refused(compiler: Compiler) -> None:
    """A generated header that turns out to depend on the variant never ends in a shared object."""
    put(compiler.root, {"runtime_cpp/src/a.h": "#if GEMMA4_PROFILE\n#endif\n"})
    with pytest.raises(CompileError, match=r"a\.h mentions GEMMA4_PROFILE, but runtime_cpp/src/a\.cc is compiled without"):
        steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    job = compiler.job(defines=("GEMMA4_PROFILE=0",))
    assert steps.compile_object(job, compiler.toolchain, IDENTITY).outputs  # type: ignore[arg-type]


def test_link_asks_closure_through_its_memory(compiler: Compiler) -> None:
    """The glue of an edited shader is the same as before, and is not minified again."""
    steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    compiler.toolchain.closure = Path("/opt/closure compiler")
    compiler.toolchain.em_config = compiler.root / "em_config.py"
    put(compiler.root, {"em_config.py": "NODE_JS = ['node']\n"})
    script = Path(compiler.toolchain.emcc[0])
    script.write_text(script.read_text(encoding="utf-8").replace('echo "$@"', 'echo "$EM_CONFIG $EMCC_SKIP_SANITY_CHECK"'))
    link.link_module(link_job(compiler), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    config = compiler.root / "build/closure/em_config.py"
    assert (compiler.root / "calls").read_text(encoding="utf-8").splitlines()[-1] == f"{config} 1"
    settings = runpy.run_path(str(config))
    assert settings["NODE_JS"] == ["node"]
    command = settings["CLOSURE_COMPILER"]
    assert isinstance(command, list)
    assert command[-1] == "/opt/closure compiler"
    assert command[-3] == str(compiler.root / "build/closure")


def link_job(compiler: Compiler, objects: tuple[str, ...] = ("build/a.o",)) -> link.LinkJob:
    return link.LinkJob(
        root=compiler.root, variant=PLAIN_WALL, objects=objects, libraries=("runtime_cpp/src/events.js",),
        exports="runtime_cpp/exports.txt", output="build/gemma4.js", defines=(),
        flags=link.link_flags(PLAIN_WALL, steps.Mode.DEBUG, ["g4_a"]))


def test_link_writes_module_and_log(compiler: Compiler) -> None:
    steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    action = link.link_module(link_job(compiler), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    assert set(action.outputs) == {"build/gemma4.js", "build/gemma4.wasm"}
    assert set(action.inputs) == {"build/a.o", "runtime_cpp/src/events.js", "runtime_cpp/exports.txt"}
    assert read_action(compiler.root / "build/gemma4.js.json") == action
    assert "--use-port=some.port.py" in (compiler.root / "calls").read_text(encoding="utf-8").splitlines()[-1]
    assert not list((compiler.root / "build").glob("*.rsp*"))


def test_link_of_three_thousand_objects(compiler: Compiler) -> None:
    """P12: the names travel in a response file, so that no limit of a command line is met."""
    steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    action = link.link_module(link_job(compiler, ("build/a.o",) * 3000), compiler.toolchain,  # type: ignore[arg-type]
                               IDENTITY)
    assert "build/a.o" in action.inputs
    assert (compiler.root / "response").read_text(encoding="utf-8") == "build/a.o\n" * 3000
    assert len((compiler.root / "calls").read_text(encoding="utf-8").splitlines()[-1]) < 4000


def test_objects_of_another_provider_are_refused(compiler: Compiler) -> None:
    """P07 (c): compile and link must see the same provider; one clear error otherwise."""
    steps.compile_object(compiler.job(), compiler.toolchain, IDENTITY)  # type: ignore[arg-type]
    other = {**IDENTITY, "provider": {"kind": "emdawnwebgpu-port", "sha256": "1" * 64}}
    with pytest.raises(CompileError, match="another toolchain or WebGPU provider"):
        link.link_module(link_job(compiler), compiler.toolchain, other)  # type: ignore[arg-type]
