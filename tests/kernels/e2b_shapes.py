"""Kernels at the shapes of Gemma 4 E2B and its assistant, beside those that the cases_* modules have already.

A reference of a whole wide output would cost more than the GPU does. So of a linear op a random sample of columns is
compared, and of all its columns that they were written and are finite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
from cases_attention import attention_case, cache_case
from cases_attention_ways import combine, decode_split, scores, softmax, splits_of, streaming, values
from cases_index import gather_rows_case
from cases_linear import f32, gather_case
from cases_linear_routes import F16_KERNELS, F16_SCALE, FEW_ROWS
from cases_norm import EPS, FULL, SLIDING, gelu_case, rope_case, softcap_case
from kernel_case import Array, Case, Expected, Rng, compare, dispatch, kernels
from tests.support.gpu_page import GpuDevice

from gemma4web.oracle import ops

VOCAB: Final = 262144
HIDDEN: Final = 1536
# (k, n) of every matrix: q, k and v, o of sliding and full layers, gate and up, down, both of the wide layers, PLE; then
# those of the assistant that differ.
MATRICES: Final = (
    (1536, 2048), (1536, 256), (2048, 1536), (1536, 4096), (1536, 512), (4096, 1536), (1536, 6144), (6144, 1536),
    (1536, 12288), (12288, 1536), (256, 1536), (1536, 8960),
    (3072, 256), (256, 1024), (1024, 256), (256, 2048), (2048, 256),
)
HEAD: Final = (HIDDEN, VOCAB)
SAMPLE: Final = 256


Make = Callable[[Rng], Case]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampled:
    """A case whose output ``out`` [rows, n] is known in ``columns`` alone: values and magnitudes [rows, columns]."""

    case: Case
    columns: Array
    wanted: Expected

    def problems(self, device: GpuDevice, text: str | None = None) -> list[str]:
        """As run_case does."""
        found, problems = dispatch(device, self.case, text=text)
        out = found["out"].reshape(self.case.outputs["out"].values.shape)
        bad = np.flatnonzero(~np.isfinite(out))
        if bad.size:
            problems.append(f"{bad.size} of {out.size} elements are unwritten or not finite, the first [{bad[0]}]")
        problem = compare(out[:, self.columns].reshape(-1), self.wanted, kernels()[self.case.kernel].header.tolerance)
        return [*problems, problem] if problem else problems


@lru_cache(maxsize=1)
def weight(k: int, n: int, seed: int) -> tuple[Array, Array]:
    """values u8[n, k/2], scales f16[n, k/32], the same for all kernels that are asked in a row."""
    rng = np.random.default_rng([seed, k, n])
    scales = rng.uniform(0.001, 0.1, (n, k // 32)).astype(np.float16)
    scales.view(np.uint16)[...] |= rng.integers(0, 2, scales.shape, dtype=np.uint16) << 15
    return rng.integers(0, 256, (n, k // 2), dtype=np.uint8), scales


def linear(kernel: str, rows: int, k: int, n: int) -> Callable[[Rng, int], Sampled]:
    """With the params that the runtime records: threads a column by the shape, subgroups of the software adapter's 4."""
    def build(rng: Rng, seed: int) -> Sampled:
        packed, scales = weight(k, n, seed)
        x = f32(rng, rows, k)
        columns = np.sort(np.concatenate([[0, n - 1], 1 + rng.choice(n - 2, SAMPLE - 2, replace=False)]))
        dense = ops.unpack_q4(packed[columns], scales[columns])
        magnitude = ops.linear(np.abs(x), np.abs(dense)) * (F16_SCALE if kernel in F16_KERNELS else 1.0)
        params: dict[str, int] = {"k": k, "n": n, "group_shift": 1, "flags": 0}
        inputs: dict[str, Array] = {"x": x, "values": packed, "scales": scales}
        if kernel == "linear_q4":
            params |= {"rows": rows, "first": 0, "stride": n}
        else:
            inputs["bias"] = np.zeros(4, np.float32)
            if kernel in FEW_ROWS:
                lanes = 16 if n >= 65536 else 32 if n >= 4096 or k < 1024 else 128
                subgroup = kernel.endswith("subgroup")
                params |= {"lanes": 4 if subgroup else lanes, "subgroup": 4 if subgroup else 1, "first": 0, "stride": n}
            else:
                params |= {"rows": rows, "splits": 1}
        return Sampled(
            case=Case(kernel=kernel, inputs=inputs, outputs={"out": Expected(values=np.zeros((rows, n)))}, params=params),
            columns=columns, wanted=Expected(values=ops.linear(x, dense), magnitude=magnitude))

    return build


def attention(head_dim: int, window: int, rows: int, first: int, *, heads: int = 8, donor: bool = False) -> Make:
    """``first`` is the first row's position, or the donor length; capacities are of an export with 512 rows of prefill and
    a context of 8960."""
    def build(rng: Rng) -> Case:
        count = first if donor else first + rows
        keys, some_values = f32(rng, count, 1, head_dim), f32(rng, count, 1, head_dim)
        positions = np.array([first] if donor else range(first, first + rows), np.int32)
        return attention_case(f32(rng, rows, heads, head_dim, scale=2.0 * head_dim**-0.5), keys, some_values, positions,
                              window=window, capacity=1023 if window else 8962, donor=donor)

    return build


def of(make: Make) -> Callable[[Rng, int], Case]:
    return lambda rng, _: make(rng)


def of_attention(make: Make, stage: Callable[[Case], Case]) -> Callable[[Rng, int], Case]:
    return lambda rng, _: stage(make(rng))


def stages_of(name: str) -> dict[str, Callable[[Case], Case]]:
    """The kernels of every way that takes such a pass."""
    few: dict[str, Callable[[Case], Case]] = {
        "attention_decode_split": lambda made: decode_split(made, splits_of(made)),
        "attention_combine": lambda made: combine(made, splits_of(made))}
    many: dict[str, Callable[[Case], Case]] = {
        "attention_streaming": streaming, "attention_scores": scores, "attention_softmax": softmax,
        "attention_values": values}
    return {"attention": lambda made: made, **(many if "prefill" in name else few)}


def rms_norm(rows: int, width: int) -> Make:
    """With a weight, a residual and a scalar, as behind a layer."""
    def build(rng: Rng) -> Case:
        x, scale, residual, scalar = f32(rng, rows, width), f32(rng, width), f32(rng, rows, width), f32(rng, 1)
        return Case(kernel="rms_norm", inputs={"x": x, "weight": scale, "residual": residual, "scalar": scalar},
                    outputs={"out": Expected(values=ops.rms_norm(x, width=width, eps=EPS, weight=scale, residual=residual,
                                                                 scalar=scalar))},
                    params={"rows": rows, "width": width, "eps": EPS, "flags": 7})

    return build


def rope(heads: int, head_dim: int, form: Mapping[str, float]) -> Make:
    def build(rng: Rng) -> Case:
        positions = np.array([0, 511, 512, 8959, 131071], np.int32)
        turns = ops.rope_turns(head_dim=head_dim, **form)  # type: ignore[arg-type]
        return rope_case(f32(rng, positions.size, heads * head_dim), positions, turns, head_dim)

    return build


def gelu(rows: int, width: int, stride: int = 0, offset: int = 0) -> Make:
    return lambda rng: gelu_case(f32(rng, rows, width, scale=2.0), f32(rng, rows, stride or width), offset)


def ple_combine(rows: int) -> Make:
    def build(rng: Rng) -> Case:
        context, token, scale = f32(rng, rows, 8960, scale=30.0), f32(rng, rows, 8960), f32(rng, 256)
        scales = {"context_scale": float(np.float32(HIDDEN**-0.5)), "scale": float(np.float32(0.5**0.5))}
        return Case(kernel="ple_combine", inputs={"context": context, "token": token, "weight": scale},
                    outputs={"out": Expected(values=ops.ple_combine(context, token, scale, eps=EPS, **scales))},
                    params={"groups": rows * 35, "width": 256, "eps": EPS, **scales})

    return build


def embedding(width: int, first: int, count: int) -> Make:
    """Rows first.. of a table of the whole vocabulary, over what other parts wrote; a whole table has no other parts."""
    def build(rng: Rng) -> Case:
        packed, scales = weight(width, count, 1)
        ids = np.array([first, first + count - 1, *rng.integers(first, first + count, 5)], np.int32)
        if count < VOCAB:
            ids[2:4] = 0, first - 1
        mine = ids >= first
        factor = float(np.float32(HIDDEN**0.5))
        before = f32(rng, ids.size, width)
        wanted = before.astype(np.float64)
        wanted[mine] = ops.unpack_q4(packed[ids[mine] - first], scales[ids[mine] - first]) * np.float64(factor)
        return Case(kernel="embedding_q4", inputs={"ids": ids, "values": packed, "scales": scales},
                    outputs={"out": Expected(values=wanted, before=before)},
                    params={"rows": ids.size, "k": width, "group_shift": 1, "flags": 0, "vocab": VOCAB, "scale": factor, "first": first,
                            "count": count})

    return build


def candidates(rng: Rng) -> Case:
    """The 4096 candidates of a draft step, out of the assistant's whole head."""
    packed, scales = weight(256, VOCAB, 2)
    ids = rng.choice(VOCAB, 4096, replace=False)
    made = gather_case(f32(rng, 1, 256), {"values": packed, "scales": scales}, ops.unpack_q4(packed[ids], scales[ids]),
                       np.arange(4096), "gather_linear_q4")
    return replace(made, inputs={**made.inputs, "ids": ids.astype(np.int32)}, params={**made.params, "rows": VOCAB, "held": VOCAB})


def ordering(rng: Rng) -> Case:
    """32 of the 2048 clusters of 128 token ids."""
    return gather_rows_case(rng.permutation(VOCAB).astype(np.int32).reshape(2048, 128),
                            rng.permutation(2048)[:32].astype(np.int32))


FEW_ROWS_WAYS: Final = (("linear_q4_m1", 1), ("linear_q4_m3", 3))
SUBGROUP_WAYS: Final = (("linear_q4_m1_subgroup", 1), ("linear_q4_m3_subgroup", 3))
HEAD_WAYS: Final = (("linear_q4", 1), *FEW_ROWS_WAYS, *SUBGROUP_WAYS)
# The widest k and the commonest matrix go through the other ways as well.
MORE_WAYS: Final = (("linear_q4", 3), *SUBGROUP_WAYS, ("linear_q4_tiled", 13), ("linear_q4_steel", 65))
# Rows of a decode step, a round, a prefill; positions behind the window, and at the end of the context.
ATTENTION: Final[dict[str, Make]] = {
    "sliding, a round behind the window": attention(256, 512, 3, 8957),
    "full, a step at the end of the context": attention(512, 0, 1, 8959),
    "sliding, a prefill over the window": attention(256, 512, 61, 997),
    "full, a prefill": attention(512, 0, 37, 700),
    "assistant, sliding": attention(256, 512, 1, 5000, heads=4, donor=True),
    "assistant, full": attention(512, 0, 1, 5000, heads=4, donor=True),
}
SHAPES: Final[dict[str, Callable[[Rng, int], Case | Sampled]]] = {
    **{f"{kernel}: {rows} x {k} by {n}": linear(kernel, rows, k, n) for k, n in MATRICES
       for kernel, rows in (*FEW_ROWS_WAYS, *(MORE_WAYS if (k, n) in ((1536, 2048), (12288, 1536)) else ()))},
    **{f"{kernel}: {rows} x {HEAD[0]} by {HEAD[1]}": linear(kernel, rows, *HEAD) for kernel, rows in HEAD_WAYS},
    # Where bk64 is taken: 128 rows of an accepted matrix.
    **{f"{kernel}: 128 x {k} by {n}": linear(kernel, 128, k, n) for k, n in ((1536, 2048), (6144, 1536))
       for kernel in F16_KERNELS},
    **{f"{kernel}: {name}": of_attention(make, stage) for name, make in ATTENTION.items()
       for kernel, stage in stages_of(name).items()},
    **{f"rms_norm: {rows} x {width}": of(rms_norm(rows, width))
       for rows, width in ((512, HIDDEN), (3 * 8, 256), (3 * 8, 512), (1, 256))},
    "rope: sliding": of(rope(8, 256, SLIDING)), "rope: full": of(rope(8, 512, FULL)),
    **{f"gelu_mul: {rows} x {width}": of(gelu(rows, width)) for rows, width in ((3, 6144), (3, 12288), (1, 2048))},
    "gelu_mul: the last layer's slice of PLE": of(gelu(3, 256, 8960, 34 * 256)),
    "ple_combine: 35 layers, 13 rows": of(ple_combine(13)),
    "softcap: three rows of the vocabulary": of(lambda rng: softcap_case(f32(rng, 3 * VOCAB, scale=30.0), 30.0)),
    "embedding_q4: the whole table": of(embedding(HIDDEN, 0, VOCAB)),
    "embedding_q4: the last rows of the PLE table": of(embedding(8960, VOCAB - 4096, 4096)),
    "cache_write: a sliding ring": of(lambda rng: cache_case(rng, 512, 1, 256, 1023, 700)),
    "cache_write: a full cache": of(lambda rng: cache_case(rng, 512, 1, 512, 8962, 8448)),
    "gather_linear_q4: the assistant's head": of(candidates),
    "gather_rows: the token ordering": of(ordering),
}
