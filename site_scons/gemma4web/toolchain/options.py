"""What a user may name for a set-up, and the cheap check whether a finished set-up still holds.

Imported at the start of every build, so it imports nothing that fetches, unpacks or draws.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gemma4web.toolchain import model
from gemma4web.toolchain.cache import default_cache

CHECKOUT: Final = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolchainOptions:
    """What a user may name. ``None`` means: look for an installed one, else fetch one."""

    emsdk: str | Path | None = None
    emdawnwebgpu_pkg: str | Path | None = None
    provider: str = "auto"
    browser: str | Path | None = None
    cache: str | Path | None = None
    checkout: str | Path = CHECKOUT

    def cache_folder(self) -> Path:
        return default_cache() if self.cache is None else Path(self.cache).expanduser().absolute()

    def emsdk_named(self) -> str | Path | None:
        """The option, else the variable that an activated SDK sets."""
        return self.emsdk or os.environ.get("EMSDK") or None

    def recorded(self) -> dict[str, str | None]:
        """What the cheap check compares: another choice means another set-up."""
        def text(value: str | Path | None) -> str | None:
            return None if value is None else str(Path(value).expanduser().absolute())

        return {
            "emsdk": text(self.emsdk_named()), "emdawnwebgpu_pkg": text(self.emdawnwebgpu_pkg), "provider": self.provider,
            "browser": None if self.browser is None else str(self.browser), "cache": str(self.cache_folder()),
            "checkout": text(self.checkout),
        }


def is_current(path: Path, options: ToolchainOptions) -> bool:
    """Whether ``path`` and its companions still describe the tools for these options. Starts no process."""
    return model.is_current(path, options.recorded())
