"""Finds or sets up what the project is compiled and run with: emcc, flatc, the WebGPU provider, npm packages, Chromium.

``set_up`` writes build/toolchain.json, build/browser.json and a status file; ``load`` and ``load_browser`` read them,
``is_current`` is the cheap check before a build, ``identity`` is what a receipt says of the tools.
"""

from gemma4web.toolchain.command import main
from gemma4web.toolchain.model import Browser, Provider, ProviderKind, Toolchain, identity, load, load_browser
from gemma4web.toolchain.setup import ToolchainOptions, is_current, set_up

__all__ = [
    "Browser", "Provider", "ProviderKind", "Toolchain", "ToolchainOptions", "identity", "is_current", "load",
    "load_browser", "main", "set_up",
]
