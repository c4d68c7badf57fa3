"""Stands in for gemma4web.export in the tiny project: a shard is the checkpoint's file as it is."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def identity(data: bytes) -> dict[str, object]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def export_model(target: Path, assistant: Path, out: Path) -> None:
    out.mkdir(parents=True)
    weights = target.read_bytes()
    files = {"target-00001-of-00001.safetensors": weights,
             "assistant-00001-of-00001.safetensors": assistant.read_bytes(),
             "source.json": json.dumps({"schema": 1, "inputs": identity(weights)}).encode()}
    shards = {"text_decoder": ["target-00001-of-00001.safetensors"], "k2_round": sorted(files)[:1] + sorted(files)[2:]}
    methods = {}
    for method, names in shards.items():
        program = {"method": method, "source_sha256": identity(files["source.json"])["sha256"], "shards": [{"file": name, **identity(files[name])} for name in names]}
        files[f"{method}.g4p"] = json.dumps(program).encode()
        methods[method] = {"program": f"{method}.g4p", "shards": names}
    for name, data in files.items():
        (out / name).write_bytes(data)
    document = {"schema": 1, "name": "tiny", "methods": methods, "acquisition": identity(weights),
                "files": {name: identity(data) for name, data in files.items()},
                "source_sha256": identity(files["source.json"])["sha256"]}
    (out / "model.json").write_text(json.dumps(document, sort_keys=True, indent=2) + "\n", encoding="utf-8")
