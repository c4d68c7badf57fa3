"""Stands in for gemma4web.program.codec in the tiny project: a program is a JSON file with its method and shards."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace


def read(path: Path) -> SimpleNamespace:
    document = json.loads(path.read_text(encoding="utf-8"))
    return SimpleNamespace(graph=SimpleNamespace(method=document["method"]), source_sha256=document["source_sha256"],
                           shards=[SimpleNamespace(**shard) for shard in document["shards"]])
