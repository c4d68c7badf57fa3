"""Forms: declarations that several kernel files share, said once."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_kernels_expand import write
from test_kernels_parse import BODY, HEADER

from gemma4web.errors import KernelError
from gemma4web.kernels import dependencies, expand

FORMS = """// Two of them.

//! form: one
alias Rows = f32; // the first is the file's own
const MORE = 0u;

//! form: many requires subgroups
alias Rows = vec3f;
const MORE = 1u;
"""
KERNEL = HEADER + "//! variant: k_many is many\n" + BODY.replace("@compute", "//! forms: include/rows.wgsl\n\n@compute")


def folder(tmp_path: Path, *, forms: str = FORMS, kernel: str = KERNEL) -> Path:
    write(tmp_path, "include/rows.wgsl", forms)
    return write(tmp_path, "k.wgsl", kernel)


def test_each_kernel_of_a_file_gets_its_form(tmp_path: Path) -> None:
    path = folder(tmp_path)
    one, many = expand(path)
    assert (one.name, one.features) == ("k", ()) and (many.name, many.features) == ("k_many", ("subgroups",))
    assert "alias Rows = f32;" in one.text and "const MORE = 0u;" in one.text and "vec3f" not in one.text
    assert "alias Rows = vec3f;" in many.text and "const MORE = 1u;" in many.text and "Rows = f32" not in many.text
    assert many.text.startswith("enable subgroups;")
    assert one.interface == many.interface
    assert dependencies(path) == [tmp_path / "include/rows.wgsl"]


def test_what_is_behind_a_form_keeps_its_line(tmp_path: Path) -> None:
    """So that a compiler's message fits the file."""
    path = folder(tmp_path)
    line = path.read_text().splitlines().index("@compute @workgroup_size(64)")
    assert [kernel.text.splitlines().index("@compute @workgroup_size(64)") for kernel in expand(path)] == [line, line]


def test_a_form_is_a_prelude_said_elsewhere(tmp_path: Path) -> None:
    """The same text as with its declarations in the kernel file."""
    inline = HEADER + """//! variant: k_many requires subgroups
//! swap: alias Rows = vec3f;
//! swap: const MORE = 1u;
""" + BODY.replace("@compute", "//! prelude\nalias Rows = f32;\nconst MORE = 0u;\n//! end\n\n@compute")
    wanted = expand(write(tmp_path / "inline", "k.wgsl", inline))
    for found, same in zip(expand(folder(tmp_path)), wanted, strict=True):
        assert [line.rstrip() for line in found.text.splitlines() if line.strip()] == [
            line.rstrip() for line in same.text.splitlines() if line.strip()]


@pytest.mark.parametrize(("old", "new", "words"), [
    ("is many", "is several", r"k\.wgsl:5: include/rows\.wgsl has no form 'several', only one, many"),
    (" is many", "", r"k\.wgsl:5: variant 'k_many' has no `//! swap:` line"),
    ("//! forms: include/rows.wgsl\n", "", r"k\.wgsl:5: variant 'k_many' is of a form, of which there are none"),
    ("is many\n", "is many\n//! swap: x\n", r"k\.wgsl:5: variant 'k_many' has `//! swap:` lines and a form"),
    ("is many\n", "requires subgroups\n//! swap: x\n", r"k\.wgsl:5: variant 'k_many' has to say which form it `is`"),
    ("include/rows", "include/none", r"k\.wgsl:\d+: file of forms 'include/none\.wgsl' does not exist"),
    ("//! forms: include/rows.wgsl\n", "//! forms: include/rows.wgsl\n//! forms: include/rows.wgsl\n",
     r"k\.wgsl:\d+: wanted one `//! forms:`"),
])
def test_a_malformed_kernel(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in KERNEL
    with pytest.raises(KernelError, match=words):
        expand(folder(tmp_path, kernel=KERNEL.replace(old, new)))


@pytest.mark.parametrize(("old", "new", "words"), [
    ("form: many", "form: one", r"rows\.wgsl:7: second form 'one'"),
    ("requires subgroups", "requires magic", r"rows\.wgsl:7: unknown feature 'magic'"),
    ("//! form: one", "//! include: x", r"rows\.wgsl:3: `//! include` in a file of forms"),
    ("// Two", "fn two() {} // Two", r"rows\.wgsl:1: wanted `//! form: NAME` before anything else"),
    ("alias Rows = vec3f;\nconst MORE = 1u;\n", "", r"rows\.wgsl:7: form 'many' declares nothing"),
])
def test_a_malformed_file_of_forms(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in FORMS
    with pytest.raises(KernelError, match=words):
        expand(folder(tmp_path, forms=FORMS.replace(old, new)))
