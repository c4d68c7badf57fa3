"""What TopK, Scatter and a 4-bit linear of three rows must give: slow, in plain Python, sharing nothing with the oracle.

Inputs of the fixed cases come from SHAKE-256, so that they are the same on every machine and with every numpy. The SHA-256
of what they give is committed in ``authority_digests.json``; ``python tests/kernels/authorities.py`` prints it anew.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.errors import KernelError
from gemma4web.files import dump_json, load_json

Array = npt.NDArray[Any]

DIGESTS: Final = Path(__file__).with_name("authority_digests.json")


def _need(what: str, array: Array, dtype: npt.DTypeLike, shape: tuple[int, ...] | None = None) -> None:
    if array.dtype != dtype:
        raise KernelError(f"{what} is {array.dtype}, wanted {np.dtype(dtype)}")
    if array.ndim != 2 or array.shape[0] != 1 or array.shape[1] < 1:
        raise KernelError(f"{what} is {list(array.shape)}, wanted [1, n]")
    if shape is not None and array.shape != shape:
        raise KernelError(f"{what} is {list(array.shape)}, wanted {list(shape)}")


def _place(bits: int) -> tuple[int, int]:
    """Sorts ascending as the floats sort descending: NaN, then the numbers, both zeros as one."""
    if bits & 0x7FFFFFFF > 0x7F800000:
        return 0, 0
    size = bits & 0x7FFFFFFF
    return 1, size if bits >> 31 else -size


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """f32[1, n] -> the k largest f32[1, k] with their bits, and their indices i32[1, k]."""
    _need("top-k x", x, np.float32)
    if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= x.shape[1]:
        raise KernelError(f"top-k k is {k!r}, wanted a whole number in 1..{x.shape[1]}")
    bits = [int(word) for word in x.view(np.uint32)[0]]
    best = sorted(range(len(bits)), key=lambda i: (*_place(bits[i]), i))[:k]
    return (np.array([[bits[i] for i in best]], np.uint32).view(np.float32), np.array([best], np.int32))


def scatter(template: Array, index: Array, source: Array) -> Array:
    """f32[1, V], i32[1, n], f32[1, n] -> f32[1, V]: ascending, the last write wins, out of range is dropped."""
    _need("scatter template", template, np.float32)
    _need("scatter index", index, np.int32)
    _need("scatter source", source, np.float32, index.shape)
    last = dict(zip(index[0].tolist(), source.view(np.uint32)[0].tolist(), strict=True))
    bits = template.view(np.uint32)[0].tolist()
    return np.array([[last.get(i, bits[i]) for i in range(len(bits))]], np.uint32).view(np.float32)


def scatter_unique(template: Array, index: Array, source: Array) -> Array:
    """The same of indices of which no two in range are equal."""
    _need("scatter index", index, np.int32)
    inside = [i for i in index[0].tolist() if 0 <= i < template.shape[-1]]
    if len(set(inside)) != len(inside):
        raise KernelError("scatter index names a place twice: a unique scatter may not be certified for it")
    return scatter(template, index, source)


def linear_q4_m3(x: Array, values: Array, scales: Array, group: int) -> Array:
    """f32[3, k], u8[n, k/2], f16 or f32 [n, k/group] -> float64[3, n] = sum of x * (code - 8) * scale, rounded once.

    A product of two f32 and a 4-bit code has at most 52 bits, so every term is exact.
    """
    if x.dtype != np.float32 or x.ndim != 2 or x.shape[0] != 3:
        raise KernelError(f"linear x is {x.dtype} {list(x.shape)}, wanted float32 [3, k]")
    k = x.shape[1]
    if isinstance(group, bool) or group not in (32, 64, 128) or k < group or k % group:
        raise KernelError(f"linear k is {k} with groups of {group!r}, wanted a multiple of 32, 64 or 128")
    if values.dtype != np.uint8 or values.ndim != 2 or values.shape[0] < 1 or values.shape[1] != k // 2:
        raise KernelError(f"linear values are {values.dtype} {list(values.shape)}, wanted uint8 [n, {k // 2}]")
    if scales.dtype not in (np.float16, np.float32) or scales.shape != (values.shape[0], k // group):
        raise KernelError(f"linear scales are {scales.dtype} {list(scales.shape)}, wanted float16 or float32 "
                          f"[{values.shape[0]}, {k // group}]")
    rows, factors = x.astype(float).tolist(), scales.astype(float).tolist()
    codes = [[code - 8 for byte in row for code in (byte & 15, byte >> 4)] for row in values.tolist()]
    return np.array([[math.fsum(row[i] * codes[o][i] * factors[o][i // group] for i in range(k))
                      for o in range(len(codes))] for row in rows])


def _words(label: str, count: int) -> npt.NDArray[np.uint32]:
    return np.frombuffer(hashlib.shake_256(label.encode()).digest(4 * count), "<u4").astype(np.uint32)


def _floats(label: str, count: int) -> Array:
    """Finite floats of both signs between 2^-16 and 2^16."""
    words = _words(label, count)
    return ((words & 0x807FFFFF) | ((111 + (words >> 23) % 32) << 23)).astype(np.uint32).view(np.float32).reshape(1, -1)


_ODD: Final = np.array([0x7FC00000, 0xFFC00001, 0x7F800001, 0x7F800000, 0xFF800000, 0, 0x80000000, 1, 0x80000001],
                       np.uint32)
"""NaN of either sign, infinities, zeros, subnormals."""


def scores(kind: str) -> Array:
    """The fixed rows f32[1, 2048] of the top-k cases."""
    x = _floats(f"top_k {kind}", 2048)
    if kind == "ties":
        return (_words("top_k ties", 2048) % 5).astype(np.float32).reshape(1, -1)
    if kind == "odd":
        where = _words("top_k odd places", 2048) % 3 == 0
        x.view(np.uint32)[0, where] = _ODD[_words("top_k odd", 2048)[where] % _ODD.size]
    return x


def writes(kind: str) -> tuple[Array, Array, Array]:
    """Template f32[1, 5003], 1009 indices and sources of the scatter cases."""
    template, source = _floats(f"scatter {kind} template", 5003), _floats(f"scatter {kind} source", 1009)
    if kind == "unique":
        index = np.argsort(_words("scatter unique", 5003), kind="stable")[:1009].astype(np.int32)
    else:
        index = (_words(f"scatter {kind}", 1009) % (700 if kind == "duplicates" else 9000)).astype(np.int32) - 50
        index[[3, 500]] = -2**31, 2**31 - 1
    return template, index.reshape(1, -1), source


def product(kind: str) -> tuple[Array, Array, Array, int]:
    """x f32[3, 384], values u8[37, 192], scales and group of the linear cases; activations of very different sizes."""
    group = {"f16": 32, "f32": 64, "wide": 128}[kind]
    x = _floats(f"linear {kind}", 3 * 384).reshape(3, 384)
    values = _words(f"linear {kind} values", 37 * 48).view(np.uint8).reshape(37, 192)
    codes = _words(f"linear {kind} scales", 37 * 384 // group).reshape(37, 384 // group)
    scales = ((codes % 2039).astype(np.float32) - 1019) / 4096
    return x, values, scales.astype(np.float16 if kind == "f16" else np.float32), group


def _digest(arrays: Iterable[Array]) -> str:
    return hashlib.sha256(b"".join(array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays)).hexdigest()


FIXED: Final[dict[str, Callable[[], tuple[Array, ...]]]] = {
    **{f"top_k {kind} {k}": (lambda kind=kind, k=k: top_k(scores(kind), k))
       for kind in ("random", "ties", "odd") for k in (1, 32, 2048)},
    **{f"scatter {kind}": (lambda kind=kind: (scatter(*writes(kind)),))
       for kind in ("duplicates", "range", "unique")},
    **{f"linear_q4_m3 {kind}": (lambda kind=kind: (linear_q4_m3(*product(kind)),)) for kind in ("f16", "f32", "wide")},
    "scatter_unique unique": lambda: (scatter_unique(*writes("unique")),),
}
"""What the digests are of, by name."""


def digests() -> dict[str, str]:
    return {name: _digest(make()) for name, make in FIXED.items()}


def check_digests(path: Path = DIGESTS) -> None:
    """Raises KernelError when the committed digests are missing, incomplete or others than those of this code."""
    if not path.is_file():
        raise KernelError(f"{path} does not exist: the authorities are not pinned")
    wanted, found = load_json(path, schema=1)["sha256"], digests()
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise KernelError(f"{path}: {', '.join(wrong)}: not what the authority gives")


if __name__ == "__main__":
    print(dump_json({"schema": 1, "sha256": digests()}), end="")
