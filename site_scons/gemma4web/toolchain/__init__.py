"""Finds or sets up what the project is compiled and run with: emcc, flatc, the WebGPU provider, npm packages, Chromium.

``set_up`` writes build/toolchain.json, build/browser.json and a status file; ``load`` and ``load_browser`` read them,
``is_current`` is the cheap check before a build, ``identity`` is what a receipt says of the tools.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gemma4web.toolchain.command import main
    from gemma4web.toolchain.model import Browser, Provider, ProviderKind, Toolchain, identity, load, load_browser
    from gemma4web.toolchain.options import ToolchainOptions, is_current
    from gemma4web.toolchain.setup import set_up

__all__ = [
    "Browser", "Provider", "ProviderKind", "Toolchain", "ToolchainOptions", "identity", "is_current", "load",
    "load_browser", "main", "set_up",
]

_HOMES: Final = {
    "Browser": "model", "Provider": "model", "ProviderKind": "model", "Toolchain": "model", "identity": "model",
    "load": "model", "load_browser": "model", "ToolchainOptions": "options", "is_current": "options",
    "main": "command", "set_up": "setup",
}


def __getattr__(name: str) -> Any:
    """Imports a name's module when it is first used: a build that sets nothing up never loads what fetches."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
