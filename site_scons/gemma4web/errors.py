"""The one error tree. Every class has an exit code and advice; a message says what was found and what was wanted."""

from __future__ import annotations

from typing import ClassVar


class Gemma4WebError(Exception):
    """Base of every error that a user may meet; ``advice`` is the remedy, printed on its own line."""

    exit_code: ClassVar[int] = 1
    default_advice: ClassVar[str] = ""

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        super().__init__(message)
        self.advice: str = self.default_advice if advice is None else advice

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message}\n  remedy: {self.advice}" if self.advice else message


class UsageError(Gemma4WebError):
    """An option, a path or a request file is wrong."""

    exit_code = 2


class ToolchainError(Gemma4WebError):
    """A tool is missing, too old, or does not work."""

    exit_code = 3
    default_advice = "run `scons toolchain` to set up the pinned tools, or name your own with EMSDK= / BROWSER="


class FetchError(Gemma4WebError):
    """A registry refused, did not answer, or delivered bytes with a wrong hash: infrastructure, not code."""

    exit_code = 4
    default_advice = "check the network, then run the command again; finished downloads are kept"


class CompileError(Gemma4WebError):
    """The compiler, the linker or the kernel generator refused a source."""

    exit_code = 5


class KernelError(CompileError):
    """A WGSL file breaks the kernel format, or the committed lock differs from the sources."""


class CheckpointError(Gemma4WebError):
    """A checkpoint, tokenizer or config is malformed or not of a supported kind."""

    exit_code = 6


class ProgramError(Gemma4WebError):
    """A program file is malformed or violates a contract."""

    exit_code = 7


class PublishError(Gemma4WebError):
    """A destination exists, a disk is full, or a published folder is incomplete."""

    exit_code = 8


class VerifyError(Gemma4WebError):
    """A published file differs, is missing or is extra."""

    exit_code = 9
    default_advice = "stage the bundle again with `scons bundle`"


class DiskFullError(Gemma4WebError):
    """A program that was started, or a set-up, met a full disk: infrastructure, not code."""

    exit_code = 12
    default_advice = "free some space, then run the command again; what is finished is kept"


class BrowserError(Gemma4WebError):
    """Chromium, the page, the GPU or a deadline failed during a browser run."""

    exit_code = 10


class RecordError(Gemma4WebError):
    """A record or another JSON document has an unknown schema or contradicts itself."""

    exit_code = 11
