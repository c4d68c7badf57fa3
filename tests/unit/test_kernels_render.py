"""kernels.h: minified texts mean the same, structs have the layout of the shader, literals stay below the limit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_kernels_expand import write
from test_kernels_parse import BODY, HEADER

from gemma4web.errors import KernelError
from gemma4web.kernels import Generated, expand_all, generate, write_generated
from gemma4web.kernels.render import minify, pascal_case, render_source

KERNEL_DIR = Path(__file__).resolve().parents[2] / "runtime_cpp/kernels"
WORDS = re.compile(r"[A-Za-z_0-9]+|[^\sA-Za-z_0-9]")


def test_pascal_case() -> None:
    assert [pascal_case(name) for name in ("linear_q4", "rope", "linear_q4_m1")] == ["LinearQ4", "Rope", "LinearQ4M1"]


@pytest.mark.parametrize(("text", "short"), [
    ("let  a = b ;", "let a=b;\n"),
    ("a - -b", "a- -b"),
    ("a & &b", "a& &b"),
    ("a-- - b", "a-- -b"),
    ("x = 1.5 ;", "x=1.5;\n"),
    ("x = 1e-6 + y;", "x=1e-6+y;\n"),
    ("return .5;", "return .5;\n"),
    ("fn f ( a : u32 ) -> f32 {\n  return 1.0 ;\n}\n", "fn f(a:u32)->f32{return 1.0;}\n"),
    ("@compute @workgroup_size ( 64 )\nfn main", "@compute@workgroup_size(64)fn main"),
    ("array < vec4 < f32 > , 4 >", "array<vec4<f32>,4>"),
    ("const a = 1u;\nconst b = 2u;\n", "const a=1u;\nconst b=2u;\n"),
    ("struct A { x : f32 }\n;\n", "struct A{x:f32};\n"),
])
def test_minify(text: str, short: str) -> None:
    assert minify(text) == short


@pytest.mark.parametrize("kernel", expand_all(KERNEL_DIR), ids=lambda kernel: kernel.name)
def test_minified_kernels_have_the_same_tokens(kernel) -> None:  # type: ignore[no-untyped-def]
    """Words and signs are the same, and no two signs that were apart have come together."""
    short = minify(kernel.text)
    assert WORDS.findall(short) == WORDS.findall(kernel.text)
    pairs = re.compile(r"[-+*/%&|^<>=!~.]{2,}")
    assert set(pairs.findall(short)) <= set(pairs.findall(kernel.text))
    assert len(short) < 0.8 * len(kernel.text)


def test_header_of_one_kernel(tmp_path: Path) -> None:
    write(tmp_path, "some_kernel.wgsl", HEADER + BODY)
    header = generate(tmp_path).header
    for line in ("struct SomeKernelParams {", "  uint32_t count = 0;", "  float scale = 0;", "  uint32_t padding[2] = {};",
                 "static_assert(sizeof(SomeKernelParams) == 16);",
                 "static_assert(offsetof(SomeKernelParams, scale) == 4);",
                 "extern const char kSomeKernelWgsl[];",
                 "inline constexpr Kernel kSomeKernel = {", '    "some_kernel", kSomeKernelWgsl,',
                 "    {64, 1, 1}, kSomeKernelBindings, 3, 16,", "    0, 0};"):
        assert line in header.splitlines()
    assert ("inline constexpr BindingKind kSomeKernelBindings[] = {BindingKind::kReadOnlyStorage, "
            "BindingKind::kStorage, BindingKind::kUniform};") in header


def test_header_names_the_features_of_a_variant(tmp_path: Path) -> None:
    variants = ("//! variant: wide requires subgroups, shader-f16\n//! swap: const WIDE = true;\n"
                "//! prelude\nconst WIDE = false;\n//! end\n")
    write(tmp_path, "some_kernel.wgsl", HEADER + variants + BODY)
    assert "    0, kNeedsShaderF16 | kNeedsSubgroups};" in generate(tmp_path).header.splitlines()


@pytest.mark.parametrize(("members", "size", "padding"), [(1, 16, 3), (4, 16, 0), (5, 32, 3), (8, 32, 0)])
def test_params_are_padded_to_sixteen(tmp_path: Path, members: int, size: int, padding: int) -> None:
    fields = "\n".join(f"  m{index}: i32," for index in range(members))
    body = re.sub(r"  count: u32,\n  scale: f32,", fields, BODY)
    write(tmp_path, "k.wgsl", HEADER + body)
    header = generate(tmp_path).header
    assert f"static_assert(sizeof(KParams) == {size});" in header
    assert (f"padding[{padding}]" in header) if padding else ("padding" not in header)


def test_shader_text_is_in_the_source_alone(tmp_path: Path) -> None:
    """An edit of a shader's body changes kernels.cc and leaves kernels.h, which every op includes, as it is."""
    write(tmp_path, "some_kernel.wgsl", HEADER + BODY)
    before = generate(tmp_path)
    assert 'const char kSomeKernelWgsl[] =\n    R"wgsl(' in before.source
    write(tmp_path, "some_kernel.wgsl", HEADER + BODY + "const extra = 1u;\n")
    after = generate(tmp_path)
    assert after.header == before.header
    assert after.source != before.source


def test_long_texts_become_several_literals(tmp_path: Path) -> None:
    table = "".join(f"const c{index} = {index}u;\n" for index in range(9000))
    write(tmp_path, "k.wgsl", HEADER + BODY + table)
    kernel, = expand_all(tmp_path)
    pieces = re.findall(r'R"wgsl\((.*?)\)wgsl"', render_source([kernel]), re.DOTALL)
    assert len(pieces) > 2
    assert max(len(piece.encode()) for piece in pieces) <= 60_000
    assert all(piece.endswith("\n") for piece in pieces)
    assert "".join(pieces) == minify(kernel.text)


def test_two_names_with_one_symbol(tmp_path: Path) -> None:
    write(tmp_path, "a_1.wgsl", HEADER + BODY)
    write(tmp_path, "a1.wgsl", HEADER + BODY)
    with pytest.raises(KernelError, match=r"'a_1' and 'a1' of .*a1\.wgsl:1 both become A1"):
        generate(tmp_path)


@pytest.fixture
def generated(tmp_path: Path) -> Generated:
    write(tmp_path / "kernels", "k.wgsl", HEADER + BODY)
    return generate(tmp_path / "kernels")


@pytest.mark.parametrize("failing", ["kernels.h", "kernels.cc", "kernels.lock.json"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("before", [None, b"old"])
def test_all_files_or_none(
    tmp_path: Path, generated: Generated, monkeypatch: pytest.MonkeyPatch, failing: str, error: BaseException,
    before: bytes | None,
) -> None:
    """G10: a failure or an interrupt at any file leaves all as they were."""
    paths = {"header_path": tmp_path / "kernels.h", "source_path": tmp_path / "kernels.cc",
             "lock_path": tmp_path / "kernels.lock.json"}
    if before is not None:
        for path in paths.values():
            path.write_bytes(before)
    from gemma4web import kernels
    real = kernels.write_atomic

    def write_or_fail(path: Path, data: bytes | str) -> None:
        real(path, data)
        if path.name == failing and data != before:
            raise error

    monkeypatch.setattr(kernels, "write_atomic", write_or_fail)
    with pytest.raises(type(error)):
        write_generated(generated, **paths)
    assert [path.read_bytes() if path.exists() else None for path in paths.values()] == [before] * 3
    monkeypatch.undo()
    write_generated(generated, **paths)
    assert paths["header_path"].read_text() == generated.header
    assert paths["source_path"].read_text() == generated.source


def test_generation_is_repeatable(generated: Generated, tmp_path: Path) -> None:
    assert generate(tmp_path / "kernels") == generated
