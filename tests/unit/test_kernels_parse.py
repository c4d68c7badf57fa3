"""The kernel parser: comments go first, errors name file and line (O7)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4web.errors import KernelError
from gemma4web.kernels.parse import (
    BindingKind,
    constants_of,
    parse_header,
    parse_interface,
    parse_source,
    strip_comments,
    workgroup_bytes,
)

HEADER = "//! formula: f\n//! dispatch: d\n//! reference: r\n//! tolerance: 1e-6\n"
BODY = """struct Params {
  count: u32,
  scale: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  out[id.x] = x[id.x] * params.scale;
}
"""
PATH = Path("some/kernel.wgsl")


def interface(body: str = BODY):  # type: ignore[no-untyped-def]
    return parse_interface(parse_source(PATH, body))


def test_interface_of_a_plain_kernel() -> None:
    found = interface()
    assert found.workgroup == (64, 1, 1)
    assert [(item.name, item.kind, item.type) for item in found.bindings] == [
        ("x", BindingKind.READ_ONLY_STORAGE, "array<f32>"), ("out", BindingKind.STORAGE, "array<f32>"),
        ("params", BindingKind.UNIFORM, "Params")]
    assert [(item.name, item.type) for item in found.params] == [("count", "u32"), ("scale", "f32")]


@pytest.mark.parametrize(("text", "code"), [
    ("a // b\nc", "a     \nc"),
    ("a /* b */ c", "a         c"),
    ("a /* b /* c */ d */ e", "a                   e"),
    ("a /* // */ b", "a          b"),
    ("a // /* b\nc */ d", "a        \nc */ d"),
    ("/* x\ny */z", "    \n    z"),
    ("/*/ a */b", "        b"),
])
def test_comments_become_blanks_of_the_same_size(text: str, code: str) -> None:
    """Nested block comments, line comments, each inside the other; every line keeps its number."""
    assert strip_comments(text)[0] == code


def test_code_in_comments_is_not_parsed() -> None:
    """O7: a commented-out workgroup size, binding, entry point or params member does not exist."""
    noise = """/* @compute @workgroup_size(128) /* nested */ fn main() {} */
// @compute @workgroup_size(256) fn main() {}
// @group(0) @binding(3) var<storage, read> y: array<f32>;
"""
    body = BODY.replace("  count: u32,", "  // old: u32,\n  count: u32, /* older: f32, */")
    assert interface(noise + body) == interface()


def test_directives_in_block_comments_are_not_read() -> None:
    source = parse_source(PATH, "/*\n//! formula: no\n*/\n//! formula: yes\n")
    assert [(item.line, item.key, item.value) for item in source.directives] == [(4, "formula", "yes")]


def test_crlf_is_a_newline() -> None:
    assert interface(BODY.replace("\n", "\r\n")) == interface()


@pytest.mark.parametrize(("attributes", "wanted"), [
    ("@workgroup_size(8, 4, 2) @compute", (8, 4, 2)),
    ("@compute @workgroup_size(16u,)", (16, 1, 1)),
    ("@compute\n@workgroup_size( 7 , 3 )", (7, 3, 1)),
])
def test_workgroup_sizes(attributes: str, wanted: tuple[int, int, int]) -> None:
    assert interface(BODY.replace("@compute @workgroup_size(64)", attributes)).workgroup == wanted


@pytest.mark.parametrize(("old", "new", "line", "words"), [
    ("@compute @workgroup_size(64)", "@compute @workgroup_size(SIZE)", 10, "workgroup size 'SIZE' is neither a number nor a constant"),
    ("@compute @workgroup_size(64)", "@compute @workgroup_size(0)", 10, "'0' is neither a number nor a constant"),
    ("@compute @workgroup_size(64)", "@compute", 10, "no `@workgroup_size`"),
    ("@compute @workgroup_size(64)", "@compute @workgroup_size(1, 1, 1, 1)", 10, "4 dimensions"),
    ("@compute ", "", 1, "found 0 `@compute`"),
    ("@compute ", "@compute @workgroup_size(1) fn other() {}\n@compute ", 11, "found 2 `@compute`"),
    ("fn main", "fn start", 10, "entry point is not"),
    ("@binding(1)", "@binding(2)", 7, "binding 'out' has number 2, wanted 1"),
    ("@binding(1)", "@binding(0)", 7, "binding 'out' has number 0, wanted 1"),
    ("@group(0) @binding(1)", "@group(1) @binding(1)", 7, "'out' is not `@group(0)"),
    ("@group(0) @binding(1) var<storage, read_write> out: array<f32>;",
     "@group(0) @binding(1) var out: texture_2d<f32>;", 7, "binding declaration is not"),
    ("storage, read_write", "storage, write", 7, "<storage, write>"),
    ("var<uniform> params: Params", "var<uniform> args: Params", 1, "last binding is not `var<uniform> params`"),
    ("var<storage, read> x: array<f32>", "var<uniform> x: Params", 1, "uniform binding 'x' beside"),
    ("struct Params", "struct Other", 1, "'Params' is not declared"),
    ("scale: f32", "scale: vec4f", 1, "'scale: vec4f' is not a 4-byte scalar"),
    ("scale: f32", "scale: f16", 1, "is not a 4-byte scalar"),
])
def test_interface_errors_name_file_and_line(old: str, new: str, line: int, words: str) -> None:
    assert old in BODY
    with pytest.raises(KernelError) as caught:
        interface(BODY.replace(old, new, 1))
    message = str(caught.value)
    assert message.startswith(f"{PATH}:{line}: ")
    assert words in message


@pytest.mark.parametrize(("text", "line", "words"), [
    ("//! formula: f\n//! author: me\n", 2, "unknown `//!` key 'author'"),
    ("//! formula:\n", 1, "`//! formula:` needs a value"),
    ("//! prelude: x\n", 1, "`//! prelude` takes no value"),
    ("\n/* open /* deeper */\n", 2, "block comment is not closed"),
])
def test_directive_errors(text: str, line: int, words: str) -> None:
    with pytest.raises(KernelError, match=f"^{PATH}:{line}: {words}"):
        parse_source(PATH, text)


@pytest.mark.parametrize(("text", "words"), [
    (HEADER.replace("//! formula: f\n", ""), "`//! formula:` is missing"),
    (HEADER + "//! dispatch: again\n", ":5: second `//! dispatch:`"),
    (HEADER.replace("1e-6", "small"), ":4: tolerance 'small' is neither"),
    (HEADER.replace("1e-6", "2"), ":4: tolerance 2 is not between"),
    (HEADER + "//! prelude\n", "wanted exactly one `//! prelude`"),
    (HEADER + "//! end\n//! prelude\n", "wanted exactly one `//! prelude`"),
    (HEADER + "//! swap: alias e = f16;\n", ":5: `//! swap:` before any"),
    (HEADER + "//! prelude\n//! end\n//! variant: v\n", ":7: variant 'v' has no `//! swap:`"),
    (HEADER + "//! variant: v\n//! swap: x\n", ":5: a variant needs a `//! prelude`"),
    (HEADER + "//! variant: Bad-Name\n", ":5: variant name"),
    (HEADER + "//! variant: v requires shader-f64\n", ":5: unknown feature 'shader-f64'"),
])
def test_header_errors(text: str, words: str) -> None:
    with pytest.raises(KernelError) as caught:
        parse_header(parse_source(PATH, text))
    assert words in str(caught.value)


def test_header_with_a_variant() -> None:
    text = HEADER.replace("1e-6", "exact") + """//! variant: k_f16 requires subgroups, shader-f16
//! swap: enable f16;
//! swap: alias elem = f16;
//! prelude
alias elem = f32;
//! end
"""
    header = parse_header(parse_source(PATH, text))
    assert header.tolerance == 0.0
    assert header.prelude_lines == (8, 10)
    variant, = header.variants
    assert (variant.name, variant.features) == ("k_f16", ("shader-f16", "subgroups"))
    assert variant.prelude == ("enable f16;", "alias elem = f16;")


@pytest.mark.parametrize(("declaration", "size"), [
    ("array<f32, 64>", 256),
    ("array<vec3f, 4>", 64),
    ("array<vec4<u32>, 2>", 32),
    ("vec2h", 16),
    ("atomic<u32>", 16),
    ("array<array<f32, 3>, 5>", 64),
    ("array<f32, TILE * (WIDTH + 1u)>", 4 * 8 * 17),
    ("array<f16, 3>", 16),
])
def test_workgroup_memory_as_webgpu_counts_it(declaration: str, size: int) -> None:
    """P17: every variable is rounded up to 16; lengths may be expressions of constants."""
    source = parse_source(PATH, f"const TILE = 8u;\nconst WIDTH: u32 = TILE * 2;\nvar<workgroup> a: {declaration};\n")
    assert workgroup_bytes(source, constants_of(source)) == size


@pytest.mark.parametrize(("declaration", "words"), [
    ("array<f32, SIZE>", "'SIZE' is not a constant"),
    ("array<f32, A>", "is not a constant"),
    ("array<f32, 4 % 3>", "is not a constant"),
    ("array<f32, 4 / 0>", "is not a constant"),
    ("Thing", "'Thing' is not a scalar"),
    ("array<f32>", "is not a scalar"),
])
def test_workgroup_memory_that_cannot_be_counted(declaration: str, words: str) -> None:
    source = parse_source(PATH, f"const A = B; const B = A;\n\nvar<workgroup> a: {declaration};\n")
    with pytest.raises(KernelError) as caught:
        workgroup_bytes(source, constants_of(source))
    assert str(caught.value).startswith(f"{PATH}:3: workgroup variable 'a': ")
    assert words in str(caught.value)
