"""Mutants keep their promise: consistent ones pass every check, the others are refused, all differ and serialise."""

from __future__ import annotations

import pytest
from micro_program import micro_program

from gemma4web.errors import ProgramError, UsageError
from gemma4web.oracle.faults import Fault
from gemma4web.program import codec, ir
from gemma4web.program.check import check
from gemma4web.program.mutants import MUTANTS, REFUSED, ROUND_ONLY, UNIFIED_ONLY, mutate

KERNEL_OR_BYTES = {Fault.EXACT_GELU, Fault.NIBBLE_ORDER, Fault.WRONG_KV_HEAD}


def test_every_fault_has_a_program_form_or_a_reason() -> None:
    assert set(Fault) - KERNEL_OR_BYTES == set(MUTANTS) - {"embedding_scale_zero", "embedding_scale_nan"}


@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.parametrize("method", [ir.TEXT_DECODER, ir.K2_ROUND])
def test_mutant(name: str, method: str) -> None:
    program = micro_program(method, unified=name in UNIFIED_ONLY)
    if name in ROUND_ONLY and method == ir.TEXT_DECODER:
        with pytest.raises(UsageError, match="a mutant of k2_round"):
            mutate(program, name)
        return
    changed = mutate(program, name)
    data = codec.to_bytes(changed)
    assert data != codec.to_bytes(program)
    if name in REFUSED:
        with pytest.raises(ProgramError):
            check(changed)
        with pytest.raises(ProgramError):
            codec.from_bytes(data)
    else:
        check(changed)
        assert codec.to_bytes(codec.from_bytes(data)) == data


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="no program mutant 'x'"):
        mutate(micro_program(ir.TEXT_DECODER), "x")
