"""Reads an exported model folder back: receipts, programs and weights, every byte checked against its hash."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4web.errors import ProgramError, PublishError
from gemma4web.export.destination import MODEL_FILE, SOURCE_FILE
from gemma4web.export.exporter import SCHEMA
from gemma4web.export.quantise import Scales
from gemma4web.files import load_json, sha256_file
from gemma4web.program import codec
from gemma4web.program.architecture import Assistant, Layer, LayerType, RopeSettings, Target
from gemma4web.program.ir import Dtype, Program, ScaleDtype, Span, Tensor

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """A q4 weight as stored: values u8[out, in/2], scales f16 or f32[out, in/group]."""

    values: npt.NDArray[np.uint8]
    scales: Scales


Stored = Array | Packed


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelFolder:
    """A published folder whose receipt has been read and whose files have been checked."""

    path: Path
    receipt: dict[str, Any]

    def program(self, method: str) -> Program:
        """Raises ProgramError when the folder has no such method or the program breaks a contract."""
        methods = self.receipt["methods"]
        if method not in methods:
            raise ProgramError(f"{self.path} has no method {method}, only {', '.join(sorted(methods))}",
                               advice="export with --assistant for k2_round")
        return codec.read(self.path / methods[method]["program"])

    def target(self) -> Target:
        return Target(**_decoder(self.receipt["architecture"]["target"]))

    def assistant(self) -> Assistant | None:
        sizes = self.receipt["architecture"]["assistant"]
        return None if sizes is None else Assistant(**_decoder(sizes))


def _decoder(sizes: dict[str, Any]) -> dict[str, Any]:
    layers = tuple(
        Layer(index=index, type=LayerType(layer["type"]), head_dim=layer["head_dim"],
              kv_heads=layer["kv_heads"], intermediate=layer["intermediate"], donor=layer["donor"],
              values_from_keys=layer["values_from_keys"])
        for index, layer in enumerate(sizes["layers"])
    )
    rope = {LayerType(name): RopeSettings(**settings) for name, settings in sizes["rope"].items()}
    return {**sizes, "layers": layers, "rope": rope}


def open_folder(path: Path) -> ModelFolder:
    """Checks that a folder holds exactly what its receipt lists, byte for byte. Raises PublishError naming the file."""
    if not (path / MODEL_FILE).is_file():
        raise PublishError(f"{path} has no {MODEL_FILE}: it is not a published model",
                           advice="export it with `python -m gemma4web export`")
    receipt = load_json(path / MODEL_FILE, schema=SCHEMA)
    found = {entry.name for entry in path.iterdir()} - {MODEL_FILE}
    for name in sorted(found ^ receipt["files"].keys()):
        state = "is missing" if name not in found else f"is not listed in {MODEL_FILE}"
        raise PublishError(f"{path / name} {state}", advice="export the model again")
    for name, wanted in receipt["files"].items():
        size = (path / name).stat().st_size
        if size != wanted["bytes"] or sha256_file(path / name) != wanted["sha256"]:
            raise PublishError(f"{path / name} differs from its receipt ({size} bytes, wanted {wanted['bytes']})",
                               advice="export the model again")
    if receipt["files"].get(SOURCE_FILE, {}).get("sha256") != receipt["source_sha256"]:
        raise PublishError(f"{path / SOURCE_FILE} is not the source receipt that {MODEL_FILE} names",
                           advice="export the model again")
    return ModelFolder(path=path, receipt=receipt)


def _slice(data: bytes, span: Span, dtype: str) -> Array:
    return np.frombuffer(data, dtype, count=span.bytes // np.dtype(dtype).itemsize, offset=span.begin)


def _stored(tensor: Tensor, values: bytes, span: Span, scales: bytes, scale_span: Span | None) -> Stored:
    """The rows of a weight that one place holds."""
    if tensor.dtype is not Dtype.Q4:
        return _slice(values, span, "<f4" if tensor.dtype is Dtype.F32 else "<i4").reshape(-1, *tensor.dims[1:])
    if scale_span is None:
        raise ProgramError(f"{tensor.name} is q4 and has no scales")
    scale_dtype = "<f2" if tensor.scale_dtype is ScaleDtype.F16 else "<f4"
    return Packed(values=_slice(values, span, "u1").reshape(-1, tensor.dims[1] // 2),
                  scales=_slice(scales, scale_span, scale_dtype).reshape(-1, tensor.dims[1] // tensor.group))


def _joined(parts: list[Stored]) -> Stored:
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if not isinstance(part, Packed)]
    if arrays:
        return np.concatenate(arrays)
    packed = [part for part in parts if isinstance(part, Packed)]
    return Packed(values=np.concatenate([part.values for part in packed]),
                  scales=np.concatenate([part.scales for part in packed]))


def load_weights(program: Program, folder: Path) -> dict[str, Stored]:
    """Weights by tensor name, cut out of the shards at the program's spans. Raises ProgramError on a wrong shard."""
    data: list[bytes] = []
    for shard in program.shards:
        try:
            data.append((folder / shard.file).read_bytes())
        except OSError as error:
            raise ProgramError(f"{folder / shard.file} cannot be read: {error.strerror}") from None
        if len(data[-1]) != shard.bytes or hashlib.sha256(data[-1]).hexdigest() != shard.sha256:
            raise ProgramError(f"{folder / shard.file} is not the shard that the program was made with",
                               advice="export the model again")
    ranges: dict[int, list[Stored]] = {}
    for weight in program.weights:
        scales = weight.scales
        ranges.setdefault(weight.tensor, []).append(_stored(
            program.graph.tensors[weight.tensor], data[weight.values.shard], weight.values,
            data[scales.shard] if scales else b"", scales))
    return {program.graph.tensors[index].name: _joined(parts) for index, parts in ranges.items()}
