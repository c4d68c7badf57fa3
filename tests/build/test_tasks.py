"""What `scons run`, `serve` and the others pass on: words, exit codes, Ctrl-C. Contract codes: B1, B5, X17."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from tiny_project import Project


def ctrl_c(process: subprocess.Popen[str]) -> str:
    os.killpg(process.pid, signal.SIGINT)
    return process.communicate(timeout=30)[0]


@pytest.mark.parametrize("name", ["run", "bench", "bench-kernels"])
def test_a_program_that_fails_is_named_once_and_keeps_its_exit_code(built: Project, name: str) -> None:
    """V14: the class of an error of the tree, which is its exit code, reaches whoever started SCons."""
    built.path("exit-code.txt").write_text("10", encoding="utf-8")
    built.path("fixtures/story/prompts.json").write_text("[]", encoding="utf-8")
    out = built.scons(name, expect=10).out
    assert f"scons: *** [{name}] gemma4web {name} ended with exit code 10" in out
    assert "Error:" not in out
    assert "Traceback" not in out


def test_pytest_is_named_and_keeps_its_exit_code(built: Project) -> None:
    """5 is pytest's own for a run without any test."""
    out = built.scons("test", "PYTEST=-q --collect-only web", expect=5).out
    assert "scons: *** [test] pytest ended with exit code 5" in out


def test_ctrl_c_ends_serving_quietly(built: Project) -> None:
    process = built.start("serve", "PORT=8421")
    assert process.stdout is not None
    lines = iter(process.stdout.readline, "")
    assert any(line.startswith("stand-in serve") for line in lines)
    assert built.scons().up_to_date, "a page that is being looked at stops no build"
    assert ctrl_c(process) == ""
    assert process.returncode == 0


def test_nothing_is_served_after_a_failure(built: Project) -> None:
    built.path("exit-code.txt").write_text("10", encoding="utf-8")
    built.path("fixtures/story/prompts.json").write_text("[]", encoding="utf-8")
    assert "stand-in serve" not in built.scons("serve", "run", expect=10).out


def test_ctrl_c_while_compiling_says_so_and_no_more(built: Project) -> None:
    """X17: no CompileError with the whole command line; what was interrupted is made by the next build."""
    built.edit("runtime_cpp/src/base/number.cc", "int number()", "#wait\nint number()")
    process = built.start()
    deadline = time.monotonic() + 30
    while "waiting" not in built.calls() and time.monotonic() < deadline:
        time.sleep(0.05)
    out = ctrl_c(process)
    assert "scons: *** [build/shared/obj/base/number.o] Build interrupted." in out
    assert "CompileError" not in out
    assert "-ffile-prefix-map" not in out
    assert process.returncode == 2
    built.edit("runtime_cpp/src/base/number.cc", "#wait\n", "")
    assert built.scons("bundle", "verify").code == 0
