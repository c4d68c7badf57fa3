"""The other side: ONNX models of one operator each, as onnxruntime-web's WebGPU provider runs them.

Weights are inputs, not initialisers: they then lie in the very GPU buffers that our kernels read, and rotate with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
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
    Operation.RMS_NORM: (1e-5, 4e-3), Operation.ATTENTION: (5e-5, 8e-3),
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
    """One operator with its tensors; ``constants`` are initialisers: (name, ONNX type, dims, values)."""

    operator: str
    domain: str
    inputs: tuple[str, ...]
    feeds: tuple[Port, ...]
    fetches: tuple[Port, ...]
    attributes: Mapping[str, int | float] = field(default_factory=dict)
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


def make_peer(row: Row, *, f16: bool) -> Peer:
    """The row as a model in f32 or f16."""
    node = {Operation.LINEAR: _linear, Operation.TOPK: _topk, Operation.SCATTER: _scatter,
            Operation.RMS_NORM: _rms_norm, Operation.ATTENTION: _attention}[row.operation](row.sizes, f16)
    results = {fetch.name: Result(buffer=fetch.buffer, dtype=_NUMPY[fetch.dtype]) for fetch in node.fetches
               if fetch.name in ("out", "values", "indices")}
    return Peer(name=f"ort {node.operator} {'f16' if f16 else 'f32'}", f16=f16, model=_model(node), feeds=node.feeds,
                fetches=node.fetches, results=results, tolerance=TOLERANCES[row.operation][f16])


_NUMPY: Final[Mapping[str, str]] = {"float32": "f4", "float16": "f2", "int32": "i4", "int64": "i8", "uint8": "u1"}
_ONNX: Final[Mapping[str, str]] = {"float32": "FLOAT", "float16": "FLOAT16", "int32": "INT32", "int64": "INT64",
                                   "uint8": "UINT8"}


def _model(node: _Node) -> bytes:
    onnx = onnx_module()
    helper, kinds = onnx.helper, onnx.TensorProto

    def info(port: Port) -> Any:
        return helper.make_tensor_value_info(port.name, getattr(kinds, _ONNX[port.dtype]), list(port.dims))

    made = helper.make_node(node.operator, list(node.inputs), [fetch.name for fetch in node.fetches], domain=node.domain,
                            **node.attributes)
    constants = [helper.make_tensor(name, getattr(kinds, _ONNX[dtype]), list(dims), list(values))
                 for name, dtype, dims, values in node.constants]
    graph = helper.make_graph([made], "row", [info(feed) for feed in node.feeds], [info(fetch) for fetch in node.fetches],
                              initializer=constants)
    model = helper.make_model(graph, ir_version=_IR_VERSION, opset_imports=[
        helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)])
    serialised: bytes = model.SerializeToString()
    return serialised


def _float(name: str, dims: tuple[int, ...], f16: bool, buffer: str | None = None) -> Port:
    """A float tensor in the buffer of its name, with _f16 behind it in f16."""
    return Port(name=name, buffer=(buffer or name) + ("_f16" if f16 else ""), dtype="float16" if f16 else "float32", dims=dims)


def _linear(s: Mapping[str, int], f16: bool) -> _Node:
    m, k, n = s["m"], s["k"], s["n"]
    scales = Port(name="scales", buffer="scales" if f16 else "scales_f32", dtype="float16" if f16 else "float32",
                  dims=(n, k // GROUP))
    return _Node(
        operator="MatMulNBits", domain=_MICROSOFT, inputs=("x", "values", "scales"),
        feeds=(_float("x", (m, k), f16),
               Port(name="values", buffer="values", dtype="uint8", dims=(n, k // GROUP, GROUP // 2)), scales),
        fetches=(_float("out", (m, n), f16),),
        attributes={"K": k, "N": n, "bits": 4, "block_size": GROUP, "accuracy_level": 0})


def _topk(s: Mapping[str, int], f16: bool) -> _Node:
    return _Node(
        operator="TopK", domain="", inputs=("x", "k"), feeds=(_float("x", (1, s["n"]), f16),),
        fetches=(_float("values", (1, s["k"]), f16),
                 Port(name="indices", buffer="indices_i8", dtype="int64", dims=(1, s["k"]))),
        attributes={"axis": -1, "largest": 1, "sorted": 1}, constants=(("k", "int64", (1,), (s["k"],)),))


def _scatter(s: Mapping[str, int], f16: bool) -> _Node:
    return _Node(
        operator="ScatterElements", domain="", inputs=("template", "index", "source"),
        feeds=(_float("template", (1, s["size"]), f16),
               Port(name="index", buffer="index", dtype="int32", dims=(1, s["count"])),
               _float("source", (1, s["count"]), f16)),
        fetches=(_float("out", (1, s["size"]), f16),), attributes={"axis": 1})


def _rms_norm(s: Mapping[str, int], f16: bool) -> _Node:
    return _Node(
        operator="RMSNormalization", domain="", inputs=("x", "weight"),
        feeds=(_float("x", (s["m"], s["width"]), f16), _float("weight", (s["width"],), f16)),
        fetches=(_float("out", (s["m"], s["width"]), f16),), attributes={"axis": -1, "epsilon": EPSILON})


def _attention(s: Mapping[str, int], f16: bool) -> _Node:
    """Caches are updated in place: the same buffer is past and present, as a static cache is in a real decoder."""
    heads, dim, slots = s["heads"], s["head_dim"], s["past"] + 1
    cache = (1, 1, slots, dim)
    return _Node(
        operator="GroupQueryAttention", domain=_MICROSOFT,
        inputs=("q", "k_new", "v_new", "past_key", "past_value", "positions", "total"),
        feeds=(_float("q", (1, 1, heads * dim), f16), _float("k_new", (1, 1, dim), f16), _float("v_new", (1, 1, dim), f16),
               _float("past_key", cache, f16, "k_cache"), _float("past_value", cache, f16, "v_cache"),
               Port(name="positions", buffer="positions", dtype="int32", dims=(1,))),
        fetches=(_float("out", (1, 1, heads * dim), f16), _float("present_key", cache, f16, "k_cache"),
                 _float("present_value", cache, f16, "v_cache")),
        attributes={"num_heads": heads, "kv_num_heads": 1, "scale": 1.0, "do_rotary": 0},
        constants=(("total", "int32", (1,), (slots,)),))
