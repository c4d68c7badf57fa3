"""The other side: ONNX models of one operator, or of those that a fused kernel of ours stands for, as onnxruntime-web's WebGPU provider runs them.

Weights are inputs, not initialisers: they then lie in the very GPU buffers that our kernels read, and rotate with them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gemma4web.errors import UsageError
from gemma4web.kernel_bench.cases import EPSILON
from gemma4web.kernel_bench.contenders import Result
from gemma4web.kernel_bench.rows import GROUP, Operation, Row

NAME: Final = "onnxruntime-web"
MODULE: Final = "dist/ort.webgpu.bundle.min.mjs"
_FILES: Final = ("package.json", MODULE, "dist/ort-wasm-simd-threaded.asyncify.mjs",
                 "dist/ort-wasm-simd-threaded.asyncify.wasm")
_OPSET: Final = 23
"""The first with RMSNormalization."""
_IR_VERSION: Final = 10
_MICROSOFT: Final = "com.microsoft"
TOLERANCES: Final[Mapping[Operation, tuple[float, float]]] = {
    Operation.LINEAR: (2e-5, 4e-3), Operation.TOPK: (0.0, 0.0), Operation.SCATTER: (0.0, 0.0),
    Operation.RMS_NORM: (1e-5, 4e-3), Operation.ATTENTION: (5e-5, 8e-3), Operation.PREFILL: (5e-5, 8e-3),
    Operation.GATED: (2e-5, 8e-3), Operation.QKV: (2e-5, 4e-3), Operation.NORM_PAIR: (2e-5, 8e-3),
}
"""Error by scale that is accepted of the peer in f32 and in f16: orders of summation are its own business."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """An input or output of a model in the row's buffer ``buffer``, as ``dtype`` (ONNX name) of shape ``dims``."""

    name: str
    buffer: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """One session: ``model`` is a serialised ONNX ModelProto."""

    name: str
    f16: bool
    model: bytes
    feeds: tuple[Port, ...]
    fetches: tuple[Port, ...]
    results: Mapping[str, Result]
    tolerance: float


@dataclass(frozen=True, kw_only=True, slots=True)
class _Node:
    """One operator; ``outputs`` are its tensors, of which others may read some."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, int | float | str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Graph:
    """``constants`` are initialisers: (name, ONNX type, dims, values)."""

    nodes: tuple[_Node, ...]
    feeds: tuple[Port, ...]
    fetches: tuple[Port, ...]
    constants: tuple[tuple[str, str, tuple[int, ...], tuple[int, ...]], ...] = ()


def onnx_module() -> Any:
    """The onnx package. Raises UsageError when it is not installed."""
    try:
        import onnx
    except ImportError as error:
        raise UsageError(f"the peer's models are written with the Python package onnx, which cannot be imported: {error}",
                         advice="pip install -e '.[bench]', or measure without the peer: --no-peer") from None
    return onnx


def check_package(folder: Path) -> str:
    """The version of the onnxruntime-web package in ``folder``. Raises UsageError when it is none or not whole."""
    if missing := [name for name in _FILES if not (folder / name).is_file()]:
        raise UsageError(f"{folder} is no whole {NAME} package: it has no {', '.join(missing)}",
                         advice=f"name the unpacked npm package {NAME}, the folder with package.json and dist/")
    try:
        about = json.loads((folder / "package.json").read_bytes())
        if about["name"] == NAME:
            return str(about["version"])
    except (ValueError, KeyError, TypeError):
        pass
    raise UsageError(f"{folder}/package.json is not that of {NAME}", advice=f"name the unpacked npm package {NAME}")


def peers_of(row: Row, *, f16: bool) -> list[Peer]:
    """The row as a model in f32, and in f16 if asked for; none where the peer has no operators for it."""
    if row.operation not in _GRAPHS:
        return []
    return [_peer(row, form) for form in ((False, True) if f16 else (False,))]


def _peer(row: Row, f16: bool) -> Peer:
    graph = _GRAPHS[row.operation](row.sizes, f16)
    results = {fetch.name: Result(buffer=fetch.buffer, dtype=_NUMPY[fetch.dtype]) for fetch in graph.fetches
               if not fetch.name.startswith("present_")}
    counts = Counter(node.operator for node in graph.nodes)
    operators = " + ".join(name if count == 1 else f"{name} x {count}" for name, count in counts.items())
    return Peer(name=f"ort {operators} {'f16' if f16 else 'f32'}", f16=f16, model=_model(graph), feeds=graph.feeds,
                fetches=graph.fetches, results=results, tolerance=TOLERANCES[row.operation][f16])


_NUMPY: Final[Mapping[str, str]] = {"float32": "f4", "float16": "f2", "int32": "i4", "int64": "i8", "uint8": "u1"}
_ONNX: Final[Mapping[str, str]] = {"float32": "FLOAT", "float16": "FLOAT16", "int32": "INT32", "int64": "INT64",
                                   "uint8": "UINT8"}


def _model(graph: _Graph) -> bytes:
    onnx = onnx_module()
    helper, kinds = onnx.helper, onnx.TensorProto

    def info(port: Port) -> Any:
        return helper.make_tensor_value_info(port.name, getattr(kinds, _ONNX[port.dtype]), list(port.dims))

    nodes = [helper.make_node(node.operator, list(node.inputs), list(node.outputs), domain=node.domain, **node.attributes)
             for node in graph.nodes]
    constants = [helper.make_tensor(name, getattr(kinds, _ONNX[dtype]), list(dims), list(values))
                 for name, dtype, dims, values in graph.constants]
    made = helper.make_graph(nodes, "row", [info(feed) for feed in graph.feeds], [info(fetch) for fetch in graph.fetches],
                             initializer=constants)
    model = helper.make_model(made, ir_version=_IR_VERSION, opset_imports=[
        helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)])
    serialised: bytes = model.SerializeToString()
    return serialised


def _float(name: str, dims: tuple[int, ...], f16: bool, buffer: str | None = None) -> Port:
    """A float tensor in the buffer of its name, with _f16 behind it in f16."""
    return Port(name=name, buffer=(buffer or name) + ("_f16" if f16 else ""), dtype="float16" if f16 else "float32", dims=dims)


def _weight(k: int, n: int, f16: bool, *, values: str = "values", scales: str = "scales") -> tuple[Port, Port]:
    return (Port(name=values, buffer=values, dtype="uint8", dims=(n, k // GROUP, GROUP // 2)),
            Port(name=scales, buffer=scales if f16 else f"{scales}_f32", dtype="float16" if f16 else "float32",
                 dims=(n, k // GROUP)))


def _product(k: int, n: int, weight: tuple[Port, Port], out: str) -> _Node:
    return _Node(operator="MatMulNBits", domain=_MICROSOFT, inputs=("x", *(port.name for port in weight)), outputs=(out,),
                 attributes={"K": k, "N": n, "bits": 4, "block_size": GROUP, "accuracy_level": 0})


def _linear(s: Mapping[str, int], f16: bool) -> _Graph:
    m, k, n = s["m"], s["k"], s["n"]
    weight = _weight(k, n, f16)
    return _Graph(nodes=(_product(k, n, weight, "out"),), feeds=(_float("x", (m, k), f16), *weight),
                  fetches=(_float("out", (m, n), f16),))


def _gated(s: Mapping[str, int], f16: bool) -> _Graph:
    m, k, n = s["m"], s["k"], s["n"]
    gate, up = _weight(k, n, f16), _weight(k, n, f16, values="up_values", scales="up_scales")
    return _Graph(
        nodes=(_product(k, n, gate, "gate"), _product(k, n, up, "up"),
               _Node(operator="Gelu", inputs=("gate",), outputs=("activated",), attributes={"approximate": "tanh"}),
               _Node(operator="Mul", inputs=("activated", "up"), outputs=("out",))),
        feeds=(_float("x", (m, k), f16), *gate, *up), fetches=(_float("out", (m, n), f16),))


def _qkv(s: Mapping[str, int], f16: bool) -> _Graph:
    m, k = s["m"], s["k"]
    sizes = (s["q"], s["kv"], s["kv"])
    weights = [_weight(k, n, f16, values=f"values_{number}", scales=f"scales_{number}") for number, n in enumerate(sizes)]
    return _Graph(
        nodes=tuple(_product(k, n, weight, f"out_{number}") for number, (n, weight) in enumerate(zip(sizes, weights, strict=True))),
        feeds=(_float("x", (m, k), f16), *(port for weight in weights for port in weight)),
        fetches=tuple(_float(f"out_{number}", (m, n), f16) for number, n in enumerate(sizes)))


def _topk(s: Mapping[str, int], f16: bool) -> _Graph:
    return _Graph(
        nodes=(_Node(operator="TopK", inputs=("x", "k"), outputs=("values", "indices"),
                     attributes={"axis": -1, "largest": 1, "sorted": 1}),),
        feeds=(_float("x", (1, s["n"]), f16),),
        fetches=(_float("values", (1, s["k"]), f16),
                 Port(name="indices", buffer="indices_i8", dtype="int64", dims=(1, s["k"]))),
        constants=(("k", "int64", (1,), (s["k"],)),))


def _scatter(s: Mapping[str, int], f16: bool) -> _Graph:
    return _Graph(
        nodes=(_Node(operator="ScatterElements", inputs=("template", "index", "source"), outputs=("out",),
                     attributes={"axis": 1}),),
        feeds=(_float("template", (1, s["size"]), f16),
               Port(name="index", buffer="index", dtype="int32", dims=(1, s["count"])),
               _float("source", (1, s["count"]), f16)),
        fetches=(_float("out", (1, s["size"]), f16),))


def _norm(x: str, weight: str, out: str) -> _Node:
    return _Node(operator="RMSNormalization", inputs=(x, weight), outputs=(out,), attributes={"axis": -1, "epsilon": EPSILON})


def _rms_norm(s: Mapping[str, int], f16: bool) -> _Graph:
    return _Graph(nodes=(_norm("x", "weight", "out"),),
                  feeds=(_float("x", (s["m"], s["width"]), f16), _float("weight", (s["width"],), f16)),
                  fetches=(_float("out", (s["m"], s["width"]), f16),))


def _norm_pair(s: Mapping[str, int], f16: bool) -> _Graph:
    rows, width = (s["m"], s["width"]), (s["width"],)
    return _Graph(
        nodes=(_norm("x", "weight", "normed"), _Node(operator="Add", inputs=("residual", "normed"), outputs=("out",)),
               _norm("out", "next_weight", "next")),
        feeds=(*(_float(name, rows, f16) for name in ("x", "residual")),
               *(_float(name, width, f16) for name in ("weight", "next_weight"))),
        fetches=(_float("out", rows, f16), _float("next", rows, f16)))


def _attention(s: Mapping[str, int], f16: bool) -> _Graph:
    """One new token behind ``past`` others."""
    return _grouped_query(s, f16, rows=1, slots=s["past"] + 1, last="positions")


def _prefill(s: Mapping[str, int], f16: bool) -> _Graph:
    """A prompt of ``m`` tokens."""
    return _grouped_query(s, f16, rows=s["m"], slots=s["m"], last="last")


def _grouped_query(s: Mapping[str, int], f16: bool, *, rows: int, slots: int, last: str) -> _Graph:
    """Caches are updated in place: the same buffer is past and present, as a static cache is in a real decoder.

    ``last``: the buffer with the position of the last row.
    """
    heads, dim = s["heads"], s["head_dim"]
    cache = (1, 1, slots, dim)
    return _Graph(
        nodes=(_Node(operator="GroupQueryAttention", domain=_MICROSOFT,
                     inputs=("q", "k_new", "v_new", "past_key", "past_value", "last", "total"),
                     outputs=("out", "present_key", "present_value"),
                     attributes={"num_heads": heads, "kv_num_heads": 1, "scale": 1.0, "do_rotary": 0}),),
        feeds=(_float("q", (1, rows, heads * dim), f16), _float("k_new", (1, rows, dim), f16),
               _float("v_new", (1, rows, dim), f16), _float("past_key", cache, f16, "k_cache"),
               _float("past_value", cache, f16, "v_cache"), Port(name="last", buffer=last, dtype="int32", dims=(1,))),
        fetches=(_float("out", (1, rows, heads * dim), f16), _float("present_key", cache, f16, "k_cache"),
                 _float("present_value", cache, f16, "v_cache")),
        constants=(("total", "int32", (1,), (slots,)),))


_GRAPHS: Final[Mapping[Operation, Callable[[Mapping[str, int], bool], _Graph]]] = {
    Operation.LINEAR: _linear, Operation.TOPK: _topk, Operation.SCATTER: _scatter, Operation.RMS_NORM: _rms_norm,
    Operation.ATTENTION: _attention, Operation.PREFILL: _prefill, Operation.GATED: _gated, Operation.QKV: _qkv,
    Operation.NORM_PAIR: _norm_pair,
}
"""The peer has no operator that writes rows of a cache in place, so there is none for cache pairs."""
