"""Whether npm's registry answers at all, asked before a long download: without a network nobody waits at 0 %."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gemma4web.errors import Gemma4WebError
from gemma4web.process import run

_CONNECT_TIMEOUT_S: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}
_PROXY_VARIABLES: Final = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY", "PROXY")

PATIENT: Final = ("--fetch-retries=2", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=10000",
                  "--fetch-timeout=120000")
"""npm's words for a network that works: a lost connection is tried again, a dead one is given up within minutes."""
QUICK: Final = ("--fetch-retries=0", "--fetch-timeout=10000")
"""For a registry that did not answer: one attempt, in case npm knows a way that this module does not."""


def _settings(npm: str, folder: Path) -> dict[str, Any]:
    """npm's own settings in ``folder``; empty when it does not tell them."""
    try:
        found = json.loads(run([npm, "config", "list", "--json"], cwd=folder, what="npm config", timeout_s=60.0))
    except (Gemma4WebError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _doors(settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Where a request of npm may go first, with what that is: the registry, or a proxy."""
    proxies = [settings.get("https-proxy"), settings.get("proxy"), *map(os.environ.get, _PROXY_VARIABLES)]
    for what, address in (("npm's registry", settings.get("registry")), *(("the proxy", proxy) for proxy in proxies)):
        if isinstance(address, str) and address:
            yield what, address if "://" in address else f"http://{address}"


def unreachable(npm: str, folder: Path) -> str:
    """One sentence when neither npm's registry nor a proxy takes a connection; empty when one does, or when in doubt.

    It names hosts, and of the proxy variables only the names: a value may hold a password.
    """
    failures: dict[str, None] = {}
    for what, address in _doors(_settings(npm, folder)):
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port or _PORTS.get(parts.scheme, 80)
        except ValueError:
            return ""
        if host is None:
            return ""
        try:
            socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_S).close()
            return ""
        except OSError as error:
            failures[f"{what} {host}:{port} cannot be reached ({error.strerror or error})"] = None
    if not failures:
        return ""
    named = [name for name in _PROXY_VARIABLES if os.environ.get(name)]
    variables = f"set: {', '.join(named)}" if named else "none is set"
    return f"{'; '.join(failures)}; of the variables that name a proxy, {variables}"
