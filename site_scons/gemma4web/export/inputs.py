"""The inputs that a command line names: folders and files as they are, hub names from the cache or the hub.

What fetches is imported only when something has to be fetched, so an export of local files, or of what the cache has
with --offline, needs and opens nothing of a network.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gemma4web.export.acquisition import Acquisition
from gemma4web.export.hub_name import DEFAULT_HUB, HubName, locate, normal_endpoint
from gemma4web.export.snapshot import acquire_offline, cached
from gemma4web.program.ir import Role
from gemma4web.toolchain.cache import default_cache

if TYPE_CHECKING:
    from gemma4web.export.transport import Transport


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """``path``: what a reader opens; ``name``: how to call it; ``acquired``: where it came from, when a hub named it.

    ``missing``: of a dry run, bytes of every file that an export would have to fetch first.
    """

    path: Path
    name: str
    acquired: Acquisition | None = None
    missing: Mapping[str, int] = field(default_factory=dict)


_Find = Callable[[HubName], Input]


def add_hub_options(parser: argparse.ArgumentParser) -> None:
    """Where checkpoints are fetched from and kept. A token is taken from HF_TOKEN: an option would show it to others."""
    parser.add_argument("--hub", metavar="URL", help=f"hub to fetch from (default: HF_ENDPOINT, else {DEFAULT_HUB})")
    parser.add_argument("--offline", action="store_true", help="take checkpoints of a hub only from the cache")
    parser.add_argument("--cache", type=Path, metavar="DIR",
                        help="where fetched files are kept (default: GEMMA4WEB_CACHE, else ~/.cache/gemma4web)")


def _held(name: HubName, acquired: Acquisition) -> Input:
    return Input(path=acquired.path, name=str(replace(name, revision=acquired.revision)), acquired=acquired)


def _holding(hub: str, cache: Path) -> _Find:
    return lambda name: _held(name, acquire_offline(name, hub, cache))


def _fetching(transport: Transport, cache: Path) -> _Find:
    from gemma4web.export.acquire import acquire

    return lambda name: _held(name, acquire(name, transport, cache))


def _planning(transport: Transport, cache: Path, stack: ExitStack) -> _Find:
    from gemma4web.export.preview import skeleton

    def find(name: HubName) -> Input:
        if (found := cached(name, transport.endpoint, cache)) is not None:
            return _held(name, found)
        path, missing = stack.enter_context(skeleton(name, transport))
        return Input(path=path, name=str(name), missing=missing)

    return find


@contextmanager
def inputs_of(arguments: argparse.Namespace) -> Iterator[dict[Role, Input]]:
    """Everything that ``--target`` and ``--assistant`` name, on this machine at the end.

    In a dry run what the cache lacks is stood in for by the beginnings of the files, until the block ends.
    Raises UsageError, FetchError, CheckpointError, DiskFullError, ToolchainError.
    """
    located = {role: locate(text) for role, text in ((Role.TARGET, arguments.target), (Role.ASSISTANT, arguments.assistant))
               if text is not None}
    hub = normal_endpoint(arguments.hub or os.environ.get("HF_ENDPOINT") or DEFAULT_HUB)
    cache = (arguments.cache or default_cache()).absolute()
    with ExitStack() as stack:
        find = _holding(hub, cache)
        if not arguments.offline and any(isinstance(name, HubName) for name in located.values()):
            from gemma4web.export.acquire import pinned
            from gemma4web.export.transport import Transport, token_of
            from gemma4web.toolchain.progress import default_progress

            transport = Transport(hub, token=token_of(os.environ.get("HF_TOKEN")), progress=default_progress())
            stack.callback(transport.close)
            commits: dict[tuple[str, str], str] = {}  # a branch that both inputs name is one commit, whatever happens meanwhile
            for role, name in located.items():
                if isinstance(name, HubName):
                    known = commits.get((name.repo, name.revision))
                    located[role] = found = replace(name, revision=known) if known else pinned(name, transport)
                    commits[name.repo, name.revision] = found.revision
            find = _planning(transport, cache, stack) if arguments.dry_run else _fetching(transport, cache)
        yield {role: find(name) if isinstance(name, HubName) else Input(path=name, name=str(name))
               for role, name in located.items()}
