"""Turns kernel files into complete shader texts: includes appended, preludes swapped, one text a variant.

Module scope in WGSL has no order, so included declarations go behind the kernel's own text, which keeps its line numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma4web.errors import KernelError
from gemma4web.kernels.forms import parse_forms, placed
from gemma4web.kernels.parse import (
    BindingKind,
    Directive,
    Field,
    Header,
    Interface,
    Source,
    VariantHeader,
    constant_value,
    constants_of,
    parse_header,
    parse_interface,
    parse_source,
    workgroup_bytes,
)

MAX_INVOCATIONS: Final = 256
"""Of a workgroup, that every WebGPU device grants without asking for more."""

DIRECTIVES: Final = {
    "shader-f16": "enable f16;", "subgroups": "enable subgroups;",
    "packed_4x8_integer_dot_product": "requires packed_4x8_integer_dot_product;", "buffer_view": "requires buffer_view;",
    # Pieces are addressed by the subgroup's number, which WGSL cannot prove to be one for all of its lanes.
    "chromium-experimental-subgroup-matrix":
        "enable chromium_experimental_subgroup_matrix; diagnostic(off, chromium.subgroup_matrix_uniformity);",
}
"""A feature of the device or of WGSL -> what a shader that needs it begins with."""


_LOOP = re.compile(r"\s*(?P<loop>for \(var (?P<name>\w+) = (?P<first>[^;]+); (?P=name) < (?P<limit>[^;]+); (?P=name) \+= (?P<step>[^;]+?)\) \{)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """One shader: ``text`` is complete WGSL without comments; ``line`` is where the file names it.

    ``constants`` are those of module scope: name -> expression.
    """

    name: str
    path: Path
    line: int
    text: str
    features: tuple[str, ...]
    interface: Interface
    header: Header
    workgroup_bytes: int
    constants: Mapping[str, str]

    @property
    def params(self) -> tuple[Field, ...]:
        return self.interface.params


def read_source(path: Path) -> Source:
    """Raises KernelError when the file is missing or no UTF-8."""
    try:
        return parse_source(path, path.read_bytes().decode())
    except FileNotFoundError:
        raise KernelError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise KernelError(f"{path}: not UTF-8 at byte {error.start}") from None


def dependencies(path: Path, kernel_dir: Path | None = None) -> list[Path]:
    """Every file that ``path`` includes, directly or not, in the order of their texts; then its file of forms.

    Includes are relative to ``kernel_dir``, by default the folder of ``path``. For the build's scanner.
    """
    source, folder = read_source(path), kernel_dir or path.parent
    return [*(part.path for part in _included(source, folder)), *(folder / forms.value for forms in source.values("forms"))]


def expand_all(kernel_dir: Path) -> list[Kernel]:
    """All kernels of a folder, sorted by name. Raises KernelError for whatever breaks the format."""
    paths = sorted(kernel_dir.glob("*.wgsl"))
    if not paths:
        raise KernelError(f"{kernel_dir}: no *.wgsl file")
    by_name: dict[str, Kernel] = {}
    for path in paths:
        for kernel in expand(path):
            if (other := by_name.get(kernel.name)) is not None:
                raise KernelError(f"{kernel.path}:{kernel.line}: kernel name {kernel.name!r} is already that of "
                                  f"{other.path}:{other.line}")
            by_name[kernel.name] = kernel
    return [by_name[name] for name in sorted(by_name)]


def expand(path: Path) -> list[Kernel]:
    """The default variant of one file and its further variants."""
    source = read_source(path)
    header = parse_header(source)
    parts = _included(source, path.parent)
    if header.forms is not None:
        return _of_forms(source, header, parts, header.forms)
    kernels = [_make(source, header, parts, name=path.stem, line=1, features=header.features)]
    for variant in header.variants:
        swapped = _swap_prelude(source, header, variant)
        kernels.append(_make(swapped, header, parts, name=variant.name, line=variant.line,
                             features=tuple(sorted({*header.features, *variant.features}))))
    return kernels


def _of_forms(source: Source, header: Header, parts: list[Source], mark: Directive) -> list[Kernel]:
    """The kernel of the first form under the file's own name, and the variants."""
    path = source.path.parent / mark.value
    if not path.is_file():
        source.fail(f"file of forms {mark.value!r} does not exist in {source.path.parent}", line=mark.line)
    forms = parse_forms(read_source(path))
    wanted = [(source.path.stem, next(iter(forms)), 1, ()), *(
        (variant.name, variant.form, variant.line, variant.features) for variant in header.variants)]
    kernels = []
    for name, form, line, features in wanted:
        if form not in forms:
            source.fail(f"{mark.value} has no form {form!r}, only {', '.join(forms)}", line=line)
        kernels.append(_make(placed(source, mark, forms[form]), header, parts, name=name, line=line,
                             features=tuple(sorted({*header.features, *features, *forms[form].features}))))
    return kernels


def _swap_prelude(source: Source, header: Header, variant: VariantHeader) -> Source:
    """Replaces the lines between the marks, padded so that everything behind them keeps its line."""
    assert header.prelude_lines is not None
    first, last = header.prelude_lines
    lines = source.code.split("\n")
    room = last - first - 1
    if len(variant.prelude) > room:
        packed = [*variant.prelude[:max(room - 1, 0)], " ".join(variant.prelude[max(room - 1, 0):])]
    else:
        packed = [*variant.prelude, *[""] * (room - len(variant.prelude))]
    if room == 0:
        source.fail("the prelude is empty: nothing to swap", line=first)
    lines[first:last - 1] = packed
    return Source(path=source.path, code="\n".join(lines), directives=source.directives)


def _make(source: Source, header: Header, parts: list[Source], *, name: str, line: int,
          features: tuple[str, ...]) -> Kernel:
    interface = parse_interface(source)
    constants = {name: value for part in (source, *parts) for name, value in constants_of(part).items()}
    # On the first line, a comment in the file, so that every other line keeps its number.
    directives = "".join(f"{DIRECTIVES[feature]} " for feature in features)
    text = "\n".join([directives + _unrolled(source, constants), *(part.code for part in parts)])
    memory = sum(workgroup_bytes(part, constants) for part in (source, *parts))
    _check_limits(source, interface, header, memory)
    return Kernel(name=name, path=source.path, line=line, text=text, features=features, interface=interface,
                  header=header, workgroup_bytes=memory, constants=constants)


def _unrolled(source: Source, constants: Mapping[str, str]) -> str:
    """The code with every marked loop written out, in as many lines as before: the first turn keeps the loop's lines."""
    code = source.code
    for mark in reversed(source.values("unroll")):
        start = sum(len(line) + 1 for line in code.split("\n")[:mark.line])
        loop = _LOOP.match(code, start)
        if loop is None:
            source.fail("`//! unroll` stands above no `for (var i = a; i < b; i += c) {`", line=mark.line)
        end = _closing_brace(code, loop.end())
        body = code[loop.end():end]
        if end < 0 or re.search(r"\b(break|continue)\b", body):
            source.fail("a loop that is left early cannot be written out", line=mark.line)
        try:
            first, limit, step = (constant_value(loop.group(name), constants) for name in ("first", "limit", "step"))
            turns = range(first, limit, step)
        except ValueError as error:
            source.fail(f"the turns of this loop are not known: {error}", line=mark.line)
        copies = [f"{{ const {loop.group('name')} = {turn}u; {body if turn == first else ' '.join(body.split())} }}" for turn in turns]
        code = code[:loop.start("loop")] + " ".join(copies) + code[end + 1:]
    return code


def _closing_brace(code: str, start: int) -> int:
    """Where the block that is open at ``start`` ends; -1: nowhere."""
    depth = 1
    for position in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[position], 0)
        if depth == 0:
            return position
    return -1


def _check_limits(source: Source, interface: Interface, header: Header, memory: int) -> None:
    invocations = interface.workgroup[0] * interface.workgroup[1] * interface.workgroup[2]
    storage = sum(binding.kind is not BindingKind.UNIFORM for binding in interface.bindings)
    for what, found, limit in (("bytes of workgroup memory", memory, header.workgroup_memory),
                               ("invocations a workgroup", invocations, MAX_INVOCATIONS),
                               ("storage buffers", storage, header.storage_buffers)):
        if found > limit:
            source.fail(f"{found} {what}, the limit is {limit}", line=1)


def _included(source: Source, kernel_dir: Path) -> list[Source]:
    """Depth first, each file once. Raises KernelError for a missing file, a cycle, or an include with an entry point."""
    done: dict[Path, Source] = {}

    def visit(current: Source, stack: tuple[Path, ...]) -> None:
        for directive in current.values("include"):
            path = kernel_dir / directive.value
            if path in stack:
                chain = " -> ".join(item.name for item in (*stack[stack.index(path):], path))
                current.fail(f"include cycle: {chain}", line=directive.line)
            if path in done:
                continue
            if not path.is_file():
                current.fail(f"included file {directive.value!r} does not exist in {kernel_dir}", line=directive.line)
            part = read_source(path)
            _check_part(part)
            visit(part, (*stack, path))
            done[path] = part

    visit(source, (source.path,))
    return list(done.values())


def _check_part(part: Source) -> None:
    for directive in part.directives:
        if directive.key != "include":
            part.fail(f"`//! {directive.key}` in an included file, where only `include` is allowed",
                      line=directive.line)
    for attribute in ("@compute", "@binding"):
        if (position := part.code.find(attribute)) >= 0:
            part.fail(f"`{attribute}` in an included file", line=part.line_of(position))
