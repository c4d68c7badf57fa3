"""Files: atomic writes, hashes, and JSON with a schema number. The only place that writes published bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from gemma4web.errors import RecordError

_READ_BYTES = 1 << 20


def write_atomic(path: Path, data: bytes | str) -> None:
    """Replaces ``path`` by ``data`` in one rename; the old file stays whole if anything fails."""
    payload = data.encode() if isinstance(data, str) else data
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def write_if_changed(path: Path, data: bytes | str) -> bool:
    """Writes only when the bytes differ, so that dependents are not rebuilt; returns whether it wrote."""
    payload = data.encode() if isinstance(data, str) else data
    if path.is_file() and path.read_bytes() == payload:
        return False
    write_atomic(path, payload)
    return True


def provider_files(folder: Path) -> list[Path]:
    """Files that make a WebGPU provider, in name order; what Python compiles them to is not part of it."""
    return sorted(
        path for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.relative_to(folder).parts and not path.name.startswith(".")
    )


def sha256_bytes(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()


def dump_json(document: dict[str, Any]) -> str:
    """Canonical text of a document: sorted keys, two spaces, a final newline. Needs a ``schema`` number."""
    if not isinstance(document.get("schema"), int):
        raise RecordError("a JSON document needs an integer `schema`")
    return json.dumps(document, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def load_json(path: Path, *, schema: int) -> dict[str, Any]:
    """Reads a document written by ``dump_json``; an unknown schema is refused.

    Raises RecordError with the path, what was found and what was wanted.
    """
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("schema") != schema:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise RecordError(f"{path} has schema {found!r}, wanted {schema}")
    return document
