"""The memory in front of the Closure Compiler: the same question gets the same answer, any other one a new one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from gemma4web import closure


@dataclass(frozen=True, kw_only=True)
class Closure:
    """A stand-in compiler that copies its input in capitals and counts its calls."""

    folder: Path

    def ask(self, *flags: str, salt: str = "1", text: str = "glue", expect: int = 0) -> str:
        (self.folder / "in.js").write_text(text, encoding="utf-8")
        output = self.folder / "out.js"
        output.unlink(missing_ok=True)
        finished = subprocess.run(
            [sys.executable, "-I", closure.__file__, str(self.folder / "memory"), salt, str(self.folder / "compiler"),
             *flags, "--externs", "externs.js", "--js", "in.js", "--js_output_file", "out.js"],
            cwd=self.folder, capture_output=True, text=True, timeout=30, check=False)
        assert finished.returncode == expect, finished.stderr
        return output.read_text(encoding="utf-8") if output.is_file() else finished.stderr

    def calls(self) -> int:
        log = self.folder / "calls"
        return len(log.read_text(encoding="utf-8").splitlines()) if log.is_file() else 0


@pytest.fixture
def compiler(tmp_path: Path) -> Closure:
    script = tmp_path / "compiler"
    script.write_text('''#!/bin/sh
echo call >> calls
if [ -f fail ]; then echo wrong >&2; exit 3; fi
if [ -f warn ]; then echo careful >&2; fi
tr a-z A-Z < in.js > out.js
''', encoding="utf-8")
    script.chmod(0o755)
    (tmp_path / "externs.js").write_text("var a;", encoding="utf-8")
    return Closure(folder=tmp_path)


def test_same_question_is_answered_from_memory(compiler: Closure) -> None:
    assert [compiler.ask(), compiler.ask()] == ["GLUE", "GLUE"]
    assert compiler.calls() == 1


def test_other_questions_are_asked(compiler: Closure) -> None:
    assert compiler.ask() == "GLUE"
    assert compiler.ask(text="other") == "OTHER"
    assert compiler.ask("--formatting", "PRETTY_PRINT") == "GLUE"
    assert compiler.ask(salt="2") == "GLUE"
    (compiler.folder / "externs.js").write_text("var b;", encoding="utf-8")
    assert compiler.ask() == "GLUE"
    assert compiler.calls() == 5


def test_flags_with_a_file_stand_for_its_content(compiler: Closure) -> None:
    compiler.ask("--externs=externs.js")
    (compiler.folder / "externs.js").write_text("var c;", encoding="utf-8")
    compiler.ask("--externs=externs.js")
    assert compiler.calls() == 2


def test_failures_and_warnings_are_never_remembered(compiler: Closure) -> None:
    (compiler.folder / "fail").touch()
    assert compiler.ask(expect=3) == "wrong\n"
    (compiler.folder / "fail").unlink()
    (compiler.folder / "warn").touch()
    compiler.ask()
    compiler.ask()
    assert compiler.calls() == 3
    assert not (compiler.folder / "memory").exists()


def test_words_cannot_run_together() -> None:
    assert closure.key_of("s", ["ab", "c"]) != closure.key_of("s", ["a", "bc"])
    assert closure.key_of("s", ["--js_output_file", "x1.js"]) == closure.key_of("s", ["--js_output_file", "x2.js"])
