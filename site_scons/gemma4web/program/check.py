"""Contracts of a program."""

from __future__ import annotations

from gemma4web.errors import ProgramError
from gemma4web.program import ir


def check(program: ir.Program, *, name: str = "program") -> None:
    if ir.count(program.graph.ops) != program.census:
        raise ProgramError(f"{name}: census differs")
