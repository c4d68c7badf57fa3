"""Reads one WGSL file: comments away first, then directives, entry point, bindings, params and workgroup memory.

A kernel file is legal WGSL. What WGSL cannot say stands in ``//!`` lines, each ``//! key: value``:

=========== ======================================================================================
formula     what the kernel computes, one line
dispatch    how many workgroups make the whole output
reference   function of ``gemma4web.oracle.ops`` (or of the kernel tests) that computes the same in float64
tolerance   largest error against the reference relative to max(1, |reference|), or ``exact``
include     a file relative to the kernel folder, whose declarations the kernel uses
requires    ``<feature>, ...``: of the device or of WGSL, which every kernel of this file needs
storage-buffers, workgroup-memory
            a number above the default limit of WebGPU, which the kernels of this file may reach
variant     ``<name> [requires <feature>, ...]``: a second kernel from this file; ``<name> is <form>`` with ``forms``
swap        one line of that variant's prelude; the lines replace what stands between ``prelude`` and ``end``
prelude     (no value) starts the declarations of the default variant
end         (no value) ends them
forms       a file of forms, in the place of a prelude: see ``forms``
form        ``<name> [requires <feature>, ...]``: starts one in such a file
unroll      (no value) the ``for`` loop on the next line is written out: drivers leave loops around subgroup matrices alone
=========== ======================================================================================
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final, NoReturn

from gemma4web.errors import KernelError

DEFAULT_STORAGE_BUFFERS: Final = 8
"""Storage buffers of one shader that every WebGPU device allows without asking for more."""

DEFAULT_WORKGROUP_BYTES: Final = 16384
"""Bytes of workgroup memory that every WebGPU device allows without asking for more."""

_VALUE_KEYS: Final = frozenset({"formula", "dispatch", "reference", "tolerance", "include", "requires", "variant", "swap",
                                "storage-buffers", "workgroup-memory", "forms", "form"})
_PRELUDE_KEYS: Final = frozenset({"prelude", "end"})
_BARE_KEYS: Final = _PRELUDE_KEYS | {"unroll"}
_SINGLE_KEYS: Final = ("formula", "dispatch", "reference", "tolerance")
_SCALARS: Final = {"u32", "i32", "f32"}
_FEATURES: Final = frozenset({"shader-f16", "subgroups", "packed_4x8_integer_dot_product", "buffer_view",
                              "chromium-experimental-subgroup-matrix"})
"""Of the device by WebGPU's names, of WGSL by its own."""

_ENTRY = re.compile(r"((?:@\w+(?:\s*\([^()]*\))?\s*)*)fn\s+main\s*\(")
_WORKGROUP_SIZE = re.compile(r"@workgroup_size\s*\(([^()]*)\)")
_BINDING = re.compile(
    r"((?:@\w+\s*\([^()]*\)\s*)+)var\s*<\s*(\w+)\s*(?:,\s*(\w+)\s*)?>\s*(\w+)\s*:\s*([^;]+?)\s*;"
)
_STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}")
_WORKGROUP_VAR = re.compile(r"\bvar\s*<\s*workgroup\s*>\s*(\w+)\s*:\s*([^;=]+?)\s*;")
_CONST = re.compile(r"\bconst\s+(\w+)\s*(?::\s*\w+\s*)?=\s*([^;]+?)\s*;")
_ALIAS = re.compile(r"\balias\s+(\w+)\s*=\s*([^;]+?)\s*;")
_NAME = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")


class BindingKind(StrEnum):
    READ_ONLY_STORAGE = "read"
    STORAGE = "read_write"
    UNIFORM = "uniform"


@dataclass(frozen=True, kw_only=True, slots=True)
class Binding:
    name: str
    kind: BindingKind
    type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One 4-byte member of the params struct; its offset is 4 times its index."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Directive:
    line: int
    key: str
    value: str


@dataclass(frozen=True, kw_only=True, slots=True)
class VariantHeader:
    """A second kernel of the same file: its name, the device features it needs, the lines of its prelude or its form."""

    name: str
    features: tuple[str, ...]
    prelude: tuple[str, ...]
    form: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file whose comments are blanked: ``code`` has the line structure of the file, so a position gives a line."""

    path: Path
    code: str
    directives: tuple[Directive, ...]

    def fail(self, message: str, *, line: int, advice: str = "") -> NoReturn:
        raise KernelError(f"{self.path}:{line}: {message}", advice=advice)

    def line_of(self, position: int) -> int:
        return self.code.count("\n", 0, position) + 1

    def values(self, key: str) -> list[Directive]:
        return [directive for directive in self.directives if directive.key == key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    formula: str
    dispatch: str
    reference: str
    tolerance: float
    variants: tuple[VariantHeader, ...]
    prelude_lines: tuple[int, int] | None
    forms: Directive | None
    features: tuple[str, ...]
    storage_buffers: int
    """How many the kernel may bind: a route with one of more than DEFAULT_STORAGE_BUFFERS is not taken on every device."""
    workgroup_memory: int
    """Bytes that the kernel may take, likewise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """What the C++ side must know to make a pipeline and a bind group."""

    workgroup: tuple[int, int, int]
    bindings: tuple[Binding, ...]
    params: tuple[Field, ...]


def strip_comments(text: str) -> tuple[str, list[tuple[int, str]]]:
    """Blanks line comments and (nested) block comments, keeping newlines; returns the code and the ``//!`` lines.

    An unterminated block comment raises ValueError with its line number as the only argument.
    """
    code: list[str] = []
    notes: list[tuple[int, str]] = []
    position, line, depth, opened = 0, 1, 0, 0
    while position < len(text):
        pair, char = text[position:position + 2], text[position]
        if pair == "/*":
            opened = opened if depth else line
            depth += 1
            code.append("  ")
            position += 2
        elif depth and pair == "*/":
            depth -= 1
            code.append("  ")
            position += 2
        elif not depth and pair == "//":
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            comment = text[position:end]
            if comment.startswith("//!"):
                notes.append((line, comment[3:].strip()))
            code.append(" " * len(comment))
            position = end
        else:
            line += char == "\n"
            code.append(char if char == "\n" or not depth else " ")
            position += 1
    if depth:
        raise ValueError(opened)
    return "".join(code), notes


def parse_source(path: Path, text: str) -> Source:
    """Strips comments and splits the ``//!`` lines. Raises KernelError for an unknown key or a stray value."""
    text = text.replace("\r\n", "\n")
    try:
        code, notes = strip_comments(text)
    except ValueError as error:
        raise KernelError(f"{path}:{error.args[0]}: block comment is not closed") from None
    source = Source(path=path, code=code, directives=())
    directives: list[Directive] = []
    for line, note in notes:
        key, colon, value = (part.strip() for part in note.partition(":"))
        if key not in _VALUE_KEYS | _BARE_KEYS:
            known = ", ".join(sorted(_VALUE_KEYS | _BARE_KEYS))
            source.fail(f"unknown `//!` key {key!r}, wanted one of {known}", line=line)
        if key in _VALUE_KEYS and not value:
            source.fail(f"`//! {key}:` needs a value", line=line)
        if key in _BARE_KEYS and (colon or value):
            source.fail(f"`//! {key}` takes no value", line=line)
        directives.append(Directive(line=line, key=key, value=value))
    return Source(path=path, code=code, directives=tuple(directives))


def parse_header(source: Source) -> Header:
    """The directives of a kernel file. Raises KernelError when one is missing, repeated or out of place."""
    found: dict[str, str] = {}
    for key in _SINGLE_KEYS:
        directives = source.values(key)
        if not directives:
            source.fail(f"`//! {key}:` is missing", line=1)
        if len(directives) > 1:
            source.fail(f"second `//! {key}:`", line=directives[1].line)
        found[key] = directives[0].value
    prelude = _parse_prelude(source)
    variants = _parse_variants(source)
    forms = source.values("forms")
    if len(forms) > 1 or (forms and prelude is not None):
        source.fail("wanted one `//! forms:`, or one `//! prelude`", line=forms[-1].line)
    for variant in variants:
        if bool(variant.form) != bool(forms):
            source.fail(f"variant {variant.name!r} " + ("is of a form, of which there are none" if variant.form else
                        "has to say which form it `is`"), line=variant.line)
    if variants and prelude is None and not forms:
        source.fail("a variant needs a `//! prelude` ... `//! end` block to swap", line=variants[0].line)
    return Header(
        formula=found["formula"], dispatch=found["dispatch"], reference=found["reference"],
        tolerance=_parse_tolerance(source, found["tolerance"]), variants=variants, prelude_lines=prelude,
        forms=forms[0] if forms else None,
        features=tuple(sorted({feature for line in source.values("requires") for feature in parse_features(source, line, line.value)})),
        storage_buffers=_parse_more_than(source, "storage-buffers", DEFAULT_STORAGE_BUFFERS),
        workgroup_memory=_parse_more_than(source, "workgroup-memory", DEFAULT_WORKGROUP_BYTES),
    )


def _parse_tolerance(source: Source, text: str) -> float:
    line = source.values("tolerance")[0].line
    if text == "exact":
        return 0.0
    try:
        tolerance = float(text)
    except ValueError:
        source.fail(f"tolerance {text!r} is neither a number nor `exact`", line=line)
    if not 0.0 < tolerance < 1.0:
        source.fail(f"tolerance {text} is not between 0 and 1", line=line)
    return tolerance


def _parse_more_than(source: Source, key: str, default: int) -> int:
    """A limit that this file's kernels need raised above what every device allows; ``default`` when it says none."""
    directives = source.values(key)
    if not directives:
        return default
    text, line = directives[-1].value, directives[-1].line
    if len(directives) > 1:
        source.fail(f"second `//! {key}:`", line=line)
    if not text.isdecimal() or int(text) <= default:
        source.fail(f"{key} {text!r} is no number above {default}, which every device allows", line=line)
    return int(text)


def _parse_prelude(source: Source) -> tuple[int, int] | None:
    marks = [directive for directive in source.directives if directive.key in _PRELUDE_KEYS]
    if not marks:
        return None
    if [mark.key for mark in marks] != ["prelude", "end"]:
        source.fail("wanted exactly one `//! prelude` followed by one `//! end`", line=marks[0].line)
    return marks[0].line, marks[1].line


def parse_features(source: Source, directive: Directive, text: str) -> tuple[str, ...]:
    """The features of a list, sorted. Raises KernelError, at the directive, for an unknown one."""
    listed = tuple(sorted(feature.strip() for feature in text.split(",")))
    if unknown := [feature for feature in listed if feature not in _FEATURES]:
        source.fail(f"unknown feature {unknown[0]!r}, wanted one of {', '.join(sorted(_FEATURES))}", line=directive.line)
    return listed


def _parse_variants(source: Source) -> tuple[VariantHeader, ...]:
    variants: list[VariantHeader] = []
    for directive in source.directives:
        if directive.key == "variant":
            named, requires, features = directive.value.partition(" requires ")
            name, _, form = (part.strip() for part in named.partition(" is "))
            listed = parse_features(source, directive, features) if requires else ()
            if not _NAME.fullmatch(name):
                source.fail(f"variant name {name!r} is not lower_snake_case", line=directive.line)
            variants.append(VariantHeader(name=name, features=listed, prelude=(), form=form, line=directive.line))
        elif directive.key == "swap":
            if not variants:
                source.fail("`//! swap:` before any `//! variant:`", line=directive.line)
            last = variants[-1]
            variants[-1] = replace(last, prelude=(*last.prelude, directive.value))
    for variant in variants:
        if bool(variant.prelude) == bool(variant.form):
            source.fail(f"variant {variant.name!r} has " + ("`//! swap:` lines and a form" if variant.form else
                        "no `//! swap:` line"), line=variant.line)
    return tuple(variants)


def parse_interface(source: Source) -> Interface:
    """Entry point, bindings and params of a kernel file, from its own code.

    Raises KernelError with file and line: not exactly one ``@compute``, a workgroup size that is no number, a gap in the
    binding numbers, a group other than 0, missing ``params``, params that are not 4-byte scalars.
    """
    workgroup = _parse_workgroup(source)
    bindings = _parse_bindings(source)
    return Interface(workgroup=workgroup, bindings=bindings, params=_parse_params(source, bindings[-1].type))


def _parse_workgroup(source: Source) -> tuple[int, int, int]:
    computes = [match.start() for match in re.finditer(r"@compute\b", source.code)]
    if len(computes) != 1:
        line = source.line_of(computes[1]) if computes else 1
        source.fail(f"found {len(computes)} `@compute` entry points, wanted one", line=line)
    entry = next((match for match in _ENTRY.finditer(source.code) if "@compute" in match.group(1)), None)
    if entry is None:
        source.fail("the entry point is not `@compute @workgroup_size(...) fn main(...)`",
                    line=source.line_of(computes[0]))
    line = source.line_of(computes[0])
    size = _WORKGROUP_SIZE.search(entry.group(1))
    if size is None:
        source.fail("the entry point has no `@workgroup_size`", line=line)
    numbers: list[int] = []
    constants = constants_of(source)
    for part in size.group(1).rstrip().removesuffix(",").split(","):
        written = constants.get(part.strip(), part)
        literal = re.fullmatch(r"\s*([1-9][0-9]*)[ui]?\s*", written)
        if literal is None:
            source.fail(f"workgroup size {part.strip()!r} is neither a number nor a constant of this file that is one",
                        line=line, advice="write the number itself; the build reads it without a WGSL compiler")
        numbers.append(int(literal.group(1)))
    if len(numbers) > 3:
        source.fail(f"workgroup size has {len(numbers)} dimensions, wanted at most 3", line=line)
    x, y, z = (*numbers, 1, 1)[:3]
    return x, y, z


def _parse_bindings(source: Source) -> tuple[Binding, ...]:
    matches = list(_BINDING.finditer(source.code))
    for mention in re.finditer(r"@binding\b", source.code):
        if not any(match.start() <= mention.start() < match.end(1) for match in matches):
            source.fail("binding declaration is not `@group(0) @binding(n) var<...> name: type;`",
                        line=source.line_of(mention.start()))
    bindings: list[Binding] = []
    for match in matches:
        attributes, space, access, name, type_name = match.groups()
        number = re.search(r"@binding\s*\(\s*(\d+)\s*\)", attributes)
        line = source.line_of(match.start())
        if number is None or not re.search(r"@group\s*\(\s*0\s*\)", attributes):
            source.fail(f"{name!r} is not `@group(0) @binding(<number>)`", line=line)
        if int(number.group(1)) != len(bindings):
            source.fail(f"binding {name!r} has number {number.group(1)}, wanted {len(bindings)}", line=line,
                        advice="number bindings from 0 without gaps, in the order of their declaration")
        kind = _binding_kind(source, space, access, line)
        bindings.append(Binding(name=name, kind=kind, type="".join(type_name.split())))
    if not bindings or bindings[-1].name != "params" or bindings[-1].kind is not BindingKind.UNIFORM:
        source.fail("the last binding is not `var<uniform> params`", line=1)
    extra = [binding for binding in bindings[:-1] if binding.kind is BindingKind.UNIFORM]
    if extra:
        source.fail(f"uniform binding {extra[0].name!r} beside `params`", line=1)
    return tuple(bindings)


def _binding_kind(source: Source, space: str, access: str | None, line: int) -> BindingKind:
    if space == "uniform" and access is None:
        return BindingKind.UNIFORM
    if space == "storage" and access in (None, "read"):
        return BindingKind.READ_ONLY_STORAGE
    if space == "storage" and access == "read_write":
        return BindingKind.STORAGE
    found = space if access is None else f"{space}, {access}"
    source.fail(f"binding of kind <{found}>, wanted <storage, read>, <storage, read_write> or <uniform>", line=line)


def _parse_params(source: Source, type_name: str) -> tuple[Field, ...]:
    structs = {match.group(1): match for match in _STRUCT.finditer(source.code)}
    struct = structs.get(type_name)
    if struct is None:
        source.fail(f"params struct {type_name!r} is not declared in this file", line=1)
    line = source.line_of(struct.start())
    fields: list[Field] = []
    for part in struct.group(2).strip().removesuffix(",").split(","):
        member = re.fullmatch(r"\s*(\w+)\s*:\s*(.+?)\s*", part, re.DOTALL)
        if member is None or member.group(2) not in _SCALARS:
            source.fail(f"params member {part.strip()!r} is not a 4-byte scalar (u32, i32 or f32)", line=line)
        fields.append(Field(name=member.group(1), type=member.group(2)))
    return tuple(fields)


def constants_of(source: Source) -> dict[str, str]:
    """Module constants of one file, name -> expression, and type aliases, name -> type."""
    return {match.group(1): match.group(2) for kind in (_CONST, _ALIAS) for match in kind.finditer(source.code)}


def workgroup_bytes(source: Source, constants: dict[str, str]) -> int:
    """Bytes of workgroup memory as WebGPU counts them: every variable rounded up to 16.

    ``constants`` are those of all files of the shader. Raises KernelError for a type or an array length that cannot be
    computed.
    """
    total = 0
    for match in _WORKGROUP_VAR.finditer(source.code):
        try:
            size, _ = _type_layout("".join(match.group(2).split()), constants)
        except ValueError as error:
            source.fail(f"workgroup variable {match.group(1)!r}: {error}", line=source.line_of(match.start()))
        total += -(-size // 16) * 16
    return total


def _type_layout(type_name: str, constants: dict[str, str]) -> tuple[int, int]:
    """(size, alignment) in bytes of a scalar, vector, atomic, buffer or array type."""
    scalar = {"f32": 4, "u32": 4, "i32": 4, "bool": 4, "f16": 2}
    short = {"f": "f32", "u": "u32", "i": "i32", "h": "f16"}
    type_name = "".join(constants.get(type_name, type_name).split())
    if type_name in scalar:
        return scalar[type_name], scalar[type_name]
    if inner := re.fullmatch(r"atomic<(\w+)>", type_name):
        return _type_layout(inner.group(1), constants)
    if vector := re.fullmatch(r"vec([234])(?:<(\w+)>|([fuih]))", type_name):
        width, element = int(vector.group(1)), vector.group(2) or short[vector.group(3)]
        if element not in scalar:
            raise ValueError(f"unknown element type {element!r}")
        return width * scalar[element], (4 if width == 3 else width) * scalar[element]
    if buffer := re.fullmatch(r"buffer<([^,<>]+)>", type_name):
        return constant_value(buffer.group(1), constants, ()), 16
    if array := re.fullmatch(r"array<(.+),([^,<>]+)>", type_name):
        size, alignment = _type_layout(array.group(1), constants)
        stride = -(-size // alignment) * alignment
        return stride * constant_value(array.group(2), constants, ()), alignment
    raise ValueError(f"type {type_name!r} is not a scalar, vector, atomic, buffer or sized array")


def constant_value(expression: str, constants: Mapping[str, str], outer: tuple[str, ...] = ()) -> int:
    """Value of an integer expression of literals, module constants, + - * / and parentheses. Raises ValueError.

    ``outer``: constants whose values are being computed, for which this one is needed.
    """
    plain = re.sub(r"\b(\d+)[ui]\b", r"\1", expression.strip())

    def value(node: ast.expr) -> int:
        match node:
            case ast.Constant(value=int(number)):
                return number
            case ast.Name(id=name) if name in constants and name not in outer:
                return constant_value(constants[name], constants, (*outer, name))
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() as op, right=right):
                a, b = value(left), value(right)
                if isinstance(op, ast.Add):
                    return a + b
                if isinstance(op, ast.Sub):
                    return a - b
                return a * b if isinstance(op, ast.Mult) else a // b
        raise ValueError(f"{expression.strip()!r} is not a constant that the build can compute")

    try:
        return value(ast.parse(plain, mode="eval").body)
    except (SyntaxError, ZeroDivisionError):
        raise ValueError(f"{expression.strip()!r} is not a constant that the build can compute") from None
