"""The record of `bench-kernels`: types, and the arithmetic of bounds, ratios and who is slower."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from gemma4web.record import Adapter, Browser, Name

SCHEMA: Final = 1

Share = Annotated[float, msgspec.Meta(ge=0)]


class Spread(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Microseconds a call over the repeats."""

    median_us: Share
    min_us: Share
    max_us: Share
    samples: int


class Roofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What simple shaders reach on this adapter. Copy counts bytes read and written; 0: not measured."""

    dispatch_us: Share
    read_bytes_per_s: Share
    read_groups: int
    copy_bytes_per_s: Share
    f32_flops: Share
    f16_flops: Share


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One contender of a row.

    ``pass_us``: GPU time of passes and copies with each call in passes of its own, as the peer runs. ``batch_us``: GPU time of a call among
    many dependent ones in one pass, as our runtime runs; ours alone. ``wall_us``: clock time a call, waiting included.
    ``error``: largest by the tolerance's scale; None where an output was left unwritten or is no number.
    ``dispatches`` and ``buffer_copies`` (copies outside any pass) are those of one call.
    ``ratios``: peer -> its pass_us by ours, medians; above 1 ours is faster. ``stands_for``: of a fused kernel, the entry of
    the row that runs its ops one by one.
    """

    name: Name
    side: Literal["ours", "peer"]
    f16: bool
    status: Literal["ok", "wrong", "failed", "unmeasured"]
    message: str
    error: float | None
    tolerance: float
    dispatches: int
    buffer_copies: int
    calls: int
    pass_us: Spread | None
    batch_us: Spread | None
    wall_us: Spread | None
    bytes_per_s: Share
    flops_per_s: Share
    bound_us: Share
    share_of_bound: Share
    ratios: dict[str, float]
    stands_for: str = ""

    @property
    def best_us(self) -> float | None:
        """The median that bandwidth and share are computed from."""
        spread = self.batch_us or self.pass_us
        return spread.median_us if spread else None


class RowResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``left_out``: contender -> why it did not take part. ``failure``: what ended the row, empty if nothing did.

    ``reference_us``: a fixed piece of work, measured right behind the row; rows whose clock was the same have the same.
    0: not measured.
    """

    name: Name
    traffic_bytes: int
    flops: int
    copies: int
    checked: str
    failure: str
    reference_us: Share
    left_out: dict[str, str]
    entries: list[Entry]


class KernelBench(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1] = SCHEMA
    complete: bool
    failure: str
    adapter: Adapter
    browser: Browser
    flags: list[str]
    versions: dict[str, str]
    clock: Literal["gpu timestamps", "wall"]
    timestamp_quantum_ns: Share
    seed: int
    repeats: int
    quick: bool
    notes: list[str]
    roofline: Roofline | None
    rows: list[RowResult]


class Slower(msgspec.Struct, frozen=True, kw_only=True):
    """One of our kernels that a peer beats on a row. ``reasons``: what of the measurement accounts for it, in words."""

    row: str
    contender: str
    peer: str
    ours_us: float
    peer_us: float
    ratio: float
    reasons: list[str]


def spread_of(samples: Sequence[float]) -> Spread | None:
    if not samples:
        return None
    return Spread(median_us=statistics.median(samples), min_us=min(samples), max_us=max(samples), samples=len(samples))


def bound_us(traffic_bytes: int, flops: int, roofline: Roofline | None, *, f16: bool) -> float:
    """Microseconds that bandwidth or arithmetic take at least, whichever is longer; 0 where neither was measured."""
    if roofline is None:
        return 0.0
    rate = max(roofline.f16_flops, roofline.f32_flops) if f16 else roofline.f32_flops
    by_bytes = traffic_bytes / roofline.read_bytes_per_s if roofline.read_bytes_per_s else 0.0
    return 1e6 * max(by_bytes, flops / rate if rate else 0.0)


def with_ratios(entries: Sequence[Entry]) -> list[Entry]:
    """The entries of a row, ours with their ratio to each peer that was measured."""
    peers = {entry.name: entry.pass_us.median_us for entry in entries if entry.side == "peer" and entry.pass_us is not None}
    return [entry if entry.side == "peer" or entry.pass_us is None or not entry.pass_us.median_us else
            msgspec.structs.replace(entry, ratios={
                peer: time_us / entry.pass_us.median_us for peer, time_us in peers.items()})
            for entry in entries]


def fused_ratio(entry: Entry, entries: Sequence[Entry]) -> float | None:
    """Median time of the ops one by one by that of the fused kernel, batched as the runtime runs them; above 1 it pays."""
    apart = next((other for other in entries if other.name == entry.stands_for), None)
    if apart is None or not apart.best_us or not entry.best_us:
        return None
    return apart.best_us / entry.best_us


def slower_kernels(rows: Sequence[RowResult], roofline: Roofline | None) -> list[Slower]:
    """Every row whose fastest kernel of ours is beaten by a peer, with that peer, worst first.

    What the runtime would not choose there is in the record beside it, and no news.
    """
    found = []
    for row in rows:
        timed = [(entry.pass_us, entry) for entry in row.entries if entry.pass_us is not None]
        ours = [(spread, entry) for spread, entry in timed if entry.side == "ours"]
        if not ours:
            continue
        spread, best = min(ours, key=lambda item: item[0].median_us)
        for peer_spread, peer in timed:
            ratio = best.ratios.get(peer.name, 1.0)
            if peer.side == "peer" and ratio < 1.0:
                found.append(Slower(row=row.name, contender=best.name, peer=peer.name, ours_us=spread.median_us,
                                    peer_us=peer_spread.median_us, ratio=ratio,
                                    reasons=_reasons((best, spread), (peer, peer_spread), roofline)))
    return sorted(found, key=lambda item: item.ratio)


def _reasons(ours: tuple[Entry, Spread], peer: tuple[Entry, Spread], roofline: Roofline | None) -> list[str]:
    """Only what the numbers themselves say; empty where they say nothing."""
    (mine, spread), (other, peer_spread) = ours, peer
    found = []
    copies = other.buffer_copies - mine.buffer_copies
    if copies > 0:
        found.append(f"the peer has {copies} more buffer {'copy' if copies == 1 else 'copies'} outside any pass, for which a "
                     "single compute pass has no room")
    if other.f16 and not mine.f16:
        found.append("the peer computes in f16")
    if roofline is not None and (gap_us := spread.median_us - peer_spread.median_us) <= roofline.dispatch_us:
        found.append(f"the difference of {gap_us:.3g} us is less than an empty dispatch takes, {roofline.dispatch_us:.3g} us")
    if spread.min_us <= peer_spread.max_us and spread.samples > 1:
        found.append("the samples of both overlap")
    return found


def faulty(rows: Sequence[RowResult]) -> list[str]:
    """What failed or is wrong, a line each."""
    lines = [f"{row.name}: {row.failure}" for row in rows if row.failure]
    lines += [f"{row.name}: {entry.name} {entry.status.upper()}: {entry.message}" for row in rows for entry in row.entries
              if entry.status in ("wrong", "failed")]
    return lines
