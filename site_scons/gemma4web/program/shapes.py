"""Shape rules of every op: dtypes, dimensions and attributes, as the schema states them beside each table."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gemma4web.errors import ProgramError
from gemma4web.program import ir
from gemma4web.program.ir import ABSENT, Dtype, Graph, Op, Rows, Storage, Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """One op with its tensors; ``need`` complains in its name."""

    number: int
    op: Op
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor, ...]
    graph: Graph

    @property
    def kind(self) -> Any:
        return self.op.kind

    def need(self, condition: bool, wanted: str) -> None:
        if not condition:
            shapes = ", ".join("absent" if t is None else f"{t.name} {list(t.dims)}"
                               for t in (*self.inputs, *self.outputs))
            raise ProgramError(f"op {self.number} ({self.op.name}): wanted {wanted}; has {shapes}")

    def tensor(self, position: int) -> Tensor:
        tensor = self.inputs[position]
        if tensor is None:
            raise ProgramError(f"op {self.number} ({self.op.name}): input {position} is absent")
        return tensor

    def floats(self, *tensors: Tensor) -> None:
        self.need(all(t.dtype is Dtype.F32 for t in tensors), "f32 " + ", ".join(t.name for t in tensors))

    def integers(self, *tensors: Tensor) -> None:
        self.need(all(t.dtype is Dtype.I32 for t in tensors), "i32 " + ", ".join(t.name for t in tensors))

    def same_rows(self, a: Tensor, b: Tensor) -> None:
        self.need((a.rows, a.dims[0]) == (b.rows, b.dims[0]), f"{a.name} and {b.name} to have equal rows")

    def covers(self, ids: Tensor, rows: Tensor) -> None:
        """An i32 tensor with an element for each row; an input i32[1, M] stands for its first elements."""
        self.integers(ids)
        whole = ids.rows is rows.rows or ids.rows is Rows.FIXED
        self.need(whole and ids.elements >= min(rows.dims[0], self.graph.prefill_rows), f"{ids.name} to cover the rows")

    def weight(self, tensor: Tensor, *dims: int, linear: bool = False) -> None:
        dtypes = (Dtype.F32, Dtype.Q4) if linear else (Dtype.F32,)
        self.need(tensor.storage is Storage.WEIGHT and tensor.dtype in dtypes and tensor.dims == dims,
                  f"weight {tensor.name} {list(dims)}")

    def finite(self, *values: float, positive: bool = False) -> None:
        self.need(all(math.isfinite(v) and (v > 0 or not positive) for v in values), "finite attributes")


def _embedding(s: Site) -> None:
    ids, table, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.covers(ids, out)
    s.floats(out)
    s.finite(s.kind.scale, positive=True)
    s.weight(table, s.graph.vocab, out.width, linear=True)


def _rms_norm(s: Site) -> None:
    x, out, width = s.tensor(0), s.outputs[0], s.kind.width
    weight, residual, scalar = s.inputs[1:]
    s.floats(x, out)
    s.same_rows(x, out)
    s.finite(s.kind.eps, positive=True)
    s.need(x.dims == out.dims and width > 0 and x.width % width == 0, f"equal shapes, a multiple of {width} columns")
    if weight is not None:
        s.weight(weight, width)
    if residual is not None:
        s.floats(residual)
        s.need(residual.dims == x.dims and residual.rows is x.rows, "a residual of the same shape")
    if scalar is not None:
        s.weight(scalar, 1)


def _linear(s: Site) -> None:
    x, weight, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.floats(x, out)
    s.same_rows(x, out)
    s.weight(weight, out.width, x.width, linear=True)


def _rope(s: Site) -> None:
    x, out, kind = s.tensor(0), s.outputs[0], s.kind
    s.floats(x, out)
    s.same_rows(x, out)
    s.covers(s.tensor(1), x)
    s.finite(kind.theta, positive=True)
    s.need(x.dims == out.dims and kind.head_dim > 0 and kind.head_dim % 2 == 0 and x.width % kind.head_dim == 0,
           f"equal shapes, heads of {kind.head_dim}")
    s.need(0 < kind.rotated_pairs <= kind.head_dim // 2 and kind.denominator > 0,
           f"1..{kind.head_dim // 2} rotated pairs and a denominator, not {kind.rotated_pairs} and {kind.denominator}")


def _is_cache(tensor: Tensor) -> bool:
    kind = tensor.storage, tensor.dtype, len(tensor.dims)
    return kind == (Storage.CACHE, Dtype.F32, 4) and tensor.dims[0] == 1


def _cache_write(s: Site) -> None:
    x, cache = s.tensor(0), s.outputs[0]
    s.floats(x)
    s.covers(s.tensor(1), x)
    s.need(_is_cache(cache) and cache.dims[2] * cache.dims[3] == x.width, "a cache [1, S, heads, d] with rows like x")


def _donor_view(s: Site) -> None:
    cache, length, view = s.tensor(0), s.tensor(1), s.outputs[0]
    s.integers(length)
    s.need(_is_cache(cache) and length.elements == 1, "a cache [1, S, heads, d] and a length i32[1]")
    _, rows, heads, head_dim = cache.dims
    s.need(view.storage is Storage.VIEW and view.dims == (1, heads, rows, head_dim), "a view [1, heads, S, d]")  # X5


def _attention(s: Site) -> None:
    q, keys, values, where = (s.tensor(position) for position in range(4))
    out, kind = s.outputs[0], s.kind
    s.floats(q, out)
    s.same_rows(q, out)
    s.need(q.dims == out.dims and kind.head_dim > 0 and q.width % kind.head_dim == 0, f"heads of {kind.head_dim}")
    s.need(len(keys.dims) == 4 and keys.dims == values.dims, "keys and values of one shape")
    donor = kind.visibility is ir.Visibility.DONOR
    if donor:
        s.need(keys.storage is values.storage is Storage.VIEW, "donor views")
        s.integers(where)
        s.need(where.elements == 1, "a donor length i32[1]")
    else:
        s.need(_is_cache(keys) and _is_cache(values), "caches")
        s.covers(where, q)
    heads = keys.dims[1] if donor else keys.dims[2]
    s.need(keys.dims[3] == kind.head_dim and (q.width // kind.head_dim) % heads == 0,
           f"keys of width {kind.head_dim}, query heads a multiple of {heads}")


def _gelu_mul(s: Site) -> None:
    a, b, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.floats(a, b, out)
    s.same_rows(a, out)
    s.same_rows(a, b)
    s.need(a.dims == out.dims and s.kind.offset + a.width <= b.width, f"columns {s.kind.offset}.. in the second input")


def _ple_combine(s: Site) -> None:
    context, token, weight, out = s.tensor(0), s.tensor(1), s.tensor(2), s.outputs[0]
    s.floats(context, token, out)
    s.same_rows(context, out)
    s.finite(s.kind.eps, s.kind.context_scale, s.kind.scale, positive=True)
    s.need(context.dims == token.dims == out.dims and context.rows is token.rows, "equal shapes")
    s.weight(weight, weight.elements)
    s.need(context.width % weight.elements == 0, f"a multiple of {weight.elements} columns")


def _tail_rows(s: Site) -> None:
    x, out = s.tensor(0), s.outputs[0]
    s.need(x.dtype is out.dtype and out.rows is Rows.TAIL, "rows of the same dtype")
    if x.dtype is Dtype.I32:
        s.need(out.width == 1 and x.rows in (Rows.PASS, Rows.FIXED), "i32 rows")
    else:
        s.need(x.rows is Rows.PASS and x.dims[1:] == out.dims[1:], "rows of the pass, equal widths")


def _softcap(s: Site) -> None:
    x, out = s.tensor(0), s.outputs[0]
    s.floats(x, out)
    s.same_rows(x, out)
    s.finite(s.kind.cap, positive=True)
    s.need(x.dims == out.dims, "equal shapes")


def _argmax(s: Site) -> None:
    x, out = s.tensor(0), s.outputs[0]
    s.floats(x)
    s.integers(out)
    s.same_rows(x, out)
    s.need(out.width == 1 and x.width > 0, "one i32 a row")


def _concat(s: Site) -> None:
    a, b, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.floats(a, b, out)
    s.same_rows(a, out)
    s.need(b.dims[0] == a.dims[0] and out.width == a.width + b.width, "joined columns")


def _top_k(s: Site) -> None:
    x, (values, indices), k = s.tensor(0), s.outputs, s.kind.k
    s.floats(x, values)
    s.integers(indices)
    s.need(x.dims[0] == 1 and 0 < k <= x.width and values.dims == indices.dims == (1, k), f"[1, n >= {k}] and [1, {k}]")


def _gather_rows(s: Site) -> None:
    table, index, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.integers(table, index, out)
    s.need(table.storage is Storage.WEIGHT and len(table.dims) == 2, "a table [C, G]")
    s.need(out.dims == (1, index.elements * table.dims[1]), "one table row an index")


def _gather_linear(s: Site) -> None:
    y, weight, ids, out = s.tensor(0), s.tensor(1), s.tensor(2), s.outputs[0]
    s.floats(y, out)
    s.integers(ids)
    s.weight(weight, s.graph.vocab, y.width, linear=True)
    s.need(y.dims[0] == 1 and out.dims == ids.dims and ids.dims[0] == 1, "one score an id")


def _amin(s: Site) -> None:
    s.floats(s.tensor(0), s.outputs[0])
    s.need(s.outputs[0].dims == (1, 1) and s.tensor(0).dims[0] == 1, "[1, n] -> [1, 1]")


def _fill(s: Site) -> None:
    s.floats(s.tensor(0), s.outputs[0])
    s.finite(s.kind.offset)
    s.need(s.tensor(0).dims == (1, 1) and s.outputs[0].dims == (1, s.graph.vocab), "[1, 1] -> [1, V]")


def _scatter(s: Site) -> None:
    template, index, source, out = s.tensor(0), s.tensor(1), s.tensor(2), s.outputs[0]
    s.floats(template, source, out)
    s.integers(index)
    s.need(template.dims == out.dims == (1, s.graph.vocab), "a template [1, V]")
    s.need(index.dims == source.dims and index.dims[0] == 1, "one source an index")


def _add_scalar(s: Site) -> None:
    x, out = s.tensor(0), s.outputs[0]
    s.integers(x, out)
    s.need(_alike(x, out), "equal shapes")


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.dims, a.rows) == (b.dims, b.rows)


def _subtract(s: Site) -> None:
    a, b, out = s.tensor(0), s.tensor(1), s.outputs[0]
    s.integers(a, b, out)
    one = b.elements == 1 and b.rows is Rows.FIXED
    s.need(_alike(a, out) and (one or _alike(a, b)), "equal shapes, or one integer to subtract")


def _pass_rows(s: Site) -> None:
    tensors = [s.tensor(position) for position in range(5)]
    s.integers(*tensors, *s.outputs)
    s.need(all(t.elements == 1 for t in tensors[2:]), "a flag and two drafts i32[1]")
    s.need(all(t.rows is Rows.PASS and t.width == 1 for t in s.outputs), "ids and positions of the pass")


def _accept(s: Site) -> None:
    tensors = [s.tensor(position) for position in range(4)]
    s.integers(*tensors, *s.outputs)
    s.need(all(t.elements == 1 for t in tensors[:3]), "a flag and two drafts i32[1]")
    s.need(tensors[3].rows is not Rows.FIXED and tensors[3].dims[0] >= ir.VERIFY_ROWS, "greedy rows")
    s.need(tuple(t.dims for t in s.outputs) == ((1, 2), (1, 3), (1, 1), (1, 1)), "outputs [1,2] [1,3] [1,1] [1,1]")


def _seed_write(s: Site) -> None:
    flag, hidden, match, (seed, probe) = s.tensor(0), s.tensor(1), s.tensor(2), s.outputs
    s.integers(flag, match)
    s.floats(hidden, probe)
    s.need(flag.elements == match.elements == 1 and probe.dims == (1, 1), "a flag, a match count, a probe [1, 1]")
    s.need(_is_cache(seed) and seed.dims == (1, 1, 1, hidden.width), "a seed cache [1, 1, 1, H]")


def _copy_last(s: Site) -> None:
    s.integers(s.tensor(0), s.outputs[0])
    s.need(s.tensor(0).width == 1 and s.outputs[0].dims == (1, 1), "i32 rows -> [1, 1]")


_RULES: Final[dict[type[ir.Kind], tuple[int, int, Callable[[Site], None]]]] = {
    ir.Embedding: (2, 1, _embedding), ir.RmsNorm: (4, 1, _rms_norm), ir.Linear: (2, 1, _linear),
    ir.Rope: (2, 1, _rope), ir.CacheWrite: (2, 1, _cache_write), ir.DonorView: (2, 1, _donor_view),
    ir.Attention: (4, 1, _attention), ir.GeluMul: (2, 1, _gelu_mul), ir.PleCombine: (3, 1, _ple_combine),
    ir.TailRows: (1, 1, _tail_rows), ir.Softcap: (1, 1, _softcap), ir.Argmax: (1, 1, _argmax),
    ir.Concat: (2, 1, _concat), ir.TopK: (1, 2, _top_k), ir.GatherRows: (2, 1, _gather_rows),
    ir.GatherLinear: (3, 1, _gather_linear), ir.Amin: (1, 1, _amin), ir.Fill: (1, 1, _fill),
    ir.Scatter: (3, 1, _scatter), ir.AddScalar: (1, 1, _add_scalar), ir.PassRows: (5, 2, _pass_rows),
    ir.Accept: (4, 4, _accept), ir.SeedWrite: (3, 2, _seed_write), ir.CopyLast: (1, 1, _copy_last),
    ir.ScatterUnique: (3, 1, _scatter), ir.Subtract: (2, 1, _subtract),
}
"""Kind -> (number of inputs, number of outputs, rule)."""


def check_op(graph: Graph, number: int) -> None:
    """Checks one op. Raises ProgramError naming it, what it has and what was wanted."""
    op, count = graph.ops[number], len(graph.tensors)
    inputs, outputs, rule = _RULES[type(op.kind)]
    if (len(op.inputs), len(op.outputs)) != (inputs, outputs):
        raise ProgramError(f"op {number} ({op.name}): {len(op.inputs)} inputs and {len(op.outputs)} outputs, "
                           f"wanted {inputs} and {outputs}")
    optional = isinstance(op.kind, ir.RmsNorm)
    for index in (*op.inputs, *op.outputs):
        if not 0 <= index < count and not (optional and index == ABSENT and index in op.inputs[1:]):
            raise ProgramError(f"op {number} ({op.name}): tensor {index} does not exist")
    rule(Site(
        number=number, op=op, graph=graph, outputs=tuple(graph.tensors[index] for index in op.outputs),
        inputs=tuple(None if index == ABSENT else graph.tensors[index] for index in op.inputs),
    ))
