"""Bundles that are broken on purpose, and a server that breaks connections on purpose."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from tests.support.chrome import Chrome, Remote

from gemma4web.files import dump_json, sha256_bytes
from gemma4web.serve import BundleHandler, BundleServer, serving

STALL_S: Final = 30.0


@contextlib.contextmanager
def served_page(chrome: Chrome, folder: Path, path: str = "") -> Iterator[Remote]:
    """A page of its own on ``path`` of a folder that is served meanwhile."""
    context = chrome.context()
    try:
        with serving(folder) as server:
            page = context.new_page()
            page.goto(server.url + path)
            yield page
    finally:
        context.close()


def copy_bundle(source: Path, target: Path) -> Path:
    """A copy that shares the files' bytes; change one with `replace` only."""
    shutil.copytree(source, target, copy_function=os.link)
    return target


def replace(bundle: Path, path: str, edit: Callable[[bytes], bytes], *, list_it: bool = False) -> None:
    """Changes one file. ``list_it``: the manifest is made to agree, so that only the file's meaning is wrong."""
    place = bundle / path
    data = edit(place.read_bytes())
    place.unlink()
    place.write_bytes(data)
    if list_it:
        edit_manifest(bundle, lambda manifest: _relist(manifest, path, data))


def _relist(manifest: dict[str, Any], path: str, data: bytes) -> None:
    identity = {"bytes": len(data), "sha256": sha256_bytes(data)}
    manifest["files"][path] = identity
    for variant in manifest["variants"].values():
        for part in ("js", "wasm"):
            if variant[part]["path"] == path:
                variant[part].update(identity)


def edit_manifest(bundle: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    place = bundle / "manifest.json"
    manifest = json.loads(place.read_bytes())
    edit(manifest)
    place.unlink()
    place.write_text(dump_json(manifest))


def flip(offset: int) -> Callable[[bytes], bytes]:
    """Flips the lowest bit of one byte."""
    def edit(data: bytes) -> bytes:
        position = offset % len(data)
        return data[:position] + bytes((data[position] ^ 1,)) + data[position + 1:]
    return edit


class BreakingHandler(BundleHandler):
    """Resets or stalls the connection in the middle of the files that the server names in ``reset`` and ``stall``."""

    reset: frozenset[str] = frozenset()
    stall: frozenset[str] = frozenset()

    def send_body(self, path: Path, stream: BinaryIO, count: int) -> None:
        if path.name not in self.reset | self.stall:
            super().send_body(path, stream, count)
            return
        super().send_body(path, stream, count // 2)
        self.wfile.flush()
        if path.name in self.stall:
            time.sleep(STALL_S)
        # A linger time of zero makes the close a reset.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def finish(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            super().finish()


@contextlib.contextmanager
def breaking(bundle: Path, *, reset: str = "", stall: str = "") -> Iterator[BundleServer]:
    handler = type("Handler", (BreakingHandler,), {"reset": frozenset({reset}), "stall": frozenset({stall})})
    with serving(bundle, handler=handler) as server:
        yield server
