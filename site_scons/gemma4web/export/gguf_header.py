"""The header of a GGUF file: metadata and the list of tensors, read once, front to back, within fixed bounds.

The gguf package has a reader, which makes three arrays of every element of every list: 800 MB for Gemma's tokenizer, and
what a crafted file likes. Here a count is believed only as far as the file has bytes for it and a limit allows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS

from gemma4web.errors import CheckpointError
from gemma4web.export import instead
from gemma4web.export.reading import unreadable

MAGIC: Final = b"GGUF"
BROKEN: Final = "the file is damaged or was not downloaded completely: fetch it again"
_SCALARS: Final = {
    GGUFValueType.UINT8: "<u1", GGUFValueType.INT8: "<i1", GGUFValueType.UINT16: "<u2", GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4", GGUFValueType.FLOAT32: "<f4", GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8", GGUFValueType.INT64: "<i8", GGUFValueType.FLOAT64: "<f8",
}
_MAX_KEYS: Final = 4096
_MAX_TENSORS: Final = 16384
_MAX_NAME_BYTES: Final = 256
_MAX_STRING_BYTES: Final = 1 << 20
_MAX_ELEMENTS: Final = 1 << 20
"""Of all lists of strings, and of all lists of numbers; a Gemma tokenizer has 777 050 and 524 288."""
_MAX_BYTES: Final = 24 << 20
"""Of the whole header; a Gemma tokenizer takes 16 million."""
_MAX_DIMS: Final = 4
_MAX_ALIGNMENT: Final = 1 << 20
_ALIGNMENT_KEY: Final = "general.alignment"
_DEFAULT_ALIGNMENT: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """A tensor as the list has it: ``dims`` with the input dimension first, absolute byte range ``begin .. end``."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """``data_begin``: where the first tensor lies."""

    metadata: dict[str, Any]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_begin: int
    file_bytes: int


class _Reader:
    """Little-endian values of a file, in order. Raises CheckpointError."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self._path, self._stream, self.size = path, stream, size
        self.place = 0
        self._elements = {True: 0, False: 0}

    def fail(self, message: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {message}", advice=BROKEN)

    def take(self, count: int) -> bytes:
        end = self.place + count
        if end > self.size:
            raise CheckpointError(f"{self._path} is no complete GGUF file: it has {self.size} bytes, wanted {end}",
                                  advice=BROKEN)
        if end > _MAX_BYTES:
            raise self.fail(f"its header reaches beyond byte {_MAX_BYTES}")
        data = self._stream.read(count)
        if len(data) != count:
            raise CheckpointError(f"{self._path} is no complete GGUF file: it became shorter meanwhile", advice=BROKEN)
        self.place = end
        return data

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def u64(self) -> int:
        return int.from_bytes(self.take(8), "little")

    def count(self, what: str, most: int) -> int:
        found = self.u64()
        if found > most:
            raise self.fail(f"it has {found} {what}, wanted at most {most}")
        return found

    def string(self, most: int = _MAX_STRING_BYTES) -> str:
        length = int.from_bytes(self.take(8), "little")
        if length > most:
            raise self.fail(f"a string at byte {self.place - 8} has {length} bytes, wanted at most {most}")
        try:
            return self.take(length).decode()
        except UnicodeDecodeError as error:
            raise self.fail(f"a string at byte {self.place - length} is no UTF-8: {error.reason}") from None

    def name(self) -> str:
        """A string that may be shown."""
        found = self.string(_MAX_NAME_BYTES)
        if not found.isprintable():
            raise self.fail(f"{found!r:.100} is no name of a key or tensor")
        return found

    def _numbers(self, kind: GGUFValueType, count: int) -> list[Any]:
        dtype = np.dtype(_SCALARS[kind])
        raw = self.take(count * dtype.itemsize)
        if kind is GGUFValueType.BOOL and raw.strip(b"\0\1"):
            raise self.fail(f"a flag before byte {self.place} is neither 0 nor 1")
        return list(np.frombuffer(raw, dtype).tolist())

    def _kind(self) -> GGUFValueType:
        number = self.u32()
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self.fail(f"a value at byte {self.place - 4} has the unknown type {number}") from None

    def value(self) -> Any:
        """A scalar, a string or a flat list of either."""
        kind = self._kind()
        if kind is GGUFValueType.STRING:
            return self.string()
        if kind is not GGUFValueType.ARRAY:
            return self._numbers(kind, 1)[0]
        kind = self._kind()
        if kind is GGUFValueType.ARRAY:
            raise self.fail(f"a list at byte {self.place} holds lists, which no Gemma 4 file does")
        strings = kind is GGUFValueType.STRING
        count = self.count("elements in a list", min(_MAX_ELEMENTS - self._elements[strings], self.size))
        self._elements[strings] += count
        return [self.string() for _ in range(count)] if strings else self._numbers(kind, count)


def _tensor(reader: _Reader) -> tuple[str, str, tuple[int, ...], int, int]:
    """Name, dtype, dims, offset from the first tensor, bytes."""
    name = reader.name()
    rank = reader.u32()
    if not 1 <= rank <= _MAX_DIMS:
        raise reader.fail(f"tensor {name} has {rank} dimensions, wanted 1 to {_MAX_DIMS}")
    dims = tuple(reader.u64() for _ in range(rank))
    number, offset = reader.u32(), reader.u64()
    try:
        type_ = GGMLQuantizationType(number)
        block, block_bytes = GGML_QUANT_SIZES[type_]
    except (ValueError, KeyError):
        raise reader.fail(f"tensor {name} has the unknown type {number}") from None
    if 0 in dims or dims[0] % block:
        raise reader.fail(f"tensor {name} {type_.name} has dimensions {list(dims)}, wanted the first a multiple of {block}")
    return name, type_.name, dims, offset, math.prod(dims) // block * block_bytes


def _read(path: Path, stream: BinaryIO, size: int) -> Header:
    reader = _Reader(path, stream, size)
    if size >= len(MAGIC) and (magic := reader.take(len(MAGIC))) != MAGIC:
        stream.seek(0)
        raise CheckpointError(f"{path} begins with {magic!r}, wanted {MAGIC!r}",
                              advice=instead.of_file(path, stream.read(instead.FILE_START_BYTES)))
    version = reader.u32()
    if version and not version & 0xFFFF:
        raise CheckpointError(f"{path} is a big-endian GGUF file, wanted a little-endian one",
                              advice="convert the model again, without --bigendian")
    if version not in READER_SUPPORTED_VERSIONS:
        raise CheckpointError(f"{path} is a GGUF file of version {version}, wanted one of "
                              f"{', '.join(map(str, READER_SUPPORTED_VERSIONS))}",
                              advice="convert the model again with llama.cpp's own converter")
    tensors, keys = reader.count("tensors", _MAX_TENSORS), reader.count("metadata keys", _MAX_KEYS)
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.name()
        if key in metadata:
            raise reader.fail(f"metadata key {key} stands twice")
        metadata[key] = reader.value()
    listed = [_tensor(reader) for _ in range(tensors)]
    alignment = metadata.get(_ALIGNMENT_KEY, _DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise reader.fail(f"{_ALIGNMENT_KEY} is {alignment!r:.80}, wanted a power of two up to {_MAX_ALIGNMENT}")
    begin = reader.place + -reader.place % alignment
    infos = {}
    for name, dtype, dims, offset, count in listed:
        if name in infos:
            raise reader.fail(f"tensor {name} stands twice")
        if begin + offset + count > size:
            raise CheckpointError(f"{path} is no complete GGUF file: it has {size} bytes, tensor {name} ends at "
                                  f"{begin + offset + count}", advice=BROKEN)
        infos[name] = TensorInfo(name=name, dtype=dtype, dims=dims, begin=begin + offset, end=begin + offset + count)
    return Header(metadata=metadata, tensors=tuple(infos.values()), alignment=alignment, data_begin=begin, file_bytes=size)


def read_header(path: Path) -> Header:
    """Reads and checks a file's header; every tensor lies inside the file. Raises CheckpointError."""
    if path.exists() and not path.is_file():
        raise CheckpointError(f"{path} is no regular file", advice=instead.WANTED)
    try:
        with path.open("rb") as stream:
            return _read(path, stream, path.stat().st_size)
    except OSError as error:
        raise unreadable(path, error) from None
