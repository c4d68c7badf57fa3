"""Reads what a set-up needs to know of an ELF file: its interpreter and the libraries that it asks for."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PT_LOAD: Final = 1
_PT_DYNAMIC: Final = 2
_PT_INTERP: Final = 3
_DT_NEEDED: Final = 1
_DT_STRTAB: Final = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ElfFile:
    """``interpreter`` is None for a library or a static program; ``dynamic`` is False for an object or a static program."""

    interpreter: str | None
    dynamic: bool
    needed: tuple[str, ...]


def is_elf(path: Path) -> bool:
    try:
        with path.open("rb") as stream:
            return stream.read(4) == b"\x7fELF"
    except OSError:
        return False


def read_elf(path: Path) -> ElfFile | None:
    """Parses a 64-bit little-endian ELF file (System V ABI, gABI chapters 4 and 5); None for anything else."""
    data = path.read_bytes()
    if data[:4] != b"\x7fELF" or data[4:6] != b"\x02\x01":
        return None
    (offset,) = struct.unpack_from("<Q", data, 32)
    entry_bytes, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + index * entry_bytes) for index in range(count)]
    loads = [(header[3], header[2], header[5]) for header in headers if header[0] == _PT_LOAD]
    interpreter: str | None = None
    needed: list[int] = []
    names = 0
    dynamic = False
    for kind, _, start, _, _, size, _, _ in headers:
        if kind == _PT_INTERP:
            interpreter = data[start:start + size].split(b"\0", 1)[0].decode()
        elif kind == _PT_DYNAMIC:
            dynamic = True
            for tag, value in struct.iter_unpack("<QQ", data[start:start + size - size % 16]):
                if tag == _DT_NEEDED:
                    needed.append(value)
                elif tag == _DT_STRTAB:
                    names = next((value - address + base for address, base, length in loads
                                  if address <= value < address + length), 0)
    return ElfFile(
        interpreter=interpreter, dynamic=dynamic,
        needed=tuple(data[names + at:data.index(b"\0", names + at)].decode() for at in needed),
    )
