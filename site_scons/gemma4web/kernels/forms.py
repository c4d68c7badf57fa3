"""Forms: sets of declarations that several kernel files share, so that each is said once.

A file of forms has sections, the first of which is what a kernel file itself gets:

    //! form: m1
    alias Rows = f32;
    //! form: m1_subgroup requires subgroups
    ...

A kernel file names it where the declarations go, ``//! forms: FILE``, and says of each variant which one it ``is``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gemma4web.kernels.parse import Directive, Source, parse_features


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """``lines``: its declarations without comments. ``features``: what a kernel of this form needs."""

    features: tuple[str, ...]
    lines: tuple[str, ...]


def parse_forms(source: Source) -> Mapping[str, Form]:
    """The forms of a file in their order. Raises KernelError for one without lines or with a name that stands twice,
    for other directives, and for text before the first form."""
    lines = source.code.split("\n")
    marks = list(source.directives)
    for directive in marks:
        if directive.key != "form":
            source.fail(f"`//! {directive.key}` in a file of forms, where only `form` is allowed", line=directive.line)
    ends = [*(mark.line - 1 for mark in marks[1:]), len(lines)]
    before = lines[: marks[0].line] if marks else lines
    if not marks or any(line.strip() for line in before):
        source.fail("wanted `//! form: NAME` before anything else", line=1)
    forms: dict[str, Form] = {}
    for mark, end in zip(marks, ends, strict=True):
        name, requires, features = mark.value.partition(" requires ")
        declared = tuple(line.rstrip() for line in lines[mark.line : end] if line.strip())
        if name in forms:
            source.fail(f"second form {name!r}", line=mark.line)
        if not declared:
            source.fail(f"form {name!r} declares nothing", line=mark.line)
        forms[name] = Form(features=parse_features(source, mark, features) if requires else (), lines=declared)
    return forms


def placed(source: Source, mark: Directive, form: Form) -> Source:
    """The kernel with a form's declarations where ``mark`` stands.

    What is behind them keeps its line: as many of the blank lines that the header leaves go.
    """
    lines = source.code.split("\n")
    spare = [number for number, line in enumerate(lines[1 : mark.line - 1], 1) if not line.strip()]
    gone = set(spare[: len(form.lines) - 1])
    kept = [line for number, line in enumerate(lines[: mark.line - 1]) if number not in gone]
    return Source(path=source.path, code="\n".join([*kept, *form.lines, *lines[mark.line :]]), directives=source.directives)
