"""Cases of the norms, PLE, GELU, softcap and RoPE kernels."""

from __future__ import annotations

import numpy as np
from cases_linear import f32
from kernel_case import Array, Case, Expected, Rng, case
from kernel_reference import rms_norm_pair, rope_of_turns

from gemma4web.oracle import ops

EPS = float(np.float32(1e-6))


def add_rms_norm(rows: int, width: int, flags: int, scale: float = 1.0, kernel: str = "rms_norm") -> None:
    @case(f"{kernel}: {rows} x {width}, flags {flags}, values of about {scale:g}")
    def build(rng: Rng) -> Case:
        x = f32(rng, rows, width, scale=scale)
        weight, residual, scalar = f32(rng, width), f32(rng, rows, width), f32(rng, 1)
        wanted = ops.rms_norm(x, width=width, eps=EPS, weight=weight if flags & 1 else None,
                              residual=residual if flags & 2 else None, scalar=scalar if flags & 4 else None)
        absent = np.zeros(0, np.float32)  # only guard words are bound, as the runtime binds a dummy
        present = {"weight": weight if flags & 1 else absent, "residual": residual if flags & 2 else absent,
                   "scalar": scalar if flags & 4 else absent}
        return Case(kernel=kernel, inputs={"x": x, **present}, outputs={"out": Expected(values=wanted)},
                    params={"rows": rows, "width": width, "eps": EPS, "flags": flags},
                    per_row=("x", "out", *(("residual",) if flags & 2 else ())))


for flag_bits in range(8):
    add_rms_norm(5, 37, flag_bits)
    add_rms_norm(3, 521, flag_bits, kernel="rms_norm_wide")
for shape in ((1, 1), (3, 255), (2, 256), (5, 257), (3, 1024), (3, 1025), (3, 2049), (2, 8960)):
    add_rms_norm(*shape, 7, kernel="rms_norm_wide")
for shape in ((1, 1), (3, 63), (3, 64), (3, 65), (31, 127), (3, 513), (3, 1536), (2, 8960)):
    add_rms_norm(*shape, 7)
add_rms_norm(3, 53, 1, scale=1e-4)  # eps counts
add_rms_norm(3, 53, 3, scale=6e4)  # beyond f16


@case("rms_norm: rows of zeros, with a NaN, with an infinity")
def rms_norm_special(rng: Rng) -> Case:
    x = f32(rng, 4, 67)
    x[0] = 0.0
    x[1, 66] = np.nan
    weight, none = f32(rng, 67), np.zeros(0, np.float32)
    wanted = ops.rms_norm(x, width=67, eps=EPS, weight=weight)
    # An infinity leaves its row without a plausible value: NaN in its own place, zeros beside it.
    x[2, 13] = np.inf
    wanted[2], wanted[2, 13] = 0.0, np.nan
    return Case(kernel="rms_norm", inputs={"x": x, "weight": weight, "residual": none, "scalar": none},
                outputs={"out": Expected(values=wanted)}, params={"rows": 4, "width": 67, "eps": EPS, "flags": 1},
                per_row=("x", "out"))


def norm_pair_case(x: Array, weight: Array, residual: Array, scalar: Array, next_weight: Array, flags: int,
                   kernel: str = "rms_norm_pair") -> Case:
    rows, width = x.shape
    absent = np.zeros(0, np.float32)
    out, following = rms_norm_pair(x, weight if flags & 1 else None, residual if flags & 2 else None,
                                   scalar if flags & 4 else None, next_weight, eps=EPS)
    return Case(kernel=kernel,
                inputs={"x": x, "weight": weight if flags & 1 else absent, "residual": residual if flags & 2 else absent,
                        "scalar": scalar if flags & 4 else absent, "next_weight": next_weight},
                outputs={"out": Expected(values=out), "next": Expected(values=following)},
                params={"rows": rows, "width": width, "eps": EPS, "flags": flags},
                per_row=("x", "out", "next", *(("residual",) if flags & 2 else ())))


def add_norm_pair(rows: int, width: int, flags: int, scale: float = 1.0, kernel: str = "rms_norm_pair") -> None:
    @case(f"{kernel}: {rows} x {width}, flags {flags}, values of about {scale:g}")
    def build(rng: Rng) -> Case:
        # Away from zero: what the second norm divides by must not be all cancellation.
        scalar = np.float32(rng.choice([-1.0, 1.0])) * rng.uniform(0.5, 2.0, 1).astype(np.float32)
        return norm_pair_case(f32(rng, rows, width, scale=scale), f32(rng, width), f32(rng, rows, width), scalar,
                              f32(rng, width), flags, kernel)


for flag_bits in range(8):
    add_norm_pair(5, 37, flag_bits)
    add_norm_pair(3, 521, flag_bits, kernel="rms_norm_pair_wide")
for shape in ((1, 1), (3, 255), (2, 256), (5, 257), (3, 1025), (3, 2049), (2, 8960)):
    add_norm_pair(*shape, 7, kernel="rms_norm_pair_wide")
for shape in ((1, 1), (3, 63), (3, 64), (3, 65), (31, 127), (3, 257), (3, 513), (3, 1536), (2, 8960)):
    add_norm_pair(*shape, 7)
add_norm_pair(3, 53, 1, scale=1e-4)  # eps counts in the first norm


@case("rms_norm_pair: rows of zeros, small sums, with a NaN")
def norm_pair_special(rng: Rng) -> Case:
    """Zero and tiny results keep the second norm's eps from being forgotten."""
    x, residual = np.zeros((3, 67), np.float32), np.zeros((3, 67), np.float32)
    residual[1] = f32(rng, 67, scale=1e-3)
    x[2] = f32(rng, 67)
    x[2, 66] = np.nan
    return norm_pair_case(x, f32(rng, 67), residual, f32(rng, 1), f32(rng, 67), 3)


def add_ple_combine(rows: int, layers: int, width: int) -> None:
    @case(f"ple_combine: {rows} rows of {layers} x {width}")
    def build(rng: Rng) -> Case:
        context, token, weight = f32(rng, rows, layers * width, scale=30.0), f32(rng, rows, layers * width), f32(rng, width)
        context_scale, scale = float(np.float32(1536**-0.5)), float(np.float32(2**-0.5))
        wanted = ops.ple_combine(context, token, weight, eps=EPS, context_scale=context_scale, scale=scale)
        return Case(kernel="ple_combine", inputs={"context": context, "token": token, "weight": weight},
                    outputs={"out": Expected(values=wanted)},
                    params={"groups": rows * layers, "width": width, "eps": EPS, "context_scale": context_scale,
                            "scale": scale})


for shape in ((1, 1, 1), (3, 7, 29), (1, 35, 256), (5, 3, 65)):
    add_ple_combine(*shape)


def gelu_case(a: Array, b: Array, offset: int) -> Case:
    return Case(kernel="gelu_mul", inputs={"a": a, "b": b},
                outputs={"out": Expected(values=ops.gelu_mul(a, b, offset=offset))},
                params={"rows": a.shape[0], "width": a.shape[1], "stride": b.shape[1], "offset": offset},
                per_row=("a", "b", "out"))


@case("gelu_mul: a slice of wider rows at prime sizes")
def gelu_slice(rng: Rng) -> Case:
    return gelu_case(f32(rng, 5, 67, scale=2.0), f32(rng, 5, 211), 101)


@case("gelu_mul: equal widths, many groups")
def gelu_plain(rng: Rng) -> Case:
    return gelu_case(f32(rng, 7, 331, scale=3.0), f32(rng, 7, 331), 0)


@case("gelu_mul: zeros, tails, huge values and NaN")
def gelu_special(rng: Rng) -> Case:
    # The first column of b is the only one used with extreme a: their product stays finite.
    a = np.array([[0.0, -0.0, 1e-20, -1e-6, 0.2, 0.313, -0.314, 3.0, -3.0, 9.9, -9.9, 30.0, -30.0, 1e13, -1e13, 3e38,
                   -3e38, np.nan]], np.float32)
    return gelu_case(a, np.ones((1, a.size), np.float32), 0)


def softcap_case(x: Array, cap: float) -> Case:
    return Case(kernel="softcap", inputs={"x": x}, outputs={"out": Expected(values=ops.softcap(x, cap))},
                params={"count": x.size, "cap": cap})


@case("softcap: 0, 45, 2000, -1e4 with cap 30, and what is around them")
def softcap_values(rng: Rng) -> Case:
    return softcap_case(np.array([0.0, 45.0, 2000.0, -1e4, 1e-6, -1e-3, 7.4, 7.6, -7.5, 90.0, 3e38, -3e38], np.float32),
                        30.0)


@case("softcap: logits at a prime count")
def softcap_random(rng: Rng) -> Case:
    return softcap_case(f32(rng, 1009, scale=30.0), 30.0)


@case("softcap: NaN stays, infinity is the cap")
def softcap_special(rng: Rng) -> Case:
    return softcap_case(np.array([np.nan, np.inf, -np.inf, 1.0], np.float32), 30.0)


POSITIONS = (0, 1, 511, 512, 4096, 100000)
SLIDING = {"rotated_pairs": 128, "denominator": 256, "theta": 1e4}
FULL = {"rotated_pairs": 64, "denominator": 512, "theta": 1e6}


def rope_case(x: Array, positions: Array, turns: Array, head_dim: int) -> Case:
    return Case(kernel="rope", inputs={"x": x, "positions": positions, "frequencies": turns},
                outputs={"out": Expected(values=rope_of_turns(x, positions, turns))},
                params={"rows": x.shape[0], "heads": x.shape[1] // head_dim, "head_dim": head_dim},
                per_row=("x", "positions", "out"))


def add_rope(name: str, heads: int, head_dim: int, **form: float) -> None:
    @case(f"rope: {name}, {heads} heads of {head_dim}")
    def build(rng: Rng) -> Case:
        turns = ops.rope_turns(head_dim=head_dim, **form)  # type: ignore[arg-type]
        positions = np.array(POSITIONS, np.int32)
        return rope_case(f32(rng, positions.size, heads * head_dim), positions, turns, head_dim)


add_rope("sliding", 3, 256, **SLIDING)
add_rope("full, proportional", 2, 512, **FULL)
add_rope("tiny", 5, 14, rotated_pairs=7, denominator=14, theta=1e4)


@case("rope: every octant, random phases")
def rope_octants(rng: Rng) -> Case:
    turns = rng.integers(0, 2**32, 32, dtype=np.uint32)
    return rope_case(f32(rng, 61, 64), np.arange(61, dtype=np.int32), turns, 64)
