"""The program in memory: tensors, ops with their attributes, shards and spans, all frozen. Mirrors ``program.fbs``.

Attribute classes carry the names of the schema's tables; what an op computes stands beside each table there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

SCHEMA: Final = 1
TEXT_DECODER: Final = "text_decoder"
K2_ROUND: Final = "k2_round"
DRAFTS: Final = 2
"""Drafts of one speculative round; a round verifies DRAFTS + 1 rows."""
VERIFY_ROWS: Final = DRAFTS + 1
ABSENT: Final = -1
"""An op's optional input that is not there."""
Q4_GROUPS: Final = (32, 64, 128)
"""How many columns may share one scale in a q4 weight."""


class Dtype(IntEnum):
    F32 = 0
    I32 = 1
    Q4 = 2


class ScaleDtype(IntEnum):
    """Of the scales of a q4 weight."""

    F16 = 0
    F32 = 1

    @property
    def bytes(self) -> int:
        return 2 if self is ScaleDtype.F16 else 4


class Storage(IntEnum):
    WEIGHT = 0
    ACTIVATION = 1
    CACHE = 2
    INPUT = 3
    OUTPUT = 4
    VIEW = 5


class Rows(IntEnum):
    """What the leading dimension is at record time; ``dims[0]`` holds the greatest value."""

    FIXED = 0
    PASS = 1
    TAIL = 2


class Role(IntEnum):
    TARGET = 0
    ASSISTANT = 1


class Phase(IntEnum):
    ALWAYS = 0
    ROUND = 1


class QueryPositions(IntEnum):
    CONSTANT = 0
    PROGRESSIVE = 1


class Visibility(IntEnum):
    CAUSAL = 0
    DONOR = 1


class Property(IntEnum):
    """What an exporter may have proven of a program; ``certify`` has the proofs."""

    UNIQUE_SCATTER = 0
    SINGLE_COMPUTE_PASS = 1


class DraftHead(IntEnum):
    """How a draft's token is chosen: among the candidates of the best centroids, or among all tokens."""

    CENTROIDS = 0
    DENSE = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """``group``, ``scale_dtype``: of a q4 weight; the defaults elsewhere."""

    name: str
    dtype: Dtype
    storage: Storage
    rows: Rows = Rows.FIXED
    dims: tuple[int, ...]
    retain: bool = False
    group: int = Q4_GROUPS[0]
    scale_dtype: ScaleDtype = ScaleDtype.F16

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def width(self) -> int:
        """Elements of one row (of one value of the leading dimension)."""
        return math.prod(self.dims[1:])

    @property
    def scale_row_bytes(self) -> int:
        """Bytes of the scales of one row of a q4 weight."""
        return self.dims[1] // self.group * self.scale_dtype.bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Embedding:
    scale: float


@dataclass(frozen=True, kw_only=True, slots=True)
class RmsNorm:
    eps: float
    width: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    head_dim: int
    rotated_pairs: int
    denominator: int
    theta: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheWrite:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class DonorView:
    window: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Attention:
    head_dim: int
    window: int
    visibility: Visibility


@dataclass(frozen=True, kw_only=True, slots=True)
class GeluMul:
    offset: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PleCombine:
    eps: float
    context_scale: float
    scale: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TailRows:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Softcap:
    cap: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Argmax:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Concat:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class TopK:
    k: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherRows:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherLinear:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Amin:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Fill:
    offset: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Scatter:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class AddScalar:
    value: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRows:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class Accept:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class SeedWrite:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyLast:
    pass


@dataclass(frozen=True, kw_only=True, slots=True)
class ScatterUnique:
    """A Scatter of indices of which no two are equal (``et_vk.scatter_src_unique.default``). Only ``certify`` makes it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subtract:
    pass


Kind = (
    Embedding | RmsNorm | Linear | Rope | CacheWrite | DonorView | Attention | GeluMul | PleCombine | TailRows | Softcap
    | Argmax | Concat | TopK | GatherRows | GatherLinear | Amin | Fill | Scatter | AddScalar | PassRows | Accept
    | SeedWrite | CopyLast | ScatterUnique | Subtract
)

KINDS: Final[tuple[type[Kind], ...]] = (
    Embedding, RmsNorm, Linear, Rope, CacheWrite, DonorView, Attention, GeluMul, PleCombine, TailRows, Softcap, Argmax,
    Concat, TopK, GatherRows, GatherLinear, Amin, Fill, Scatter, AddScalar, PassRows, Accept, SeedWrite, CopyLast,
    ScatterUnique, Subtract,
)
"""In the order of the schema's union: entry i has the union number i + 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    kind: Kind
    role: Role
    phase: Phase
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def name(self) -> str:
        return type(self.kind).__name__


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Bytes ``begin .. begin + bytes`` of the shard file with this index; offsets count from the file's start."""

    shard: int = 0
    begin: int = 0
    bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Weight:
    """Where rows of a weight lie: all of them, or the next ones when several places name the same tensor."""

    tensor: int
    values: Span
    scales: Span | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    file: str
    bytes: int
    sha256: str
    role: Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Census:
    argmax: int
    scatter: int
    top_k: int
    attention_target: int
    attention_assistant: int
    cache_writes: int
    ops: int


def count(ops: tuple[Op, ...]) -> Census:
    """The census of a graph; the seed state counts as a cache write (X13)."""

    def of(*kinds: type[Kind], role: Role | None = None) -> int:
        return sum(isinstance(op.kind, kinds) and role in (None, op.role) for op in ops)

    return Census(
        argmax=of(Argmax), scatter=of(Scatter, ScatterUnique), top_k=of(TopK), attention_target=of(Attention, role=Role.TARGET),
        attention_assistant=of(Attention, role=Role.ASSISTANT), cache_writes=of(CacheWrite, SeedWrite), ops=len(ops),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Graph:
    """Tensors and ops of one method, before weights have a place in files. Ops stand in execution order."""

    method: str
    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    vocab: int
    hidden: int
    context: int
    prefill_rows: int
    window: int
    embedding_scale: float
    query_positions: QueryPositions = QueryPositions.CONSTANT
    draft_head: DraftHead = DraftHead.CENTROIDS

    def weights(self) -> Iterator[tuple[int, Tensor]]:
        return ((index, tensor) for index, tensor in enumerate(self.tensors) if tensor.storage is Storage.WEIGHT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    """A property that was proven, and the SHA-256 of what the proof looked at: a weight's i32 values, or the graph."""

    property: Property
    subject: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """A graph with its shards: exactly what a ``.g4p`` file holds. ``certificate``: each property at most once."""

    graph: Graph
    shards: tuple[Shard, ...]
    weights: tuple[Weight, ...]
    stop_ids: tuple[int, ...]
    source_sha256: str
    census: Census = field(default_factory=lambda: count(()))
    certificate: tuple[Proof, ...] = ()

    def counted(self) -> Program:
        """The same program with the census of its ops."""
        return replace(self, census=count(self.graph.ops))
