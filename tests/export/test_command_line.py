"""The dispatcher: commands are found lazily, errors of the tree become their exit code and no traceback."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

from gemma4web import __main__ as command_line
from gemma4web.errors import BrowserError, Gemma4WebError, UsageError


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_every_command_exists(name: str) -> None:
    module, function, _ = command_line.COMMANDS[name]
    assert callable(getattr(importlib.import_module(module), function))


def _command(monkeypatch: pytest.MonkeyPatch, body: Callable[[list[str]], int | None]) -> None:
    module = types.ModuleType("fake_command")
    module.main = body  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "fake_command", module)
    monkeypatch.setitem(command_line.COMMANDS, "fake", ("fake_command", "main", "a fake"))


@pytest.mark.parametrize("error", [UsageError("x is 1, wanted 2"), BrowserError("x", advice="do y"), Gemma4WebError("x")])
def test_errors_become_exit_codes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                  error: Gemma4WebError) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    _command(monkeypatch, fail)
    assert command_line.main(["fake"]) == error.exit_code
    assert capsys.readouterr().err.startswith(f"gemma4web fake: {type(error).__name__}: x")


def test_arguments_and_result_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def note(argv: list[str]) -> int:
        seen.append(argv)
        return 7

    _command(monkeypatch, note)
    assert command_line.main(["fake", "--a", "b"]) == 7 and seen == [["--a", "b"]]


def test_interrupt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(argv: list[str]) -> int:
        raise KeyboardInterrupt

    _command(monkeypatch, interrupted)
    assert command_line.main(["fake"]) == 130 and "interrupted" in capsys.readouterr().err


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(argv: list[str]) -> int:
        raise ZeroDivisionError

    _command(monkeypatch, broken)
    with pytest.raises(ZeroDivisionError):
        command_line.main(["fake"])


def test_help_imports_nothing_heavy() -> None:
    code = ("import sys; from gemma4web.__main__ import main; code = main(['--help']); "
            "sys.exit(code or any(name in sys.modules for name in ('numpy', 'playwright', 'tokenizers', 'rich')))")
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False, timeout=60).returncode == 0
