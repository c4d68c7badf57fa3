"""Tensors of a model by name, whatever file they lie in; and HF safetensors checkpoints, one file or shards.

Safetensors: u64 length of a JSON header, the header {name: {dtype, shape, data_offsets}}, then the data without holes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from gemma4web.errors import CheckpointError
from gemma4web.export import instead, json_file
from gemma4web.export.gguf_header import BROKEN
from gemma4web.export.quantise import Scales, multiply_out, quantise, read_q4_0, repack_q4_0
from gemma4web.export.reading import unreadable
from gemma4web.program.ir import ScaleDtype

_INDEX: Final = "model.safetensors.index.json"
_MAX_BYTES: Final = 1 << 53
_MAX_RANK: Final = 8
_MAX_NAME: Final = 256
_MAX_FILE_NAME: Final = 200
_ITEM_BYTES: Final = {
    "F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2, "F8_E4M3": 1,
    "F8_E5M2": 1, "I8": 1, "U8": 1, "BOOL": 1,
}
_FLOATS: Final = ("F32", "F16", "BF16")
_DEQUANTISED: Final = {"Q6_K": GGMLQuantizationType.Q6_K, "Q8_0": GGMLQuantizationType.Q8_0}
_DEQUANTISED_BYTES: Final = 1 << 17
"""Of input at a time: the decoder's many temporaries stay in the processor's cache."""
_INTEGERS: Final[dict[str, npt.DTypeLike]] = {"I64": np.int64, "I32": np.int32}
_COMPARED_BYTES: Final = 1 << 22
Q4_0: Final = "Q4_0"
"""The dtype of GGUF matrices that are packed already."""
BLOCKS: Final = (Q4_0, *_DEQUANTISED)
"""Dtypes of GGUF matrices whose rows are made of blocks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """Where one tensor lies: absolute byte range ``begin .. end`` of ``file``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    begin: int
    end: int


def _shape(path: Path, name: str, raw: Any) -> tuple[int, ...]:
    if not isinstance(raw, list) or len(raw) > _MAX_RANK or any(type(n) is not int or not 0 <= n <= _MAX_BYTES for n in raw):
        raise CheckpointError(f"{path}: {name} has a malformed shape", advice=BROKEN)
    return tuple(raw)


def _entry(path: Path, data_begin: int, name: str, raw: Any) -> Entry:
    if len(name) > _MAX_NAME or not name.isprintable():
        raise CheckpointError(f"{path}: {name[:_MAX_NAME]!r:.100} is no name of a tensor", advice=BROKEN)
    if not isinstance(raw, dict) or set(raw) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError(f"{path}: entry of {name} is malformed", advice=BROKEN)
    dtype, shape, offsets = raw["dtype"], _shape(path, name, raw["shape"]), raw["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise CheckpointError(f"{path}: {name} has the unknown dtype {str(dtype)[:40]!r}",
                              advice="name a checkpoint in BF16, F16 or F32, or fetch this one again")
    if not isinstance(offsets, list) or len(offsets) != 2 or any(
            type(n) is not int or not 0 <= n <= _MAX_BYTES for n in offsets):
        raise CheckpointError(f"{path}: {name} has malformed offsets", advice=BROKEN)
    wanted = math.prod(shape) * _ITEM_BYTES[dtype]
    if offsets[1] - offsets[0] != wanted:
        raise CheckpointError(f"{path}: {name} {dtype}{list(shape)} needs {wanted} bytes, its offsets hold "
                              f"{offsets[1] - offsets[0]}", advice=BROKEN)
    return Entry(name=name, dtype=dtype, shape=shape, file=path, begin=data_begin + offsets[0],
                 end=data_begin + offsets[1])


def read_header(path: Path) -> dict[str, Entry]:
    """Entries of one safetensors file; every byte of the file must be accounted for. Raises CheckpointError."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            start = stream.read(8)
            length = int.from_bytes(start, "little")
            if size < 8 or length > size - 8:
                raise CheckpointError(f"{path}: {size} bytes are too few for a header of {length}",
                                      advice=instead.of_start(start + stream.read(instead.FILE_START_BYTES)) or BROKEN)
            if length > json_file.MAX_BYTES:
                raise CheckpointError(f"{path}: the header has {length} bytes, wanted at most {json_file.MAX_BYTES}",
                                      advice=BROKEN)
            raw = stream.read(length)
        header = json_file.parse(raw)
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}", advice=BROKEN) from None
    header.pop("__metadata__", None)
    entries = {name: _entry(path, 8 + length, name, value) for name, value in header.items()}
    place = 8 + length
    for entry in sorted(entries.values(), key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != place:
            raise CheckpointError(f"{path}: {entry.name} begins at byte {entry.begin}, wanted {place}", advice=BROKEN)
        place = entry.end
    if place != size:
        raise CheckpointError(f"{path}: {size} bytes, the header describes {place}", advice=BROKEN)
    return entries


def checkpoint_files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint folder: ``model.safetensors``, or what its index names."""
    single, index = folder / "model.safetensors", folder / _INDEX
    if not folder.is_dir():
        what = "no folder, and no regular file either" if folder.exists() else "neither a folder nor a file"
        raise CheckpointError(f"{folder} is {what}", advice=instead.WANTED)
    if not index.is_file():
        if not single.is_file():
            found = [path.name for path in (single, index) if path.exists()]
            raise CheckpointError(f"{folder} holds {found[0]}, which is no regular file" if found else
                                  f"{folder} holds neither model.safetensors nor model.safetensors.index.json",
                                  advice=instead.WANTED if found else instead.of_folder(folder))
        return [single]
    return [folder / name for name in sorted(set(_weight_map(index).values()))]


def _weight_map(index: Path) -> dict[str, str]:
    """Which file holds a tensor, as the index has it: names of files beside it."""
    table = json_file.load(index, what="safetensors index", advice=BROKEN).get("weight_map")
    if not isinstance(table, dict):
        raise CheckpointError(f"{index} is no safetensors index: it has no weight_map", advice=BROKEN)
    for name in {name if isinstance(name, str) else None for name in table.values()}:
        if name is None or not name.endswith(".safetensors") or len(name) > _MAX_FILE_NAME or Path(name).name != name or not name.isprintable():
            raise CheckpointError(f"{index} names {str(name)[:_MAX_NAME]!r:.100}, which is no file name", advice=BROKEN)
        if not (index.parent / name).is_file():
            raise CheckpointError(f"{index} names {name:.100}, which is missing", advice="fetch the missing shard")
    return table


class Tensors:
    """Tensors by name. Data is read on demand; close it when done. ``path`` is what the user named."""

    mismatch: ClassVar[str]
    """Advice for a tensor that is missing or of another shape than the sizes say."""

    def __init__(self, path: Path, files: list[Path]) -> None:
        self.path = path
        self.files = files
        self._entries: dict[str, Entry] = {}
        self._open: dict[Path, BinaryIO] = {}

    def spelled(self, name: str) -> str:
        """A checkpoint's tensor name as these files spell it."""
        return name

    def close(self) -> None:
        for stream in self._open.values():
            stream.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return self.spelled(name) in self._entries

    def names(self) -> Iterator[str]:
        return iter(self._entries)

    @property
    def packed(self) -> bool:
        """Whether some matrix is made of blocks of few bits already."""
        return any(entry.dtype in BLOCKS for entry in self._entries.values())

    def find(self, name: str) -> Entry:
        """The tensor's place. Raises CheckpointError when it is missing."""
        if name not in self:
            raise CheckpointError(f"{self.path}: tensor {self.spelled(name)} is missing", advice=self.mismatch)
        return self._entries[self.spelled(name)]

    def entry(self, name: str, shape: tuple[int, ...]) -> Entry:
        """The tensor's place. Raises CheckpointError when it is missing or of another shape."""
        entry = self.find(name)
        if math.prod(entry.shape) != math.prod(shape) or (len(shape) > 1 and entry.shape != shape):
            raise CheckpointError(f"{self.path}: tensor {entry.name} has shape {list(entry.shape)}, wanted "
                                  f"{list(shape)}", advice=self.mismatch)
        return entry

    def readable(self, name: str, shape: tuple[int, ...], *, integers: bool = False) -> Entry:
        """The tensor's place, if its dtype can be read as floats, or as integers. Raises CheckpointError."""
        entry = self.entry(name, shape)
        dtypes = tuple(_INTEGERS) if integers else (*_FLOATS, *BLOCKS) if len(shape) > 1 else _FLOATS
        if entry.dtype not in dtypes:
            raise CheckpointError(f"{entry.file}: {entry.name} is {entry.dtype}, wanted one of {', '.join(dtypes)}",
                                  advice=BROKEN if integers else "name a checkpoint in BF16, F16 or F32, or a GGUF file in Q4_0")
        return entry

    def check_tied(self, head: str, table: str) -> None:
        """Refuses an LM head that is not the table of embeddings over again, byte for byte; most checkpoints have none.

        Raises CheckpointError.
        """
        if head not in self:
            return
        own, shared = self.find(head), self.find(table)
        same = (own.dtype, own.shape) == (shared.dtype, shared.shape)
        for offset in range(0, own.end - own.begin if same else 0, _COMPARED_BYTES):
            ends = (min(entry.begin + offset + _COMPARED_BYTES, entry.end) for entry in (own, shared))
            mine, theirs = (self._bytes(entry, entry.begin + offset, end)
                            for entry, end in zip((own, shared), ends, strict=True))
            same = same and np.array_equal(mine, theirs)
        if not same:
            raise CheckpointError(f"{self.path}: {own.name} differs from {shared.name}",
                                  advice="an untied LM head is not supported")

    def _bytes(self, entry: Entry, begin: int, end: int) -> npt.NDArray[np.uint8]:
        try:
            if entry.file not in self._open:
                self._open[entry.file] = entry.file.open("rb")
            stream = self._open[entry.file]
            stream.seek(begin)
            data = stream.read(end - begin)
        except OSError as error:
            raise unreadable(entry.file, error) from None
        if len(data) != end - begin:
            raise CheckpointError(f"{entry.file} ended at {entry.name}: it became shorter meanwhile", advice=BROKEN)
        return np.frombuffer(data, np.uint8)

    def _rows(self, entry: Entry, shape: tuple[int, ...], rows: slice) -> npt.NDArray[np.uint8]:
        """The bytes of some rows, u8[rows, bytes of a row]."""
        first, last, _ = rows.indices(shape[0])
        stride = (entry.end - entry.begin) // shape[0]
        raw = self._bytes(entry, entry.begin + first * stride, entry.begin + last * stride)
        return raw.reshape(last - first, stride)

    def _finite(self, entry: Entry, values: npt.NDArray[np.floating[Any]], first: int) -> None:
        if np.isfinite(values).all():
            return
        bad = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        raise CheckpointError(f"{entry.file}: {entry.name} holds a NaN or infinity (first in row "
                              f"{first + int(np.argmax(bad))})", advice=BROKEN)

    def _dequantised(self, entry: Entry, raw: npt.NDArray[np.uint8], first: int) -> npt.NDArray[np.float32]:
        step = max(1, _DEQUANTISED_BYTES // max(1, raw.shape[1]))
        values = np.empty((len(raw), entry.shape[1]), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for row in range(0, len(raw), step):
                values[row : row + step] = quants.dequantize(raw[row : row + step], _DEQUANTISED[entry.dtype])
        self._finite(entry, values, first)
        return values

    def float_rows(self, name: str, shape: tuple[int, ...], rows: slice) -> npt.NDArray[np.float32]:
        """Rows of a float tensor as f32; bf16, f16 and Q4_0 widen exactly, Q6_K and Q8_0 as the gguf package does it.

        NaN and infinity are refused.
        """
        entry = self.readable(name, shape)
        first, raw = rows.indices(shape[0])[0], self._rows(entry, shape, rows)
        if entry.dtype == Q4_0:
            codes, scales = read_q4_0(raw)
            self._finite(entry, scales, first)
            return multiply_out(codes, scales)
        if entry.dtype in _DEQUANTISED:
            return self._dequantised(entry, raw, first)
        if entry.dtype == "BF16":
            bits: npt.NDArray[np.uint32] = np.left_shift(raw.view("<u2"), np.uint32(16), dtype=np.uint32)
            values = bits.view(np.float32)
        else:
            values = raw.view("<f4" if entry.dtype == "F32" else "<f2").astype(np.float32)
        self._finite(entry, values, first)
        return values.reshape(len(raw), *shape[1:])

    def q4_rows(self, name: str, shape: tuple[int, int], rows: slice, *, label: str, group: int, scale_dtype: ScaleDtype,
                ) -> tuple[npt.NDArray[np.uint8], Scales]:
        """Rows of a matrix in q4 form, values u8[rows, in/2] and scales [rows, in/group].

        Q4_0, which has groups of 32, keeps its codes and the values of its scales; all else is quantised. Errors of that
        call the tensor ``label``.
        """
        entry = self.entry(name, shape)
        if entry.dtype != Q4_0:
            return quantise(self.float_rows(name, shape, rows), name=f"{entry.file}: {label}", group=group,
                            scale_dtype=scale_dtype)
        values, scales = repack_q4_0(self._rows(entry, shape, rows))
        self._finite(entry, scales, rows.indices(shape[0])[0])
        return values, scales if scale_dtype is ScaleDtype.F16 else scales.astype(np.float32)

    def integers(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.int32]:
        """An integer tensor as i32. Raises CheckpointError when a value does not fit."""
        entry = self.readable(name, (math.prod(shape),), integers=True)
        values = self._bytes(entry, entry.begin, entry.end).view(_INTEGERS[entry.dtype])
        narrow = values.astype(np.int32)
        if not np.array_equal(narrow, values):
            raise CheckpointError(f"{entry.file}: {entry.name} holds values beyond 32 bits", advice=BROKEN)
        return narrow.reshape(shape)


class Checkpoint(Tensors):
    """The tensors of a checkpoint folder."""

    mismatch = "check that config.json belongs to these weights"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, checkpoint_files(folder))
        index = folder / _INDEX
        listed = _weight_map(index) if index.is_file() else {}
        for path in self.files:
            for name, entry in read_header(path).items():
                if name in self._entries:
                    raise CheckpointError(f"{path}: {name} stands in {self._entries[name].file.name} too",
                                          advice="the shards are of different downloads: fetch all of them again")
                self._entries[name] = entry
        for name, file in listed.items():
            if name not in self._entries or self._entries[name].file.name != file:
                raise CheckpointError(f"{index} says that {file} holds {name!r:.100}, which it does not",
                                      advice="the index and the shards are of different downloads: fetch all of them again")
