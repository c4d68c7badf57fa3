"""What is measured: one row an operation at a shape of Gemma 4 E2B."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gemma4web.errors import UsageError

LINEAR_SHAPES: Final = ((1536, 6144), (6144, 1536), (1536, 2048), (2048, 1536), (1536, 12288), (12288, 1536), (1536, 256),
                        (256, 1536))
"""(K, N) of the decoder's matrices."""
HEAD_SHAPE: Final = (1536, 262144)
TOKEN_COUNTS: Final = (1, 3, 128, 512)
PREFILL_COUNTS: Final = (16, 128, 512)
FUSED_COUNTS: Final = (1, 3)
"""Rows that fused linear kernels are for."""
QUICK_TOKENS: Final = 16
"""Rows with more tokens take minutes on a software adapter."""
GROUP: Final = 32
"""Weights that share a scale."""


class Operation(StrEnum):
    LINEAR = "linear"
    TOPK = "topk"
    SCATTER = "scatter"
    RMS_NORM = "rms_norm"
    ATTENTION = "attention"
    PREFILL = "prefill"
    GATED = "gated"
    QKV = "qkv"
    NORM_PAIR = "norm_pair"
    CACHE_PAIR = "cache_pair"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """``sizes``: linear and gated m, k, n; qkv m, k, q, kv; topk n, k; scatter count, size; norms m, width; cache_pair m,
    width, capacity; attention heads, head_dim, past; prefill m, heads, head_dim."""

    name: str
    operation: Operation
    sizes: Mapping[str, int]

    @property
    def quick(self) -> bool:
        return self.sizes.get("m", 1) <= QUICK_TOKENS

    def traffic_bytes(self, *, f16: bool) -> int:
        """Bytes that have to be read and written at least once, with activations and caches of 2 or 4 bytes."""
        s, element = self.sizes, 2 if f16 else 4
        match self.operation:
            case Operation.LINEAR:
                return _weight_bytes(s["k"], s["n"]) + s["m"] * (s["k"] + s["n"]) * element
            case Operation.TOPK:
                return s["n"] * element + s["k"] * (element + 4)
            case Operation.SCATTER:
                return s["size"] * element + s["count"] * (element + 4)
            case Operation.RMS_NORM:
                return (2 * s["m"] + 1) * s["width"] * element
            case Operation.ATTENTION:
                return 2 * (s["past"] + 1 + s["heads"]) * s["head_dim"] * element
            case Operation.PREFILL:
                return 2 * s["m"] * (1 + s["heads"]) * s["head_dim"] * element
            case Operation.GATED:
                return 2 * _weight_bytes(s["k"], s["n"]) + s["m"] * (s["k"] + s["n"]) * element
            case Operation.QKV:
                columns = s["q"] + 2 * s["kv"]
                return _weight_bytes(s["k"], columns) + s["m"] * (s["k"] + columns) * element
            case Operation.NORM_PAIR:
                return (4 * s["m"] + 2) * s["width"] * element
            case Operation.CACHE_PAIR:
                return 4 * s["m"] * s["width"] * element

    def flops(self) -> int:
        """Floating-point operations of the formula; a multiply-add is two."""
        s = self.sizes
        match self.operation:
            case Operation.LINEAR:
                return 2 * s["m"] * s["k"] * s["n"]
            case Operation.RMS_NORM:
                return 4 * s["m"] * s["width"]
            case Operation.ATTENTION:
                return 4 * s["heads"] * (s["past"] + 1) * s["head_dim"]
            case Operation.PREFILL:
                return 2 * s["heads"] * s["m"] * (s["m"] + 1) * s["head_dim"]
            case Operation.GATED:
                return 4 * s["m"] * s["k"] * s["n"]
            case Operation.QKV:
                return 2 * s["m"] * s["k"] * (s["q"] + 2 * s["kv"])
            case Operation.NORM_PAIR:
                return 8 * s["m"] * s["width"]
            case _:
                return 0


def _weight_bytes(k: int, n: int) -> int:
    """Of a 4-bit weight with its f16 scales."""
    return n * k // 2 + n * k // GROUP * 2


def _rows() -> list[Row]:
    found = [Row(name=f"linear {k}->{n} M={m}", operation=Operation.LINEAR, sizes={"m": m, "k": k, "n": n})
             for k, n in LINEAR_SHAPES for m in TOKEN_COUNTS]
    k, n = HEAD_SHAPE
    found += [Row(name=f"linear {k}->{n} M={m} (head)", operation=Operation.LINEAR, sizes={"m": m, "k": k, "n": n})
              for m in (1, 3)]
    found.append(Row(name="topk 2048->32", operation=Operation.TOPK, sizes={"n": 2048, "k": 32}))
    found.append(Row(name="scatter 4096->262144", operation=Operation.SCATTER, sizes={"count": 4096, "size": 262144}))
    found += [Row(name=f"rms_norm 1536 M={m}", operation=Operation.RMS_NORM, sizes={"m": m, "width": 1536})
              for m in TOKEN_COUNTS]
    found += [Row(name=f"attention 8 heads d={d} past={past}", operation=Operation.ATTENTION,
                  sizes={"heads": 8, "head_dim": d, "past": past}) for d in (256, 512) for past in (511, 2047)]
    found += [Row(name=f"attention 8 heads d={d} M={m}", operation=Operation.PREFILL,
                  sizes={"m": m, "heads": 8, "head_dim": d}) for d in (256, 512) for m in PREFILL_COUNTS]
    found += [Row(name=f"gated 1536->6144 M={m}", operation=Operation.GATED, sizes={"m": m, "k": 1536, "n": 6144})
              for m in FUSED_COUNTS]
    found += [Row(name=f"qkv 1536->2048+256+256 M={m}", operation=Operation.QKV,
                  sizes={"m": m, "k": 1536, "q": 2048, "kv": 256}) for m in FUSED_COUNTS]
    found += [Row(name=f"norm pair 1536 M={m}", operation=Operation.NORM_PAIR, sizes={"m": m, "width": 1536})
              for m in TOKEN_COUNTS]
    found += [Row(name=f"cache pair 256 M={m}", operation=Operation.CACHE_PAIR, sizes={"m": m, "width": 256, "capacity": 2048})
              for m in TOKEN_COUNTS]
    return found


ROWS: Final = tuple(_rows())


def choose_rows(pattern: str, *, quick: bool, rows: Sequence[Row] = ROWS) -> tuple[Row, ...]:
    """Rows whose name the regular expression is found in, without the long ones when ``quick``. Raises UsageError."""
    try:
        found = [row for row in rows if re.search(pattern, row.name)]
    except re.error as error:
        raise UsageError(f"--rows {pattern!r} is no regular expression: {error}", advice="for example --rows 'M=3$'") from None
    if not found:
        raise UsageError(f"--rows {pattern!r} matches no row", advice="`python -m gemma4web bench-kernels --list` prints their names")
    chosen = tuple(row for row in found if row.quick or not quick)
    if not chosen:
        raise UsageError(f"--rows {pattern!r} matches only rows of more than {QUICK_TOKENS} tokens, which a quick run leaves "
                         "out", advice="add --full")
    return chosen
