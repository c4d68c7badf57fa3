"""Workgroups of one dispatch, from the rule in the kernel's own header.

The rule ends in ``<formula> groups``, a formula over the kernel's params and constants, or is ``one group``.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from gemma4web.errors import KernelError
from gemma4web.kernels.expand import Kernel
from gemma4web.kernels.parse import constant_value

GROUP_LIMIT: Final = 65535
"""Workgroups in one dimension of a dispatch, on a device with default limits."""

_RULE = re.compile(r"(?:.*: )?(?P<formula>.+) groups|one group")
_OPERATORS: Final[dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}


def group_count(kernel: Kernel, params: Mapping[str, int | float]) -> int:
    """Workgroups that make the whole output. Raises KernelError for a rule that cannot be read or is no whole number."""
    rule = _RULE.fullmatch(kernel.header.dispatch)
    if rule is None:
        raise KernelError(f"{kernel.path}: `//! dispatch: {kernel.header.dispatch}` does not end in `<formula> groups`")
    if rule["formula"] is None:
        return 1
    names = {**kernel.constants, **{name: str(value) for name, value in params.items()}}
    try:
        found = _value(ast.parse(rule["formula"], mode="eval").body, names)
    except (SyntaxError, ValueError, ZeroDivisionError) as error:
        raise KernelError(f"{kernel.path}: the formula of `//! dispatch: {kernel.header.dispatch}` has no value: "
                          f"{error}") from None
    if found.denominator != 1 or found < 0:
        raise KernelError(f"{kernel.path}: `//! dispatch: {kernel.header.dispatch}` gives {found} groups")
    return int(found)


def _value(node: ast.expr, names: Mapping[str, str]) -> Fraction:
    """Exact, unlike the constants that it names: those divide as WGSL's whole numbers do."""
    match node:
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case ast.Name(id=name):
            return Fraction(constant_value(name, names))
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _OPERATORS:
            return _OPERATORS[type(kind)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id="ceil"), args=[inner], keywords=[]):
            return Fraction(math.ceil(_value(inner, names)))
        case _:
            raise ValueError(f"`{ast.unparse(node)}` is not allowed in it")


def fold_grid(groups: int, limit: int = GROUP_LIMIT) -> tuple[int, int, int]:
    """At least ``groups`` workgroups with no dimension above ``limit``, as include/grid.wgsl gives them back.

    Raises ValueError when three dimensions do not suffice.
    """
    x = min(groups, limit)
    y = min(-(-groups // x), limit)
    z = -(-groups // (x * y))
    if z > limit:
        raise ValueError(f"{groups} groups do not fold under {limit}")
    return x, y, z
