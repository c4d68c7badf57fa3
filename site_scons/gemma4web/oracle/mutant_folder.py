"""A published model folder with one mistake in it, hashes and all consistent: what a browser test loads."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gemma4web.export.destination import MODEL_FILE
from gemma4web.export.folder import open_folder
from gemma4web.export.publish import Publication
from gemma4web.files import dump_json
from gemma4web.oracle.faults import Fault
from gemma4web.program import codec, ir, mutants
from gemma4web.program.ir import Program


def _swapped(program: Program, folder: Path, shards: dict[str, bytes]) -> Program:
    """The program over shards whose q4 bytes have their nibbles exchanged; fills ``shards`` with the changed files."""
    data = {shard.file: bytearray(shards.get(shard.file) or (folder / shard.file).read_bytes())
            for shard in program.shards}
    for weight in program.weights:
        shard = program.shards[weight.values.shard]
        if weight.scales is not None and shard.file not in shards:
            span = slice(weight.values.begin, weight.values.begin + weight.values.bytes)
            packed = np.frombuffer(bytes(data[shard.file][span]), np.uint8)
            data[shard.file][span] = ((packed << 4) | (packed >> 4)).tobytes()
    shards |= {name: bytes(content) for name, content in data.items()}
    hashed = tuple(dataclasses.replace(shard, sha256=hashlib.sha256(shards[shard.file]).hexdigest())
                   for shard in program.shards)
    return dataclasses.replace(program, shards=hashed)


def write(source: Path, name: str, destination: Path) -> Path:
    """Publishes a copy of an exported folder whose programs (or packed weights) carry the mistake ``name``.

    A mutant of rounds alone leaves ``text_decoder`` as it is. Raises UsageError for a mistake that has no such form.
    """
    model = open_folder(source)
    changed: dict[str, bytes] = {}
    for method, entry in sorted(model.receipt["methods"].items()):
        program = model.program(method)
        if name == Fault.NIBBLE_ORDER:
            program = _swapped(program, source, changed)
        elif name not in mutants.ROUND_ONLY or method == ir.K2_ROUND:
            program = mutants.mutate(program, name)
        changed[entry["program"]] = codec.to_bytes(program)
    return publish_changed(source, changed, destination)


def publish_changed(source: Path, changed: Mapping[str, bytes], destination: Path) -> Path:
    """Publishes a copy of an exported folder with other bytes for some of its files, which the receipt then lists."""
    model = open_folder(source)
    receipt: dict[str, Any] = {**model.receipt, "files": {}}
    with Publication(destination) as publication:
        for file in model.receipt["files"]:
            data = changed.get(file) or (source / file).read_bytes()
            publication.write(file, data)
            receipt["files"][file] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        publication.write(MODEL_FILE, dump_json(receipt).encode())
        publication.commit()
    return publication.destination
