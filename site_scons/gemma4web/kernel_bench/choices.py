"""What the runtime chooses for a shape: lanes a column, parts of k, splits of the keys. Mirrors runtime_cpp/src/ops."""

from __future__ import annotations

from dataclasses import dataclass

_MOST_SPLITS = 8
_CHUNK = 16
_MOST_ATTENTION_SPLITS = 128


def lanes_of(*, k: int, n: int, subgroup_min: int) -> int:
    """Threads that share a column of linear_q4_m1 and linear_q4_m3 (LanesOf in linear_routes.cc)."""
    if subgroup_min == 4:
        return 4
    if n >= 65536:
        return 16
    return 32 if n >= 4096 or k < 1024 else 128


DP4A_COLUMNS = 32768
"""Columns from which the kernels over digits pay (kDp4aColumns in linear_routes.cc)."""
DP4A_LANES = 8
STREAMED_QUERIES = 16
"""Queries of a tile of attention_streaming (kStreamingQueries in attention_routes.h)."""


@dataclass(frozen=True, slots=True)
class Tile:
    """What a workgroup of a blocked product makes, and the columns of x that it takes in one step (Tile in linear_routes.cc)."""

    rows: int
    columns: int = 64
    block_k: int = 32
    enough_groups: int = 400


TILED, STEEL = Tile(32), Tile(64)
MATRIX, MATRIX_F16 = Tile(64, enough_groups=200), Tile(128, 128, 64, 200)


def splits_of(*, rows: int, k: int, n: int, tile: Tile) -> int:
    """Parts of k of the tiled kernels (SplitsOf in linear_routes.cc)."""
    tiles, splits = -(-rows // tile.rows) * -(-n // tile.columns), 1
    while splits < _MOST_SPLITS and tiles * splits * 2 <= tile.enough_groups and k // tile.block_k // (splits * 2) >= 4:
        splits *= 2
    return splits


def attention_splits(*, capacity: int, window: int) -> int:
    """Workgroups that share a row's keys (AttentionSplits in attention_routes.cc)."""
    chunks = (min(window, capacity) + 2 * _CHUNK - 2) // _CHUNK if window else -(-capacity // _CHUNK)
    return min(chunks, _MOST_ATTENTION_SPLITS)
