"""What a run says of its own result: a useless assistant is named (P60)."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from rich.console import Console
from tests.support.sample_record import sample_record

from gemma4web.record import Mtp, Record, parse_record
from gemma4web.run_command import check_mtp
from gemma4web.summary import dead_assistant


def record_with(rounds: int, accepted: int) -> Record:
    """The sample record with these counters in every speculative run."""
    record = parse_record(json.dumps(sample_record()).encode(), "run.json")
    runs = [run if run.mtp is None else msgspec.structs.replace(
        run, mtp=Mtp(rounds=rounds, drafted=2 * rounds, accepted=accepted, emitted=1 + accepted + rounds, cut=0))
        for run in record.runs]
    return msgspec.structs.replace(record, runs=runs)


@pytest.mark.parametrize(("rounds", "accepted", "dead"), [
    (100, 0, True), (100, 3, True), (100, 4, False), (100, 190, False), (2, 0, False),
])
def test_hardly_any_accepted_draft_is_a_dead_assistant(rounds: int, accepted: int, dead: bool) -> None:
    record = record_with(rounds, accepted)
    assert (dead_assistant(record.runs) is not None) == dead
    output: Any = io.StringIO()
    check_mtp(record, Console(file=output, width=200))
    assert ("of no use" in output.getvalue()) == dead


def test_plain_runs_have_no_assistant() -> None:
    assert dead_assistant([run for run in record_with(100, 0).runs if run.mtp is None]) is None
