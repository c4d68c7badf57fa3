"""Includes, preludes and limits: what becomes a complete shader text."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kernels_parse import BODY, HEADER

from gemma4web.errors import KernelError
from gemma4web.kernels import dependencies, expand, expand_all


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_includes_are_appended_once_and_deepest_first(tmp_path: Path) -> None:
    write(tmp_path, "include/a.wgsl", "//! include: include/c.wgsl\nfn a() {}\n")
    write(tmp_path, "include/b.wgsl", "//! include: include/c.wgsl\nfn b() {}\n")
    write(tmp_path, "include/c.wgsl", "fn c() {} // tail\n")
    path = write(tmp_path, "k.wgsl", HEADER + "//! include: include/a.wgsl\n//! include: include/b.wgsl\n" + BODY)
    assert dependencies(path) == [tmp_path / "include" / name for name in ("c.wgsl", "a.wgsl", "b.wgsl")]
    kernel, = expand(path)
    assert [kernel.text.count(f"fn {name}()") for name in "abc"] == [1, 1, 1]
    assert kernel.text.index("fn main") < kernel.text.index("fn c()") < kernel.text.index("fn a()")
    assert "//" not in kernel.text


def test_dependencies_of_an_included_file(tmp_path: Path) -> None:
    part = write(tmp_path, "include/a.wgsl", "//! include: include/c.wgsl\n")
    write(tmp_path, "include/c.wgsl", "")
    assert dependencies(part, tmp_path) == [tmp_path / "include/c.wgsl"]


def test_include_cycle(tmp_path: Path) -> None:
    write(tmp_path, "include/a.wgsl", "//! include: include/b.wgsl\n")
    second = write(tmp_path, "include/b.wgsl", "\n//! include: include/a.wgsl\n")
    path = write(tmp_path, "k.wgsl", HEADER + "//! include: include/a.wgsl\n" + BODY)
    with pytest.raises(KernelError) as caught:
        expand(path)
    assert str(caught.value) == f"{second}:2: include cycle: a.wgsl -> b.wgsl -> a.wgsl"


def test_missing_include(tmp_path: Path) -> None:
    path = write(tmp_path, "k.wgsl", HEADER + "//! include: include/none.wgsl\n" + BODY)
    with pytest.raises(KernelError, match=r"k\.wgsl:5: included file 'include/none\.wgsl' does not exist"):
        expand(path)


@pytest.mark.parametrize(("text", "words"), [
    ("\n//! formula: f\n", ":2: `//! formula` in an included file"),
    ("fn a() {}\n@compute @workgroup_size(1) fn b() {}\n", ":2: `@compute` in an included file"),
    ("@group(0) @binding(0) var<storage, read> x: array<f32>;\n", ":1: `@binding` in an included file"),
])
def test_included_file_with_what_belongs_to_a_kernel(tmp_path: Path, text: str, words: str) -> None:
    write(tmp_path, "include/a.wgsl", text)
    path = write(tmp_path, "k.wgsl", HEADER + "//! include: include/a.wgsl\n" + BODY)
    with pytest.raises(KernelError) as caught:
        expand(path)
    assert words in str(caught.value)


VARIANT = HEADER + """//! variant: k_f16 requires shader-f16
//! swap: enable f16;
//! swap: alias elem = f16;
//! swap: const VEC = 4u;
//! prelude
alias elem = f32;
const VEC = 1u;
//! end
""" + BODY.replace("  out[id.x] =", "  var<function> y: elem;\n  out[id.x * VEC] =")


def test_variant_swaps_the_prelude_and_nothing_else(tmp_path: Path) -> None:
    plain, half = expand(write(tmp_path, "k.wgsl", VARIANT))
    assert (plain.name, plain.features) == ("k", ())
    assert (half.name, half.features) == ("k_f16", ("shader-f16",))
    assert "enable f16;" in half.text and "alias elem = f32;" not in half.text
    assert half.interface == plain.interface

    def rest(text: str, *prelude: str) -> str:
        for line in prelude:
            assert line in text
            text = text.replace(line, "")
        return "".join(text.split())

    assert rest(plain.text, "alias elem = f32;", "const VEC = 1u;") == rest(
        half.text, "enable f16;", "alias elem = f16;", "const VEC = 4u;")
    # The code behind the block keeps its lines, so that a compiler's message fits the file.
    assert plain.text.splitlines().index("@compute @workgroup_size(64)") == half.text.splitlines().index(
        "@compute @workgroup_size(64)")


def test_directive_of_the_prelude_comes_before_every_declaration(tmp_path: Path) -> None:
    """WGSL wants `enable` first: included declarations stand behind the kernel's text."""
    write(tmp_path, "include/a.wgsl", "fn a() {}\n")
    text = VARIANT.replace("//! variant", "//! include: include/a.wgsl\n//! variant")
    _, half = expand(write(tmp_path, "k.wgsl", text))
    assert half.text.split()[0] == "enable"


def test_empty_prelude_cannot_be_swapped(tmp_path: Path) -> None:
    text = VARIANT.replace("alias elem = f32;\nconst VEC = 1u;\n", "")
    with pytest.raises(KernelError, match=r"k\.wgsl:9: the prelude is empty"):
        expand(write(tmp_path, "k.wgsl", text))


def test_duplicate_kernel_name(tmp_path: Path) -> None:
    write(tmp_path, "k.wgsl", VARIANT)
    write(tmp_path, "k_f16.wgsl", HEADER + BODY)
    with pytest.raises(KernelError) as caught:
        expand_all(tmp_path)
    assert str(caught.value) == (f"{tmp_path}/k_f16.wgsl:1: kernel name 'k_f16' is already that of "
                                 f"{tmp_path}/k.wgsl:5")


def test_empty_folder_and_missing_file(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match=r"no \*\.wgsl file"):
        expand_all(tmp_path)
    with pytest.raises(KernelError, match="no such file"):
        expand(tmp_path / "k.wgsl")
    (tmp_path / "k.wgsl").write_bytes(b"fn \xff")
    with pytest.raises(KernelError, match="not UTF-8 at byte 3"):
        expand(tmp_path / "k.wgsl")


@pytest.mark.parametrize(("old", "new", "words"), [
    ("@workgroup_size(64)", "@workgroup_size(32, 9)", "288 invocations a workgroup, the limit is 256"),
    ("struct Params", "var<workgroup> a: array<f32, 4097>;\nstruct Params",
     "16400 bytes of workgroup memory, the limit is 16384"),
    ("@group(0) @binding(2) var<uniform>",
     "".join(f"@group(0) @binding({n}) var<storage> s{n}: array<f32>;\n" for n in range(2, 9)) +
     "@group(0) @binding(9) var<uniform>", "9 storage buffers, the limit is 8"),
])
def test_default_limits_are_checked_at_build_time(tmp_path: Path, old: str, new: str, words: str) -> None:
    """P17: no kernel asks for more than every device grants."""
    path = write(tmp_path, "k.wgsl", HEADER + BODY.replace(old, new))
    with pytest.raises(KernelError) as caught:
        expand(path)
    assert words in str(caught.value)


def test_a_header_may_ask_for_more_storage_buffers(tmp_path: Path) -> None:
    """P17: as many as it names and no more; the route of such a kernel asks the device."""
    nine = BODY.replace("@group(0) @binding(2) var<uniform>", "".join(
        f"@group(0) @binding({n}) var<storage> s{n}: array<f32>;\n" for n in range(2, 9)) + "@group(0) @binding(9) var<uniform>")
    kernel, = expand(write(tmp_path, "k.wgsl", "//! storage-buffers: 9\n" + HEADER + nine))
    assert kernel.header.storage_buffers == 9
    ten = nine.replace("@group(0) @binding(9)", "@group(0) @binding(9) var<storage> s9: array<f32>;\n@group(0) @binding(10)")
    with pytest.raises(KernelError, match="10 storage buffers"):
        expand(write(tmp_path, "k.wgsl", "//! storage-buffers: 9\n" + HEADER + ten))


@pytest.mark.parametrize(("lines", "words"), [
    ("//! storage-buffers: 8\n", "'8' is no number above 8"), ("//! storage-buffers: many\n", "'many' is no number"),
    ("//! storage-buffers: 9\n//! storage-buffers: 10\n", "second"),
])
def test_a_malformed_number_of_storage_buffers(tmp_path: Path, lines: str, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        expand(write(tmp_path, "k.wgsl", lines + HEADER + BODY))


def test_a_header_may_ask_for_more_workgroup_memory(tmp_path: Path) -> None:
    """P17: likewise. A buffer has the bytes that its type says."""
    text = "//! workgroup-memory: 16416\nconst SIZE = 16u * 1026u;\nvar<workgroup> a: buffer<SIZE>;\n" + HEADER + BODY
    kernel, = expand(write(tmp_path, "k.wgsl", text))
    assert kernel.workgroup_bytes == kernel.header.workgroup_memory == 16416
    with pytest.raises(KernelError, match="16432 bytes of workgroup memory, the limit is 16416"):
        expand(write(tmp_path, "k.wgsl", text.replace("1026u", "1027u")))
    with pytest.raises(KernelError, match="'16384' is no number above 16384"):
        expand(write(tmp_path, "k.wgsl", text.replace("16416", "16384")))


LOOP = """//! unroll
  for (var i = 0u; i < COUNT; i += 2u) {
    let a = i; // }
    if a > 1u { x[a] = y[a]; }
  }
  let tail = 1u;
"""


def unrolled(tmp_path: Path, loop: str) -> str:
    text = HEADER + "const COUNT = 3u + 2u;\n" + BODY.replace("  out[id.x] =", loop + "  out[id.x] =")
    assert loop in text
    kernel, = expand(write(tmp_path, "k.wgsl", text))
    assert kernel.text.count("\n") == text.count("\n")
    return kernel.text


def test_a_marked_loop_is_written_out(tmp_path: Path) -> None:
    """The first turn keeps the loop's lines, the others share the last one."""
    found = unrolled(tmp_path, LOOP)
    assert "for (" not in found and [found.count(f"const i = {n}u;") for n in range(5)] == [1, 0, 1, 0, 1]
    assert found.count("if a > 1u { x[a] = y[a]; }") == 3 and found.index("const i = 4u") < found.index("let tail")


@pytest.mark.parametrize(("old", "new", "words"), [
    ("for (var i", "while (i", "stands above no `for"), ("i < COUNT", "i < params.count", "turns of this loop are not known"),
    ("let a = i;", "if i == 2u { break; } let a = i;", "left early"), ("i += 2u", "i += 0u", "turns of this loop are not known"),
])
def test_a_marked_loop_that_cannot_be_written_out(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        unrolled(tmp_path, LOOP.replace(old, new))


def test_workgroup_memory_of_includes_counts(tmp_path: Path) -> None:
    write(tmp_path, "include/a.wgsl", "var<workgroup> lanes: array<f32, LANES>;\n")
    text = HEADER + "//! include: include/a.wgsl\nconst LANES = 40u;\n" + BODY
    kernel, = expand(write(tmp_path, "k.wgsl", text))
    assert kernel.workgroup_bytes == 160
