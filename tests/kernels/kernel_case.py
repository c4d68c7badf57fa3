"""What a kernel test case is, and how one runs: sentinels in outputs, canaries and poison behind every buffer."""

from __future__ import annotations

import math
import os
import re
import secrets
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from tests.support.gpu_page import Bound, GpuDevice

from gemma4web.kernels import Kernel, expand, expand_all, fold_grid, group_count
from gemma4web.kernels.dispatch import GROUP_LIMIT
from gemma4web.kernels.parse import BindingKind
from gemma4web.kernels.render import minify

Array = npt.NDArray[Any]
Rng = np.random.Generator

ROOT: Final = Path(__file__).resolve().parents[2]
KERNEL_DIR: Final = ROOT / "runtime_cpp/kernels"
LOCK_PATH: Final = KERNEL_DIR / "kernels.lock.json"

# NaNs as floats, unlikely numbers as integers. SENTINEL fills outputs and stands behind them: what is left unwritten, or
# written too far, is seen. POISON stands behind inputs: what is read too far is seen, and is not taken for the sentinel.
SENTINEL: Final = 0x7FC5A5A5
POISON: Final = 0x7FE3C3C3
GUARD_WORDS: Final = 67

SEED: Final = int(os.environ.get("GEMMA4WEB_SEED") or secrets.randbits(32))
"""Fresh in every run; set GEMMA4WEB_SEED to see a failure again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """An output: what the reference gives, in float64 or as int32.

    ``before`` is the content of an in-out buffer (default: sentinels). ``magnitude`` scales the tolerance of each
    element (default: max(1, |value|)). Where a value is NaN, the output must be NaN.
    """

    values: Array
    before: Array | None = None
    magnitude: Array | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """Arguments of one dispatch by binding name, and what must come out.

    ``per_row`` names inputs and outputs whose first axis is params.rows: such a case is also run row by row, and the bits
    must be the same.
    """

    kernel: str
    inputs: Mapping[str, Array] = field(default_factory=dict)
    outputs: Mapping[str, Expected]
    params: Mapping[str, int | float]
    per_row: tuple[str, ...] = ()


Builder = Callable[[Rng], Case]
BUILDERS: dict[str, Builder] = {}


def case(name: str) -> Callable[[Builder], Builder]:
    """Registers a builder under ``<kernel>: what it is about``."""

    def register(builder: Builder) -> Builder:
        if name in BUILDERS:
            raise ValueError(f"two cases are called {name!r}")
        BUILDERS[name] = builder
        return builder

    return register


@cache
def build(name: str) -> Case:
    """Fresh inputs, the same in one test run whatever the order of tests."""
    made = BUILDERS[name](np.random.default_rng([SEED, zlib.crc32(name.encode())]))
    if not name.startswith(f"{made.kernel}: "):
        raise ValueError(f"case {name!r} is one of {made.kernel}")
    return made


@cache
def kernels() -> dict[str, Kernel]:
    """By name. Those of the matrix unit stand on ``matrix_unit.wgsl`` beside this file: no software adapter has the feature."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(KERNEL_DIR, folder, dirs_exist_ok=True))
        shutil.copy(Path(__file__).with_name("matrix_unit.wgsl"), copy / "include")
        for name in ("linear_q4_matrix.wgsl", "include/matrix_tile.wgsl"):
            (copy / name).write_text(_without_matrix_unit((copy / name).read_text()))
        emulated = {kernel.name: kernel for kernel in expand(copy / "linear_q4_matrix.wgsl")}
    found = {kernel.name: kernel for kernel in expand_all(KERNEL_DIR)}
    return {name: replace(emulated[name], path=kernel.path) if name in emulated else kernel for name, kernel in found.items()}


def _without_matrix_unit(text: str) -> str:
    for pattern, plain in (
        (r"//! requires: chromium-experimental-subgroup-matrix, .*", ""),
        (r"//! unroll", ""),  # what the loop does is the same, and it compiles in half the time
        (r"  let (?:vectors|elements|floats) = bufferView<.*", ""),
        (r"\bvectors\[", "memory["), (r"\bfloats\[([^\]]*)\]", r"sum_at(\1)"),
        (r"subgroupMatrixLoad<(Left|Right), \w+>\(elements, (.*), 8u \* STRIDE\);", r"\1(\2);"),
        (r"subgroupMatrixMultiplyAccumulate\(", "add_product("),
        (r"subgroupMatrixStore<row_major>\(floats, (\w+), (\w+), 16u\);", r"put_sums(\1, \2);"),
        (r"  let subgroup = thread / 32u;", "  own_lane = thread % 32u; let subgroup = thread / 32u;"),
        # Without the vector between two rows, so that an adapter's 32 KiB hold the largest tiles.
        (r"const STRIDE = EIGHTS \+ 1u;", "const STRIDE = EIGHTS;"),
    ):
        text = re.sub(pattern, plain, text)
    return text


def run_case(device: GpuDevice, made: Case, *, limit: int = GROUP_LIMIT, text: str | None = None) -> list[str]:
    """Problems of one dispatch: wrong values, unwritten elements, damaged canaries. ``text`` replaces the shader."""
    found, problems = dispatch(device, made, limit=limit, text=text)
    kernel = kernels()[made.kernel]
    for name, expected in made.outputs.items():
        if problem := compare(found[name], expected, kernel.header.tolerance):
            problems.append(f"{name}: {problem}")
    return problems


def dispatch(
    device: GpuDevice, made: Case, *, limit: int = GROUP_LIMIT, text: str | None = None
) -> tuple[dict[str, Array], list[str]]:
    """Outputs by name (float32 or int32, flat), and sentences on damaged canaries."""
    kernel = kernels()[made.kernel]
    bound: list[Bound] = []
    outputs: list[tuple[str, int]] = []
    for binding in kernel.interface.bindings:
        if binding.kind is BindingKind.UNIFORM:
            bound.append(Bound(kind="uniform", data=pack_params(kernel, made.params)))
            continue
        if binding.kind is BindingKind.READ_ONLY_STORAGE:
            content, behind = _words(made.inputs[binding.name]), POISON
        else:
            behind = SENTINEL
            expected = made.outputs[binding.name]
            content = (np.full(expected.values.size, SENTINEL, np.uint32) if expected.before is None
                       else _words(expected.before))
            outputs.append((binding.name, content.size))
        guard = np.full(GUARD_WORDS, behind, np.uint32)
        bound.append(Bound(kind=str(binding.kind), data=np.concatenate([content, guard]).tobytes()))
    grid = fold_grid(group_count(kernel, made.params), limit)
    raw = device.run(minify(kernel.text) if text is None else text, bound, grid)
    found: dict[str, Array] = {}
    problems: list[str] = []
    for (name, size), data in zip(outputs, raw, strict=True):
        words = np.frombuffer(data, np.uint32)
        damaged = np.flatnonzero(words[size:] != SENTINEL)
        if damaged.size:
            problems.append(f"{name}: {damaged.size} words behind the output are written, the first {damaged[0]} behind")
        integer = made.outputs[name].values.dtype.kind in "iu"
        found[name] = words[:size].view(np.int32 if integer else np.float32)
    return found, problems


def _words(array: Array) -> npt.NDArray[np.uint32]:
    """The bytes of an array as whole words; floats become f32, integers of 64 bits i32."""
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    elif array.dtype == np.int64:
        array = array.astype(np.int32)
    data = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(data + bytes(-len(data) % 4), np.uint32)


def pack_params(kernel: Kernel, params: Mapping[str, int | float]) -> bytes:
    names = [item.name for item in kernel.params]
    if set(names) != set(params):
        raise ValueError(f"{kernel.name}: params {sorted(params)}, wanted {sorted(names)}")
    codes = {"u32": "I", "i32": "i", "f32": "f"}
    packed = struct.pack("<" + "".join(codes[item.type] for item in kernel.params), *(params[name] for name in names))
    return packed + bytes(-len(packed) % 16)


def compare(found: Array, expected: Expected, tolerance: float) -> str | None:
    """None, or a sentence on the worst element. Tolerance 0 compares bits (any NaN equals any NaN)."""
    wanted = expected.values.reshape(-1)
    if wanted.dtype.kind in "iu" or tolerance == 0.0:
        same = np.asarray(_words(found) == _words(wanted))
        if wanted.dtype.kind == "f":
            same |= np.isnan(found) & np.isnan(wanted)
        error = (~same).astype(np.float64)
        bound = np.zeros(wanted.size)
    else:
        magnitude = np.maximum(1.0, np.abs(wanted)) if expected.magnitude is None else expected.magnitude.reshape(-1)
        with np.errstate(invalid="ignore"):
            error = np.abs(found.astype(np.float64) - wanted)
            error[found.astype(np.float64) == wanted] = 0.0
        error[np.isnan(found) & np.isnan(wanted)] = 0.0
        error[np.isnan(error)] = math.inf
        bound = tolerance * np.nan_to_num(np.abs(magnitude), nan=1.0, posinf=1.0)
    bad = np.flatnonzero(error > bound)
    if not bad.size:
        return None
    worst = bad[np.argmax(error[bad])]
    return (f"{bad.size} of {wanted.size} elements are wrong; [{worst}] is {found[worst]}, wanted {wanted[worst]} "
            f"within {bound[worst]:.3g}; first at [{bad[0]}]: {found[bad[0]]}, wanted {wanted[bad[0]]}")


def single_row(made: Case, row: int) -> Case:
    """The same case with row ``row`` alone."""
    def cut(array: Array) -> Array:
        rows = made.params["rows"]
        return array.reshape(int(rows), -1)[row:row + 1]

    inputs = {name: cut(array) if name in made.per_row else array for name, array in made.inputs.items()}
    outputs = {name: replace(item, values=cut(item.values), before=None if item.before is None else cut(item.before),
                             magnitude=None if item.magnitude is None else cut(item.magnitude))
               if name in made.per_row else item for name, item in made.outputs.items()}
    return replace(made, inputs=inputs, outputs=outputs, params={**made.params, "rows": 1})
