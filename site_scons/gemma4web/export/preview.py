"""What an export of a hub's checkpoint would be, before it is fetched: from the beginnings of its files.

A skeleton has every file at its full length, but of the weights only the header and the few small tables that decide
something; the rest are holes, which take no space.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError, FetchError
from gemma4web.export.acquire import INDEX, named_file, refuse_collisions, texts_of, weights_of
from gemma4web.export.download import download, writing
from gemma4web.export.folder_source import FolderSource
from gemma4web.export.gguf_file import ROPE_FREQS
from gemma4web.export.gguf_source import GgufSource
from gemma4web.export.hub import HubFile, file_url, list_files, refuse, refuse_page
from gemma4web.export.hub_name import HubName
from gemma4web.export.tensors import Tensors, read_header
from gemma4web.export.transport import TransientError, Transport

_HEAD_BYTES: Final = 4 << 20
_MAX_HEAD_BYTES: Final = 256 << 20
_TABLES: Final = ("masked_embedding.token_ordering", ROPE_FREQS)
_BLOCK_BYTES: Final = 1 << 20


def _fill(transport: Transport, name: HubName, file: HubFile, path: Path, begin: int, end: int) -> None:
    """Copies bytes ``begin .. end`` of a file at the hub to their place in the skeleton. Raises FetchError."""
    def ask() -> None:
        place = begin
        with transport.open(file_url(transport, name, file.path), {"Range": f"bytes={begin}-{end - 1}"}) as answer:
            span = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
            if answer.status_code not in (200, 206):
                raise refuse(transport, answer, name, f"{file.path} in {name.repo}")
            if begin and (answer.status_code == 200 or span is None or int(span[1]) != begin):
                raise FetchError(f"{transport.host} serves {file.path} only as a whole",
                                 advice="leave out --dry-run: what is fetched is kept")
            with path.open("r+b") as stream:
                stream.seek(begin)
                for block in transport.blocks(answer, _BLOCK_BYTES):
                    if not place:
                        refuse_page(answer, block[:64], file.path)
                    stream.write(block[:end - place])
                    place += len(block)
                    if place >= end:
                        return
        raise TransientError(f"the connection ended after {place - begin} of {end - begin} bytes")

    transport.retried(f"the beginning of {file.path}", ask)


def _tables(transport: Transport, name: HubName, files: Mapping[Path, HubFile], tensors: Tensors) -> None:
    for table in _TABLES:
        if table in tensors:
            entry = tensors.find(table)
            _fill(transport, name, files[entry.file], entry.file, entry.begin, entry.end)


def _gguf(transport: Transport, name: HubName, file: HubFile, path: Path) -> None:
    """The metadata have no length of their own: more is fetched until they can be read."""
    have, want = 0, min(_HEAD_BYTES, file.bytes)
    while True:
        _fill(transport, name, file, path, have, want)
        have = want
        try:
            with GgufSource(path) as source:
                _tables(transport, name, {path: file}, source)
                return
        except CheckpointError:
            if have in (file.bytes, _MAX_HEAD_BYTES):
                raise
            want = min(2 * have, file.bytes, _MAX_HEAD_BYTES)


def _safetensors(transport: Transport, name: HubName, files: Mapping[Path, HubFile]) -> None:
    for path, file in files.items():
        first = min(_HEAD_BYTES, file.bytes)
        _fill(transport, name, file, path, 0, first)
        with path.open("rb") as stream:
            end = min(8 + int.from_bytes(stream.read(8), "little"), file.bytes, _MAX_HEAD_BYTES)
        if end > first:
            _fill(transport, name, file, path, first, end)
        read_header(path)
    with FolderSource(next(iter(files)).parent) as source:
        _tables(transport, name, files, source)


@contextmanager
def skeleton(name: HubName, transport: Transport) -> Iterator[tuple[Path, Mapping[str, int]]]:
    """(what a reader opens, bytes of every file that an export would fetch), gone when the block ends.

    Raises FetchError, CheckpointError, DiskFullError.
    """
    listing = list_files(transport, name)
    with tempfile.TemporaryDirectory(prefix="gemma4web-") as scratch, writing(Path(scratch)):
        root = Path(scratch) / name.repo.split("/")[1]
        root.mkdir()
        texts = [] if name.file else texts_of(name, listing)
        refuse_collisions(texts)
        for file in texts:
            download(transport, name, file, root / file.path, lambda _: None)
        weights = [named_file(name, listing)] if name.file else weights_of(name, listing, root / INDEX)
        refuse_collisions([*texts, *weights])
        holes = {root / file.path: file for file in weights}
        for path, file in holes.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as stream:
                stream.truncate(file.bytes)
        if name.file:
            _gguf(transport, name, weights[0], root / name.file)
        else:
            _safetensors(transport, name, holes)
        yield root / name.file if name.file else root, {file.path: file.bytes for file in (*texts, *weights)}
