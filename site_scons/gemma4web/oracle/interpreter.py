"""Runs a program op by op in numpy: the proof of an exported graph, before any GPU is involved.

Reads nothing but the FlatBuffer and the shards. Tensors are held per pass; caches live across passes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from gemma4web.errors import ProgramError
from gemma4web.export.folder import Packed, Stored, load_weights
from gemma4web.oracle import ops
from gemma4web.oracle.ops import Array
from gemma4web.program import ir
from gemma4web.program.ir import ABSENT, Op, Phase, Program, Rows, Storage


class Machine:
    """One program with its weights and caches. ``swap_nibbles`` and ``exact_gelu`` are faults for tests.

    After ``run`` every tensor of the pass can be read with ``tensor``; a retained one and an output always exist then,
    unless only a round computes it.
    """

    def __init__(
        self, program: Program, weights: Mapping[str, Stored], *, dtype: npt.DTypeLike = np.float64,
        swap_nibbles: bool = False, exact_gelu: bool = False,
    ) -> None:
        self.program, self.graph, self._dtype, self._exact_gelu = program, program.graph, dtype, exact_gelu
        self._names = {tensor.name: index for index, tensor in enumerate(self.graph.tensors)}
        self._constant: dict[int, Array] = {}
        for index, tensor in self.graph.weights():
            stored = weights[tensor.name]
            self._constant[index] = (
                ops.unpack_q4(stored.values, stored.scales, dtype=dtype, swap_nibbles=swap_nibbles)
                if isinstance(stored, Packed) else stored if tensor.dtype is ir.Dtype.I32 else stored.astype(dtype)
            )
        self._caches: dict[int, Array] = {}
        self._values: dict[int, Array] = {}
        self._rows = {Rows.PASS: 0, Rows.TAIL: 0}
        self.reset()

    def reset(self) -> None:
        """Clears caches and everything of the last pass."""
        self._caches = {index: np.zeros(tensor.dims, self._dtype) for index, tensor in enumerate(self.graph.tensors)
                        if tensor.storage is Storage.CACHE}
        self._values = {}

    def tensor(self, name: str) -> Array:
        """A tensor's value after the last pass. Raises ProgramError for an unknown or uncomputed one."""
        index = self._names.get(name, ABSENT)
        for holder in (self._values, self._caches, self._constant):
            if index in holder:
                return holder[index]
        raise ProgramError(f"tensor {name} " + ("does not exist" if index == ABSENT else "was not computed"))

    def run(self, inputs: Mapping[str, npt.ArrayLike], rows: int) -> dict[str, Array]:
        """One pass over ``rows`` rows; ``inputs`` by name, shorter ones are padded with zeros. Returns the outputs."""
        self._values = {}
        for index in self.graph.inputs:
            tensor = self.graph.tensors[index]
            given = np.asarray(inputs[tensor.name], np.int32).reshape(-1)
            value = np.zeros(tensor.elements, np.int32)
            value[: given.size] = given
            self._values[index] = value.reshape(tensor.dims)
        round_ = "round_flag" in self._names and bool(self.tensor("round_flag").reshape(-1)[0])
        self._check_rows(rows, round_)
        self._rows = {Rows.PASS: rows, Rows.TAIL: ir.VERIFY_ROWS if round_ else 1}
        for number, op in enumerate(self.graph.ops):
            if op.phase is Phase.ALWAYS or round_:
                self._execute(number, op)
        return {self.graph.tensors[index].name: self._values[index] for index in self.graph.outputs}

    def _check_rows(self, rows: int, round_: bool) -> None:
        if round_ and rows != ir.VERIFY_ROWS or not 1 <= rows <= max(self.graph.prefill_rows, ir.VERIFY_ROWS):
            raise ProgramError(f"a pass of {rows} rows, wanted 3 in a round, else 1..{self.graph.prefill_rows}")
        if round_:
            length, most = int(self.tensor("donor_length").reshape(-1)[0]), self.graph.context + ir.DRAFTS - 3
            if not 1 <= length <= most:  # X6
                raise ProgramError(f"donor length {length}, wanted 1..{most}")

    # ---- values

    def _input(self, op: Op, position: int) -> Array | None:
        index = op.inputs[position]
        if index == ABSENT:
            return None
        for holder in (self._values, self._caches, self._constant):
            if index in holder:
                return holder[index]
        raise ProgramError(f"{op.name} reads {self.graph.tensors[index].name}, which nothing wrote")

    def _need(self, op: Op, position: int) -> Array:
        value = self._input(op, position)
        if value is None:
            raise ProgramError(f"{op.name} lacks its input {position}")
        return value

    def _row_count(self, op: Op) -> int:
        tensor = self.graph.tensors[op.outputs[0]]
        return self._rows.get(tensor.rows, tensor.dims[0])

    def _ids(self, op: Op, position: int, rows: int) -> Array:
        """The first ``rows`` elements of an i32 tensor, however it is shaped."""
        return self._need(op, position).reshape(-1)[:rows]

    def _scalar(self, op: Op, position: int) -> int:
        value = self._input(op, position)
        return 0 if value is None else int(value.reshape(-1)[0])

    def _execute(self, number: int, op: Op) -> None:
        try:
            results = _HANDLERS[type(op.kind)](self, op)
        except (ValueError, IndexError) as error:
            raise ProgramError(f"op {number} ({op.name}): {error}") from None
        for index, value in zip(op.outputs, results, strict=True):
            tensor = self.graph.tensors[index]
            if tensor.storage is Storage.CACHE:
                self._caches[index] = value
                continue
            wanted = (self._rows.get(tensor.rows, tensor.dims[0]), *tensor.dims[1:])
            if value.shape != wanted:
                raise ProgramError(f"op {number} ({op.name}) gave {tensor.name} {value.shape}, wanted {wanted}")
            self._values[index] = value

    # ---- ops

    def _embedding(self, op: Op) -> list[Array]:
        ids = self._ids(op, 0, self._row_count(op))
        return [ops.embedding(ids, self._need(op, 1), op.kind.scale, dtype=self._dtype)]  # type: ignore[union-attr]

    def _rms_norm(self, op: Op) -> list[Array]:
        kind: Any = op.kind
        return [ops.rms_norm(self._need(op, 0), width=kind.width, eps=kind.eps, weight=self._input(op, 1),
                             residual=self._input(op, 2), scalar=self._input(op, 3), dtype=self._dtype)]

    def _linear(self, op: Op) -> list[Array]:
        return [ops.linear(self._need(op, 0), self._need(op, 1), dtype=self._dtype)]

    def _rope(self, op: Op) -> list[Array]:
        kind: Any = op.kind
        x = self._need(op, 0)
        return [ops.rope(x, self._ids(op, 1, x.shape[0]), head_dim=kind.head_dim, rotated_pairs=kind.rotated_pairs,
                         denominator=kind.denominator, theta=kind.theta, dtype=self._dtype)]

    def _cache_write(self, op: Op) -> list[Array]:
        x = self._need(op, 0)
        return [ops.cache_write(x, self._ids(op, 1, x.shape[0]), self._caches[op.outputs[0]])]

    def _donor_view(self, op: Op) -> list[Array]:
        return [ops.donor_view(self._need(op, 0))]

    def _attention(self, op: Op) -> list[Array]:
        kind: Any = op.kind
        q = self._need(op, 0)
        donor = kind.visibility is ir.Visibility.DONOR
        where = self._ids(op, 3, 1 if donor else q.shape[0])
        return [ops.attention(q, self._need(op, 1), self._need(op, 2), where, head_dim=kind.head_dim,
                              window=kind.window, donor=donor, dtype=self._dtype)]

    def _gelu_mul(self, op: Op) -> list[Array]:
        kind: Any = op.kind
        return [ops.gelu_mul(self._need(op, 0), self._need(op, 1), offset=kind.offset, exact=self._exact_gelu,
                             dtype=self._dtype)]

    def _ple_combine(self, op: Op) -> list[Array]:
        kind: Any = op.kind
        return [ops.ple_combine(self._need(op, 0), self._need(op, 1), self._need(op, 2), eps=kind.eps,
                                context_scale=kind.context_scale, scale=kind.scale, dtype=self._dtype)]

    def _tail_rows(self, op: Op) -> list[Array]:
        x = self._need(op, 0)
        if x.dtype == np.int32:
            x = x.reshape(-1)[: self._rows[Rows.PASS]]
        return [ops.tail_rows(x, self._rows[Rows.TAIL])]

    def _softcap(self, op: Op) -> list[Array]:
        return [ops.softcap(self._need(op, 0), op.kind.cap, dtype=self._dtype)]  # type: ignore[union-attr]

    def _argmax(self, op: Op) -> list[Array]:
        return [ops.argmax(self._need(op, 0))]

    def _concat(self, op: Op) -> list[Array]:
        a, b = self._need(op, 0), self._need(op, 1)
        return [ops.concat(a, b.reshape(a.shape[0], -1))]

    def _top_k(self, op: Op) -> list[Array]:
        return list(ops.top_k(self._need(op, 0), op.kind.k))  # type: ignore[union-attr]

    def _gather_rows(self, op: Op) -> list[Array]:
        return [ops.gather_rows(self._need(op, 0), self._need(op, 1))]

    def _gather_linear(self, op: Op) -> list[Array]:
        return [ops.gather_linear(self._need(op, 0), self._need(op, 1), self._need(op, 2), dtype=self._dtype)]

    def _amin(self, op: Op) -> list[Array]:
        return [ops.amin(self._need(op, 0))]

    def _fill(self, op: Op) -> list[Array]:
        size = self.graph.tensors[op.outputs[0]].dims[1]
        return [ops.fill(self._need(op, 0), size, op.kind.offset)]  # type: ignore[union-attr]

    def _scatter(self, op: Op) -> list[Array]:
        return [ops.scatter(self._need(op, 0), self._need(op, 1), self._need(op, 2))]

    def _scatter_unique(self, op: Op) -> list[Array]:
        return [ops.scatter_unique(self._need(op, 0), self._need(op, 1), self._need(op, 2))]

    def _add_scalar(self, op: Op) -> list[Array]:
        return [ops.add_scalar(self._need(op, 0), op.kind.value)]  # type: ignore[union-attr]

    def _subtract(self, op: Op) -> list[Array]:
        return [ops.subtract(self._need(op, 0), self._need(op, 1))]

    def _pass_rows(self, op: Op) -> list[Array]:
        flag = self._scalar(op, 2)
        drafts = (self._scalar(op, 3), self._scalar(op, 4)) if flag else (0, 0)
        return list(ops.pass_rows(self._need(op, 0), self._need(op, 1), flag, *drafts, rows=self._rows[Rows.PASS]))

    def _accept(self, op: Op) -> list[Array]:
        flag = self._scalar(op, 0)
        drafts = (self._scalar(op, 1), self._scalar(op, 2)) if flag else (0, 0)
        return list(ops.accept(flag, *drafts, self._need(op, 3)))

    def _seed_write(self, op: Op) -> list[Array]:
        return list(ops.seed_write(self._scalar(op, 0), self._need(op, 1), self._scalar(op, 2)))

    def _copy_last(self, op: Op) -> list[Array]:
        return [ops.copy_last(self._need(op, 0))]


_HANDLERS: Final[dict[type[ir.Kind], Callable[[Machine, Op], list[Array]]]] = {
    ir.Embedding: Machine._embedding, ir.RmsNorm: Machine._rms_norm, ir.Linear: Machine._linear,
    ir.Rope: Machine._rope, ir.CacheWrite: Machine._cache_write, ir.DonorView: Machine._donor_view,
    ir.Attention: Machine._attention, ir.GeluMul: Machine._gelu_mul, ir.PleCombine: Machine._ple_combine,
    ir.TailRows: Machine._tail_rows, ir.Softcap: Machine._softcap, ir.Argmax: Machine._argmax,
    ir.Concat: Machine._concat, ir.TopK: Machine._top_k, ir.GatherRows: Machine._gather_rows,
    ir.GatherLinear: Machine._gather_linear, ir.Amin: Machine._amin, ir.Fill: Machine._fill,
    ir.Scatter: Machine._scatter, ir.ScatterUnique: Machine._scatter_unique,
    ir.AddScalar: Machine._add_scalar, ir.Subtract: Machine._subtract, ir.PassRows: Machine._pass_rows,
    ir.Accept: Machine._accept, ir.SeedWrite: Machine._seed_write, ir.CopyLast: Machine._copy_last,
}


def load(program: Program, folder: Path, **settings: Any) -> Machine:
    """A machine for a program with the weights of an exported folder."""
    return Machine(program, load_weights(program, folder), **settings)


Watch = Callable[[Machine, int, int], None]
"""Called after every pass with the machine, the position of the pass's first row, and its rows."""


class PlainProgram:
    """Plain decoding engine over ``text_decoder``. ``watch`` sees every pass."""

    def __init__(self, machine: Machine, watch: Watch | None = None) -> None:
        self.machine, self._watch = machine, watch

    def _pass(self, ids: Sequence[int], position: int) -> int:
        out = self.machine.run({"ids": ids, "positions": np.arange(position, position + len(ids))}, len(ids))
        if self._watch:
            self._watch(self.machine, position, len(ids))
        return int(out["next_token"][0, 0])

    def prefill(self, ids: Sequence[int]) -> int:
        self.machine.reset()
        chunk, token = self.machine.graph.prefill_rows, -1
        for begin in range(0, len(ids), chunk):
            token = self._pass(ids[begin : begin + chunk], begin)
        return token

    def step(self, token: int, position: int) -> int:
        return self._pass([token], position)


class RoundProgram:
    """Speculative decoding engine over ``k2_round``; prefills and rounds are passes of the same program."""

    def __init__(self, machine: Machine, watch: Watch | None = None) -> None:
        self.machine, self._watch = machine, watch

    def _pass(self, ids: Sequence[int], position: int, flag: int) -> dict[str, Array]:
        count = len(ids)
        out = self.machine.run({"ids": ids, "positions": np.arange(position, position + count), "round_flag": flag,
                                "donor_length": position}, ir.VERIFY_ROWS if flag else count)
        if not np.isfinite(out["state_probe"]).all():  # X3
            raise ProgramError(f"the state probe is {out['state_probe'][0, 0]} at position {position}")
        if self._watch:
            self._watch(self.machine, position, ir.VERIFY_ROWS if flag else count)
        return out

    def prefill(self, ids: Sequence[int]) -> int:
        self.machine.reset()
        chunk, token = self.machine.graph.prefill_rows, -1
        for begin in range(0, len(ids), chunk):
            token = int(self._pass(ids[begin : begin + chunk], begin, 0)["bonus"][0, 0])
        return token

    def round(self, token: int, position: int, drafts: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if drafts != ir.DRAFTS:
            raise ProgramError(f"{drafts} drafts, the program always makes {ir.DRAFTS}")
        out = self._pass([token], position, 1)
        candidates, greedy = (tuple(int(x) for x in out[name][0]) for name in ("candidates", "target_greedy"))
        match, bonus = int(out["match_count"][0, 0]), int(out["bonus"][0, 0])
        if bonus != greedy[match] or candidates[:match] != greedy[:match]:
            raise ProgramError(f"match count {match} and bonus {bonus} contradict {candidates} and {greedy}")
        return candidates, greedy
