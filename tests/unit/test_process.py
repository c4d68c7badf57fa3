"""Programs that are started: how each kind of end is told apart. Contract codes: V14, X17."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from gemma4web.errors import CompileError, DiskFullError, FetchError
from gemma4web.process import run


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_output_and_a_failure_with_its_words() -> None:
    assert run(python("print('right')")) == "right\n"
    with pytest.raises(CompileError, match=r"(?s)a step failed with exit code 3: .*-c.*\nwrong$"):
        run(python("import sys; print('wrong', file=sys.stderr); sys.exit(3)"), error=CompileError, what="a step")


@pytest.mark.parametrize("said", [
    "npm error code ENOSPC", "npm error enospc no space left on device, write", "E: Write error - write (28: No space left on device)",
    "dpkg-deb: error: cannot copy: Disk quota exceeded",
])
def test_a_full_disk_is_no_fault_of_network_or_code(said: str) -> None:
    """V14: npm's own words end up far from the end of its output, and in the class of a registry that refused."""
    text = f"print({said!r}); print('x' * 9000); raise SystemExit(1)"
    with pytest.raises(DiskFullError, match="npm ci: the disk is full: ") as caught:
        run(python(text), error=FetchError, what="npm ci")
    assert said in str(caught.value)
    assert "remedy: free some space" in str(caught.value)
    assert "network" not in str(caught.value)


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), signal.SIGINT)", "os._exit(130)"])
def test_a_program_ended_by_ctrl_c_is_an_interrupt(end: str) -> None:
    """X17: it propagates as one, instead of an error with the whole command line."""
    with pytest.raises(KeyboardInterrupt):
        run(python(f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL); {end}"), error=CompileError)


def test_a_missing_program_and_one_that_takes_too_long(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="no such program"):
        run([tmp_path / "none"], error=FetchError)
    with pytest.raises(FetchError, match="no end after 0 s"):
        run(python("import time; time.sleep(60)"), error=FetchError, timeout_s=0.2)


def test_other_signals_stay_failures() -> None:
    with pytest.raises(CompileError, match=f"exit code {-signal.SIGKILL}"):
        run(python("import os; os.kill(os.getpid(), 9)"), error=CompileError)
