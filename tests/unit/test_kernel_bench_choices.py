"""bench-kernels dispatches as the runtime does: its choices have the runtime's numbers."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gemma4web.kernel_bench import choices

OPS = Path(__file__).resolve().parents[2] / "runtime_cpp/src/ops"


def number(file: str, name: str) -> int:
    found = re.findall(rf"constexpr uint(?:32|64)_t {name} = (\d+);", "".join((OPS / part).read_text() for part in file.split()))
    assert len(found) == 1, f"{name} in {file}: {found}"
    return int(found[0])


@pytest.mark.parametrize(("file", "name", "mine"), [
    ("linear_routes.cc", "kMostSplits", choices._MOST_SPLITS),
    ("linear_routes.cc", "kDp4aColumns", choices.DP4A_COLUMNS), ("linear_routes.cc", "kDp4aLanes", choices.DP4A_LANES),
    ("attention_routes.cc attention_routes.h", "kChunk", choices._CHUNK),
    ("attention_routes.cc attention_routes.h", "kMaxSplits", choices._MOST_ATTENTION_SPLITS),
])
def test_numbers_are_the_runtimes(file: str, name: str, mine: int) -> None:
    assert number(file, name) == mine


@pytest.mark.parametrize(("name", "mine"), [
    ("kTiled", choices.TILED), ("kSteel", choices.STEEL), ("kMatrix", choices.MATRIX), ("kMatrixF16", choices.MATRIX_F16)])
def test_tiles_are_the_runtimes(name: str, mine: choices.Tile) -> None:
    text = (OPS / "linear_routes.cc").read_text()
    struct = re.search(r"struct Tile \{(.*?)\};", text, re.DOTALL)
    given = re.search(rf"constexpr Tile {name} = \{{(.*?)\}};", text)
    assert struct and given
    values = dict(re.findall(r"(\w+) = (\d+);", struct.group(1))) | dict(re.findall(r"\.(\w+) = (\d+)", given.group(1)))
    assert {key: int(value) for key, value in values.items()} == dataclasses.asdict(mine)


def test_lanes_are_the_runtimes() -> None:
    """The function is short enough to be compared as text."""
    text = " ".join((OPS / "linear_routes.cc").read_text().split())
    assert ("if (limits.subgroup_lanes == 4) return 4; if (shape.n >= 65536) return 16; "
            "return shape.n >= 4096 || shape.k < 1024 ? 32 : 128;") in text
    assert [choices.lanes_of(k=k, n=n, subgroup_min=32) for k, n in (
        (1536, 65536), (1536, 65535), (1536, 4096), (1536, 4095), (1023, 8), (1024, 8))] == [16, 32, 32, 128, 32, 128]
    assert choices.lanes_of(k=1536, n=65536, subgroup_min=4) == 4
