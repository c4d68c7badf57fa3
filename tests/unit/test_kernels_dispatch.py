"""Workgroup counts come from the kernels' own headers (O7, P19)."""

from __future__ import annotations

from pathlib import Path

import pytest

from gemma4web.errors import KernelError
from gemma4web.kernels import expand, expand_all, fold_grid, group_count

KERNEL_DIR = Path(__file__).resolve().parents[2] / "runtime_cpp/kernels"
TEXT = """\
//! formula: out = x
//! dispatch: {rule}
//! reference: copy
//! tolerance: exact
//! variant: wide requires subgroups
//! swap: const COLUMNS = 8u;
//! prelude
const COLUMNS = 4u;
//! end
const HALF = COLUMNS / 2u;
struct Params {{
  rows: u32,
  n: u32,
}}
@group(0) @binding(0) var<storage, read_write> out: array<f32>;
@group(0) @binding(1) var<uniform> params: Params;
@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {{
  out[lane] = f32(params.n + params.rows + HALF);
}}
"""


def kernel_with(folder: Path, rule: str, variant: int = 0) -> object:
    path = folder / "copy.wgsl"
    path.write_text(TEXT.format(rule=rule))
    return expand(path)[variant]


@pytest.mark.parametrize(("rule", "variant", "groups"), [
    ("one group", 0, 1),
    ("one thread an element: ceil(rows * n / 64) groups", 0, 3),
    ("columns together: rows * ceil(n / COLUMNS) groups", 0, 33),
    ("columns together: rows * ceil(n / COLUMNS) groups", 1, 18),
    ("halves: ceil(n / HALF) + 1 groups", 0, 23),
    ("n groups", 0, 43),
])
def test_rules(tmp_path: Path, rule: str, variant: int, groups: int) -> None:
    """Params, constants, a variant's own constants, and constants made of others."""
    assert group_count(kernel_with(tmp_path, rule, variant), {"rows": 3, "n": 43}) == groups  # type: ignore[arg-type]


@pytest.mark.parametrize(("rule", "words"), [
    ("as many as it takes", "does not end in"),
    ("ceil(width / 64) groups", "width"),
    ("n / 2 groups", "gives 43/2 groups"),
    ("n - 44 groups", "gives -1 groups"),
    ("n ** 2 groups", "not allowed"),
    ("(n groups", "has no value"),
    ("n / 0 groups", "has no value"),
])
def test_bad_rules(tmp_path: Path, rule: str, words: str) -> None:
    with pytest.raises(KernelError, match=words):
        group_count(kernel_with(tmp_path, rule), {"rows": 3, "n": 43})  # type: ignore[arg-type]


def test_every_kernel_has_a_rule() -> None:
    for kernel in expand_all(KERNEL_DIR):
        assert group_count(kernel, {field.name: 64 for field in kernel.params}) >= 1


def test_a_variant_enables_what_it_requires(tmp_path: Path) -> None:
    """The extension stands on the first line, so that every other line keeps its number."""
    plain, wide = (kernel_with(tmp_path, "one group", variant) for variant in (0, 1))
    assert wide.text.startswith("enable subgroups;") and "enable" not in plain.text  # type: ignore[attr-defined]
    assert len(wide.text.splitlines()) == len(plain.text.splitlines())  # type: ignore[attr-defined]


def test_a_grid_that_cannot_fold() -> None:
    with pytest.raises(ValueError, match="do not fold"):
        fold_grid(28, limit=3)
