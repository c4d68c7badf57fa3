"""Weight files from parts that need not be a model: what a fuzzer alters field by field and tensor by tensor.

The containers are sound, so that readers get as far as the meaning of what stands in them.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fixtures.story.training import pack
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

ALIGNMENT: Final = 32
SAFETENSORS_BYTES: Final = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "U8": 1, "BOOL": 1}
GGUF_TYPES: Final = ("F32", "F16", "BF16", "F64", "I8", "I32", "I64", "Q4_0", "Q4_1", "Q6_K", "Q8_0", "Q4_K")
_INTEGERS: Final = ((4, "<I"), (5, "<i"), (10, "<Q"), (11, "<q"))
"""Number of a type of metadata values, and how it is packed."""


@dataclass(frozen=True)
class Part:
    """One tensor, shape as [out, in] in either format."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def fitting(data: bytes, size: int) -> bytes:
    """The bytes, repeated or cut to a length."""
    return (data or b"\0") * (size // max(1, len(data))) + (data or b"\0")[: size % max(1, len(data))]


def safetensors_size(dtype: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * SAFETENSORS_BYTES[dtype]


def gguf_size(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of whole blocks; a row that is no multiple of them is rounded down, as no reader may take it."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    return math.prod(shape) // block * size


def read_safetensors(data: bytes) -> dict[str, Part]:
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {name: Part(entry["dtype"], tuple(entry["shape"]), data[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
            for name, entry in header.items()}


def write_safetensors(parts: Mapping[str, Part]) -> bytes:
    header, place = {}, 0
    for name, part in parts.items():
        header[name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [place, place + len(part.data)]}
        place += len(part.data)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(part.data for part in parts.values())


def gguf_parts(file: pack.File) -> tuple[dict[str, Any], dict[str, Part]]:
    """Metadata and tensors of a file."""
    parts = {}
    for name, (values, type_) in file.tensors.items():
        block, size = GGML_QUANT_SIZES[type_]
        shape = values.shape if block == 1 else (*values.shape[:-1], values.shape[-1] // size * block)
        parts[name] = Part(type_.name, shape, values.tobytes())
    return {"general.architecture": file.architecture, **file.metadata}, parts


def _text(text: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _scalar(value: Any, like: int | None = None) -> tuple[int, bytes]:
    """Type number and bytes; of type ``like``, if that can hold it."""
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    if isinstance(value, float):
        return (6, struct.pack("<f", value)) if abs(value) < 1e38 else (12, struct.pack("<d", value))
    if isinstance(value, str):
        return 8, _text(value)
    for number, form in sorted(_INTEGERS, key=lambda pair: pair[0] != like):
        try:
            return number, struct.pack(form, value)
        except (struct.error, OverflowError):
            continue
    return 12, struct.pack("<d", float(value))


def _value(value: Any) -> bytes:
    if not isinstance(value, list):
        number, data = _scalar(value)
        return struct.pack("<I", number) + data
    kinds = [_scalar(part) for part in value]
    number = kinds[0][0] if kinds else 4
    same = [data for kind, data in (_scalar(part, number) for part in value) if kind == number]
    return struct.pack("<IIQ", 9, number, len(same)) + b"".join(same)


def write_gguf(keys: Mapping[str, Any], parts: Mapping[str, Part]) -> bytes:
    made = [b"GGUF", struct.pack("<IQQ", 3, len(parts), len(keys))]
    made += [_text(key) + _value(value) for key, value in keys.items()]
    offset = 0
    for name, part in parts.items():
        made.append(_text(name) + struct.pack(f"<I{len(part.shape)}QIQ", len(part.shape), *reversed(part.shape),
                                              GGMLQuantizationType[part.dtype], offset))
        offset += len(part.data) + -len(part.data) % ALIGNMENT
    head = b"".join(made)
    return head + bytes(-len(head) % ALIGNMENT) + b"".join(part.data + bytes(-len(part.data) % ALIGNMENT) for part in parts.values())
