"""Cases of the guarded ways to run attention: those of the generic kernel where the way's guard accepts them, and the
edges of its own chunks, tiles and splits."""

from __future__ import annotations

from dataclasses import replace

import kernel_reference
import numpy as np
from cases_attention import STALE, add_attention, attention_case
from cases_linear import f32
from kernel_case import BUILDERS, Array, Case, Expected, Rng, build, case

QUERIES = 16


def streaming(made: Case) -> Case:
    sharing = int(made.params["q_heads"]) // int(made.params["kv_heads"])
    return replace(made, kernel="attention_streaming", params={**made.params, "tile_rows": QUERIES // sharing})


def partials_of(made: Case, splits: int) -> tuple[Array, Array]:
    params = made.params
    return kernel_reference.attention_partials(
        *(made.inputs[name] for name in ("q", "k", "v", "positions")), head_dim=int(params["head_dim"]),
        window=int(params["window"]), donor=bool(params["donor"]), splits=splits)


def decode_split(made: Case, splits: int, *, blank: bool = False) -> Case:
    """The first stage alone: what a split without keys leaves must stay the sentinel, a NaN. ``blank``: it is only run."""
    rows, heads, head_dim = (int(made.params[name]) for name in ("rows", "q_heads", "head_dim"))
    empty = np.zeros((rows, heads, splits, head_dim)), np.zeros((rows, heads, splits, 4))
    values, stats = empty if blank else partials_of(made, splits)
    return replace(made, kernel="attention_decode_split", params={**made.params, "splits": splits},
                   outputs={"values": Expected(values=values), "stats": Expected(values=stats)},
                   per_row=(*(name for name in made.per_row if name != "out"), "values", "stats"))


def combine(made: Case, splits: int, values: Array | None = None, stats: Array | None = None) -> Case:
    """The second stage over what the first one wrote, or over the reference's partials with stale words between."""
    if values is None or stats is None:
        values, stats = (stale(array) for array in partials_of(made, splits))
    kept = ("rows", "q_heads", "head_dim", "window", "donor")
    return Case(kernel="attention_combine", outputs=made.outputs,
                inputs={"values": values, "stats": stats, "positions": made.inputs["positions"]},
                params={**{name: made.params[name] for name in kept}, "splits": splits},
                per_row=(*(name for name in made.per_row if name != "q"), "values", "stats"))


def splits_of(made: Case) -> int:
    """As the runtime counts them: chunks that a window, or all of the cache, can touch."""
    window, capacity = int(made.params["window"]), int(made.params["capacity"])
    chunks = (min(window, capacity) + 2 * 16 - 2) // 16 if window else -(-capacity // 16)
    return min(chunks, 128)


def scores(made: Case) -> Case:
    """The first stage of materialised attention: what a row does not see must stay the sentinel, a NaN."""
    q, k, positions = made.inputs["q"], made.inputs["k"], made.inputs["positions"].reshape(-1)
    shape = {name: int(made.params[name]) for name in ("head_dim", "window", "donor")}
    wanted, size = (kernel_reference.attention_scores(*arrays, positions, **shape)  # type: ignore[arg-type]
                    for arrays in ((q, k), (np.abs(q), np.abs(k))))
    return Case(kernel="attention_scores", inputs={"q": q, "k": k, "positions": positions}, params=made.params,
                outputs={"scores": Expected(values=wanted, magnitude=np.fmax(1.0, size))},
                per_row=(*(name for name in made.per_row if name != "out"), "scores"))


def softmax(made: Case, found: Array | None = None) -> Case:
    """The second stage over what the first one wrote, or over the reference's scores with stale words between."""
    before = stale(scores(made).outputs["scores"].values) if found is None else found
    weights = kernel_reference.attention_softmax(scores(made).outputs["scores"].values)
    kept = ("rows", "q_heads", "capacity", "window", "donor")
    return Case(kernel="attention_softmax", inputs={"positions": made.inputs["positions"]},
                outputs={"scores": Expected(values=weights, before=before, magnitude=weights + 1e-4)},
                params={name: made.params[name] for name in kept},
                per_row=(*(name for name in made.per_row if name == "positions"), "scores"))


def values(made: Case, weights: Array | None = None) -> Case:
    """The third stage over what the second one wrote, or over the reference's weights with stale words between."""
    if weights is None:
        weights = stale(kernel_reference.attention_softmax(scores(made).outputs["scores"].values))
    return Case(kernel="attention_values", outputs=made.outputs, params=made.params,
                inputs={"weights": weights, "v": made.inputs["v"], "positions": made.inputs["positions"]},
                per_row=(*(name for name in made.per_row if name != "q"), "weights"))


def stale(array: Array) -> Array:
    return np.where(np.isnan(array), STALE, array.astype(np.float32))


add_attention("chunk edges", q_heads=3, kv_heads=1, head_dim=20, window=0, first=14, rows=5)
add_attention("window of one chunk", q_heads=2, kv_heads=1, head_dim=12, window=16, first=45, rows=5)
add_attention("eleven heads share", q_heads=11, kv_heads=1, head_dim=260, window=0, first=40, rows=3)
add_attention("sixteen heads share", q_heads=32, kv_heads=2, head_dim=64, window=20, first=60, rows=3)
add_attention("tile edges with a window", q_heads=8, kv_heads=1, head_dim=256, window=64, first=59, rows=11)
add_attention("E2B prefill over the window", q_heads=8, kv_heads=1, head_dim=256, window=512, first=575, rows=37)
add_attention("E2B full prefill", q_heads=8, kv_heads=1, head_dim=512, window=0, first=190, rows=13)
add_attention("prime heads", q_heads=7, kv_heads=7, head_dim=124, window=31, first=97, rows=19)
add_attention("five heads share", q_heads=5, kv_heads=1, head_dim=96, window=0, first=3, rows=17)
add_attention("ring below a tile", q_heads=4, kv_heads=2, head_dim=36, window=5, first=301, rows=4, capacity=9)
add_attention("ring of five", q_heads=4, kv_heads=2, head_dim=36, window=3, first=43, rows=3, capacity=5)
add_attention("donor over many rows", q_heads=4, kv_heads=1, head_dim=64, window=21, first=99, rows=13, donor=True)


@case("attention: a NaN value that later rows see does not touch the rows before it")
def later_nan(rng: Rng) -> Case:
    made = attention_case(f32(rng, 6, 1, 8), f32(rng, 40, 1, 8), f32(rng, 40, 1, 8), np.arange(30, 36, dtype=np.int32), window=4,
                          capacity=40)
    ring = made.inputs["v"].copy()
    ring[0, 33, 0, 5] = np.nan
    wanted = made.outputs["out"].values.copy()
    wanted[3:, 5] = np.nan
    return replace(made, inputs={**made.inputs, "v": ring}, outputs={"out": Expected(values=wanted)})


@case("attention: values around the window are poison")
def poison_around(rng: Rng) -> Case:
    """Slots 20..28 are seen; a value beside them is NaN and must not be multiplied, not even by zero."""
    made = attention_case(f32(rng, 1, 2, 12), f32(rng, 40, 1, 12), f32(rng, 40, 1, 12), np.array([28], np.int32),
                          window=9, capacity=40)
    ring = made.inputs["v"].copy()
    ring[0, :20], ring[0, 29:] = np.nan, np.nan
    return replace(made, inputs={**made.inputs, "v": ring})


def guarded(name: str) -> bool:
    made = build(name)
    return made.params["head_dim"] % 4 == 0 and made.params["q_heads"] <= 16 * made.params["kv_heads"]


ATTENTION = sorted(name for name in BUILDERS if name.startswith("attention: ") and guarded(name))
"""Cases that every way takes."""

for _name in ATTENTION:
    case(_name.replace("attention", "attention_streaming", 1))(lambda _, name=_name: streaming(build(name)))  # type: ignore[misc]
    if "NaN" in _name:
        continue  # what partials of such rows hold is not said; the two stages together are tested
    for _stage in (scores, softmax, values):
        case(_name.replace("attention", f"attention_{_stage.__name__}", 1))(
            lambda _, name=_name, stage=_stage: stage(build(name)))  # type: ignore[misc]
    _title = _name.partition(": ")[2]
    for _splits in (0, 3):
        _end = f"{_title}, {_splits or 'all'} splits"
        case(f"attention_decode_split: {_end}")(
            lambda _, name=_name, n=_splits: decode_split(build(name), n or splits_of(build(name))))  # type: ignore[misc]
        case(f"attention_combine: {_end}")(
            lambda _, name=_name, n=_splits: combine(build(name), n or splits_of(build(name))))  # type: ignore[misc]


@case("attention_combine: 128 splits that rise, then fall")
def many_splits(rng: Rng) -> Case:
    keys = np.zeros((2043, 1, 8), np.float32)
    keys[:, 0, 0] = 200.0 * np.sin(np.linspace(0.0, 3.0, 2043))
    q = np.zeros((2, 1, 8), np.float32)
    q[0, 0, 0], q[1, 0, 0] = 1.0, -1.0
    made = attention_case(q, keys, f32(rng, 2043, 1, 8), np.array([2042, 1000], np.int32), window=0, capacity=2050)
    return combine(made, 128)


@case("attention_combine: a split with an infinite score makes its row NaN")
def broken_split(rng: Rng) -> Case:
    made = attention_case(f32(rng, 2, 2, 8), f32(rng, 70, 1, 8), f32(rng, 70, 1, 8), np.array([50, 69], np.int32), window=0,
                          capacity=72)
    values, stats = (array.astype(np.float32) for array in partials_of(made, 5))
    stats[1, 0, 3, 2] = 1.0
    wanted = made.outputs["out"].values.copy()
    wanted[1, :8] = np.nan
    return combine(replace(made, outputs={"out": Expected(values=wanted)}), 5, values, stats)


@case("attention_softmax: an infinite score and a NaN make their rows NaN")
def broken_scores(rng: Rng) -> Case:
    made = softmax(attention_case(f32(rng, 3, 2, 8), f32(rng, 70, 1, 8), f32(rng, 70, 1, 8), np.array([50, 69, 60], np.int32),
                                  window=9, capacity=11))
    before, weights = made.outputs["scores"].before, made.outputs["scores"].values.copy()
    assert before is not None
    before[0, 1, 50 % 11], before[1, 0, 61 % 11], before[2, 0, 60 % 11] = np.inf, np.nan, -np.inf
    for row, head in ((0, 1), (1, 0), (2, 0)):
        weights[row, head] = np.nan
    return replace(made, outputs={"scores": Expected(values=weights, before=before)})
