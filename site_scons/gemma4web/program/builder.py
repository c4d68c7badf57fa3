"""GraphBuilder: appends tensors and ops one at a time and infers the shape of every result."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from gemma4web.program import ir
from gemma4web.program.ir import ABSENT, Q4_GROUPS, Dtype, Op, Phase, Role, Rows, ScaleDtype, Storage, Tensor


class GraphBuilder:
    """Collects one method's tensors and ops. A tensor is referred to by its index; names are unique.

    ``role`` and ``phase`` apply to every op appended inside ``section``.
    """

    def __init__(self, *, linear_dtype: Dtype, pass_rows: int, tail_rows: int, group: int = Q4_GROUPS[0],
                 scale_dtype: ScaleDtype = ScaleDtype.F16) -> None:
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._index: dict[str, int] = {}
        self._linear_dtype, self._group, self._scale_dtype = linear_dtype, group, scale_dtype
        self._greatest = {Rows.PASS: pass_rows, Rows.TAIL: tail_rows}
        self._role, self._phase = Role.TARGET, Phase.ALWAYS

    @contextmanager
    def section(self, role: Role, phase: Phase) -> Iterator[None]:
        before = self._role, self._phase
        self._role, self._phase = role, phase
        try:
            yield
        finally:
            self._role, self._phase = before

    # ---- tensors

    def add(self, tensor: Tensor) -> int:
        if tensor.name in self._index:
            raise AssertionError(f"two tensors are called {tensor.name}")
        self._tensors.append(tensor)
        self._index[tensor.name] = len(self._tensors) - 1
        return len(self._tensors) - 1

    def _weight(self, tensor: Tensor) -> int:
        if tensor.name in self._index:
            known = self._tensors[self._index[tensor.name]]
            if known != tensor:
                raise AssertionError(f"{tensor.name} is used as {tensor} and as {known}")
            return self._index[tensor.name]
        return self.add(tensor)

    def matrix(self, name: str, rows: int, columns: int) -> int:
        """A linear weight [rows, columns], in the export's weight form: of q4 in the largest groups, up to the export's,
        that divide the columns."""
        tensor = Tensor(name=name, dtype=self._linear_dtype, storage=Storage.WEIGHT, dims=(rows, columns))
        if tensor.dtype is Dtype.Q4:
            fitting = [group for group in Q4_GROUPS if group <= self._group and columns % group == 0]
            tensor = replace(tensor, group=max(fitting, default=Q4_GROUPS[0]), scale_dtype=self._scale_dtype)
        return self._weight(tensor)

    def vector(self, name: str, size: int) -> int:
        """A norm weight or scalar, always f32."""
        return self._weight(Tensor(name=name, dtype=Dtype.F32, storage=Storage.WEIGHT, dims=(size,)))

    def table(self, name: str, rows: int, columns: int) -> int:
        """A table of ids, i32."""
        return self._weight(Tensor(name=name, dtype=Dtype.I32, storage=Storage.WEIGHT, dims=(rows, columns)))

    def cache(self, name: str, rows: int, heads: int, head_dim: int) -> int:
        """A cache [1, rows, heads, head_dim] f32, batch-sequence-head-dim."""
        return self.add(Tensor(name=name, dtype=Dtype.F32, storage=Storage.CACHE, dims=(1, rows, heads, head_dim)))

    def input(self, name: str, *dims: int) -> int:
        return self.add(Tensor(name=name, dtype=Dtype.I32, storage=Storage.INPUT, dims=dims))

    def output(self, name: str, dtype: Dtype, *dims: int) -> int:
        return self.add(Tensor(name=name, dtype=dtype, storage=Storage.OUTPUT, dims=dims))

    def _activation(
        self, name: str, dims: tuple[int, ...], *, dtype: Dtype = Dtype.F32, rows: Rows = Rows.FIXED,
        retain: bool = False,
    ) -> int:
        if rows in self._greatest:
            dims = (self._greatest[rows], *dims[1:])
        return self.add(Tensor(name=name, dtype=dtype, storage=Storage.ACTIVATION, rows=rows, dims=dims, retain=retain))

    def __getitem__(self, tensor: int) -> Tensor:
        return self._tensors[tensor]

    def emit(self, kind: ir.Kind, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> None:
        self._ops.append(Op(kind=kind, role=self._role, phase=self._phase, inputs=inputs, outputs=outputs))

    def _like(self, name: str, source: int, width: int, *, retain: bool = False) -> int:
        """An f32 activation with the rows of ``source`` and ``width`` columns."""
        tensor = self._tensors[source]
        return self._activation(name, (tensor.dims[0], width), rows=tensor.rows, retain=retain)

    # ---- ops; each returns its result

    def embedding(self, name: str, ids: int, table: int, scale: float, rows: Rows) -> int:
        out = self._activation(name, (1, self._tensors[table].dims[1]), rows=rows)
        self.emit(ir.Embedding(scale=scale), (ids, table), (out,))
        return out

    def rms_norm(
        self, name: str, x: int, eps: float, *, width: int | None = None, weight: int = ABSENT, residual: int = ABSENT,
        scalar: int = ABSENT, retain: bool = False,
    ) -> int:
        columns = self._tensors[x].width
        out = self._like(name, x, columns, retain=retain)
        self.emit(ir.RmsNorm(eps=eps, width=width or columns), (x, weight, residual, scalar), (out,))
        return out

    def linear(self, name: str, x: int, weight: int, *, retain: bool = False) -> int:
        out = self._like(name, x, self._tensors[weight].dims[0], retain=retain)
        self.emit(ir.Linear(), (x, weight), (out,))
        return out

    def rope(self, name: str, x: int, positions: int, kind: ir.Rope) -> int:
        out = self._like(name, x, self._tensors[x].width)
        self.emit(kind, (x, positions), (out,))
        return out

    def cache_write(self, x: int, positions: int, cache: int) -> None:
        self.emit(ir.CacheWrite(), (x, positions), (cache,))

    def donor_view(self, name: str, cache: int, donor_length: int, window: int) -> int:
        _, rows, heads, head_dim = self._tensors[cache].dims
        out = self.add(Tensor(name=name, dtype=Dtype.F32, storage=Storage.VIEW, dims=(1, heads, rows, head_dim)))
        self.emit(ir.DonorView(window=window), (cache, donor_length), (out,))
        return out

    def attention(self, name: str, q: int, keys: int, values: int, where: int, kind: ir.Attention) -> int:
        out = self._like(name, q, self._tensors[q].width)
        self.emit(kind, (q, keys, values, where), (out,))
        return out

    def gelu_mul(self, name: str, a: int, b: int, offset: int = 0) -> int:
        out = self._like(name, a, self._tensors[a].width)
        self.emit(ir.GeluMul(offset=offset), (a, b), (out,))
        return out

    def ple_combine(self, name: str, context: int, token: int, weight: int, kind: ir.PleCombine) -> int:
        out = self._like(name, context, self._tensors[context].width)
        self.emit(kind, (context, token, weight), (out,))
        return out

    def tail_rows(self, name: str, x: int) -> int:
        source = self._tensors[x]
        # A positions input i32[1, M] stands for its rows i32[M].
        dims = (1,) if source.dtype is Dtype.I32 else (1, source.width)
        out = self._activation(name, dims, dtype=source.dtype, rows=Rows.TAIL)
        self.emit(ir.TailRows(), (x,), (out,))
        return out

    def softcap(self, name: str, x: int, cap: float, *, retain: bool = False) -> int:
        out = self._like(name, x, self._tensors[x].width, retain=retain)
        self.emit(ir.Softcap(cap=cap), (x,), (out,))
        return out

    def argmax(self, name: str, x: int) -> int:
        source = self._tensors[x]
        out = self._activation(name, (source.dims[0],), dtype=Dtype.I32, rows=source.rows)
        self.emit(ir.Argmax(), (x,), (out,))
        return out

    def concat(self, name: str, a: int, b: int) -> int:
        out = self._like(name, a, self._tensors[a].width + self._tensors[b].width)
        self.emit(ir.Concat(), (a, b), (out,))
        return out

    def top_k(self, name: str, x: int, k: int) -> int:
        """Returns the indices; the values are a tensor of their own."""
        values = self._activation(f"{name}.values", (1, k))
        indices = self._activation(f"{name}.indices", (1, k), dtype=Dtype.I32)
        self.emit(ir.TopK(k=k), (x,), (values, indices))
        return indices

    def gather_rows(self, name: str, table: int, index: int) -> int:
        size = self._tensors[index].width * self._tensors[table].dims[1]
        out = self._activation(name, (1, size), dtype=Dtype.I32)
        self.emit(ir.GatherRows(), (table, index), (out,))
        return out

    def gather_linear(self, name: str, y: int, weight: int, ids: int) -> int:
        out = self._activation(name, (1, self._tensors[ids].width))
        self.emit(ir.GatherLinear(), (y, weight, ids), (out,))
        return out

    def amin(self, name: str, x: int) -> int:
        out = self._activation(name, (1, 1))
        self.emit(ir.Amin(), (x,), (out,))
        return out

    def fill(self, name: str, scalar: int, size: int, offset: float) -> int:
        out = self._activation(name, (1, size))
        self.emit(ir.Fill(offset=offset), (scalar,), (out,))
        return out

    def scatter(self, name: str, template: int, index: int, source: int, *, retain: bool = False) -> int:
        out = self._activation(name, self._tensors[template].dims, retain=retain)
        self.emit(ir.Scatter(), (template, index, source), (out,))
        return out

    def add_scalar(self, name: str, x: int, value: int) -> int:
        out = self._integers_like(name, x)
        self.emit(ir.AddScalar(value=value), (x,), (out,))
        return out

    def subtract(self, name: str, a: int, b: int) -> int:
        out = self._integers_like(name, a)
        self.emit(ir.Subtract(), (a, b), (out,))
        return out

    def _integers_like(self, name: str, source: int) -> int:
        tensor = self._tensors[source]
        return self._activation(name, tensor.dims, dtype=Dtype.I32, rows=tensor.rows)

    def pass_rows(self, ids: int, positions: int, flag: int, drafts: tuple[int, int]) -> tuple[int, int]:
        out = tuple(self._activation(f"pass_{name}", (1,), dtype=Dtype.I32, rows=Rows.PASS)
                    for name in ("ids", "positions"))
        self.emit(ir.PassRows(), (ids, positions, flag, *drafts), out)
        return out[0], out[1]

    # ---- result

    def graph(
        self, *, method: str, inputs: tuple[int, ...], outputs: tuple[int, ...], vocab: int, hidden: int, context: int,
        prefill_rows: int, window: int, embedding_scale: float, query_positions: ir.QueryPositions,
        draft_head: ir.DraftHead = ir.DraftHead.CENTROIDS,
    ) -> ir.Graph:
        return ir.Graph(
            method=method, tensors=tuple(self._tensors), ops=tuple(self._ops), inputs=inputs, outputs=outputs,
            vocab=vocab, hidden=hidden, context=context, prefill_rows=prefill_rows, window=window,
            embedding_scale=embedding_scale, query_positions=query_positions, draft_head=draft_head,
        )
