"""JSON objects of a checkpoint, read within bounds: what two readers might take differently is refused.

Small objects take 30 times their text in memory, so a text of more than ``MAX_BYTES`` is not parsed at all, nor one with
more objects and lists than any checkpoint has.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import CheckpointError
from gemma4web.export.reading import unreadable

MAX_BYTES: Final = 4 << 20
"""A multimodal E4B's header has 0.4 million bytes, its tokenizer_config.json 1.2."""
_MAX_CONTAINERS: Final = 50_000
_MAX_MEMBERS: Final = 100_000
"""Gemma's tokenizer_config.json has about 6 000 and 45 000."""
_HALF: Final = re.compile(rb"\\u[dD][89a-fA-F]")
"""An escape that may be half of a character, which no file or terminal takes."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name stands twice")
    return table


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


def parse(data: bytes) -> dict[str, Any]:
    """The object that UTF-8 ``data`` holds. Raises ValueError for too much of it, a syntax error, a name that stands twice,
    NaN and Infinity, and half a surrogate pair."""
    if len(data) > MAX_BYTES:
        raise ValueError(f"it has {len(data)} bytes, wanted at most {MAX_BYTES}")
    if not data.strip():
        raise ValueError("it is blank")
    if data.count(b"{") + data.count(b"[") > _MAX_CONTAINERS or data.count(b",") > _MAX_MEMBERS:
        raise ValueError(f"it has more than {_MAX_CONTAINERS} objects and lists, or {_MAX_MEMBERS} members")
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004  as every other fault of the text
    if _HALF.search(data):
        try:
            json.dumps(document, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half a surrogate pair, which is no character") from None
    return document


def load(path: Path, *, what: str = "JSON", advice: str) -> dict[str, Any]:
    """The object in a file. Raises CheckpointError naming the file; ``what`` it should have been."""
    try:
        with path.open("rb") as stream:
            return parse(stream.read(MAX_BYTES + 1))
    except OSError as error:
        raise unreadable(path, error, missing=advice) from None
    except ValueError as error:
        raise CheckpointError(f"{path} is no {what}: {error}", advice=advice) from None
