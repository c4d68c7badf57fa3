"""Writes kernels.h, params structs with checked layout, and kernels.cc, minified shader texts as raw string literals.

The two are apart so that an edited shader recompiles one translation unit, not every one that dispatches a kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from gemma4web.errors import KernelError
from gemma4web.kernels.expand import Kernel
from gemma4web.kernels.parse import BindingKind

# MSVC's 64 KiB is the smallest limit among compilers for one literal.
_LITERAL_BYTES: Final = 60_000
_DELIMITER: Final = "wgsl"
_CPP_TYPES: Final = {"u32": "uint32_t", "i32": "int32_t", "f32": "float"}
_CPP_KINDS: Final = {
    BindingKind.READ_ONLY_STORAGE: "kReadOnlyStorage", BindingKind.STORAGE: "kStorage", BindingKind.UNIFORM: "kUniform",
}
_CPP_FEATURES: Final = {
    "subgroups": "kNeedsSubgroups", "shader-f16": "kNeedsShaderF16", "packed_4x8_integer_dot_product": "kNeedsPackedDot",
    "buffer_view": "kNeedsBufferView", "chromium-experimental-subgroup-matrix": "kNeedsMatrixUnit",
}
_TOKEN = re.compile(r"[A-Za-z_0-9]+(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?[fh]?)?|\S")

_PREAMBLE: Final = """\
// Made by gemma4web.kernels from runtime_cpp/kernels/*.wgsl; `scons kernels` makes it again. Do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gemma4::kernels {

enum class BindingKind : uint8_t { kReadOnlyStorage, kStorage, kUniform };

// Optional features of a device, or of its WGSL, that a kernel needs: the bits of Kernel::features.
inline constexpr uint32_t kNeedsSubgroups = 1;
inline constexpr uint32_t kNeedsShaderF16 = 2;
inline constexpr uint32_t kNeedsPackedDot = 4;   // of WGSL: packed_4x8_integer_dot_product
inline constexpr uint32_t kNeedsBufferView = 8;  // of WGSL: buffer_view
inline constexpr uint32_t kNeedsMatrixUnit = 16;

struct Kernel {
  const char* name;
  const char* wgsl;
  uint32_t workgroup[3];
  const BindingKind* bindings;
  uint32_t binding_count;
  uint32_t params_bytes;     // multiple of 16
  uint32_t workgroup_bytes;  // workgroup memory, as WebGPU counts it
  uint32_t features;
};
"""


def pascal_case(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def minify(text: str) -> str:
    """Drops white space that separates no two tokens; one line a top-level declaration. ``text`` has no comments."""
    out: list[str] = []
    depth, last_end, last = 0, 0, ""
    for match in _TOKEN.finditer(text):
        token = match.group()
        gap = match.start() > last_end
        if gap and last and last != "\n" and _must_part(last[-1], token[0]):
            out.append(" ")
        out.append(token)
        last, last_end = token, match.end()
        depth += (token in "{([") - (token in "})]")
        if depth == 0 and token in (";", "}"):
            out.append("\n")
            last = "\n"
    return re.sub(r"\}\n;", "};", "".join(out))


def _must_part(left: str, right: str) -> bool:
    """Whether two tokens would run together: two words, or two operator signs (``a - -b``, ``a & &b``)."""
    word = re.compile(r"[A-Za-z_0-9]")
    operator = "+-*/%&|^<>=!~."
    if word.match(left) and (word.match(right) or right == "."):
        return True
    return left in operator and (right in operator or (left == "." and word.match(right) is not None))


_SOURCE_PREAMBLE: Final = """\
// Made by gemma4web.kernels from runtime_cpp/kernels/*.wgsl; `scons kernels` makes it again. Do not edit.
#include "kernels.h"

namespace gemma4::kernels {
"""


def render_source(kernels: Sequence[Kernel]) -> str:
    """The whole text of kernels.cc: one array a shader, so that the linker drops those that nothing names."""
    texts = [f"const char k{pascal_case(kernel.name)}Wgsl[] =\n" + "\n".join(_render_literal(minify(kernel.text))) + "\n"
             for kernel in kernels]
    return "\n".join([_SOURCE_PREAMBLE, *texts, "}  // namespace gemma4::kernels\n"])


def render_header(kernels: Sequence[Kernel]) -> str:
    """The whole text of kernels.h. Raises KernelError when two kernel names make one C++ name."""
    owners: dict[str, Kernel] = {}
    for kernel in kernels:
        symbol = pascal_case(kernel.name)
        if (other := owners.get(symbol)) is not None:
            raise KernelError(f"{kernel.path}:{kernel.line}: kernel {kernel.name!r} and {other.name!r} of "
                              f"{other.path}:{other.line} both become {symbol}")
        owners[symbol] = kernel
    parts = [_PREAMBLE, *(_render_kernel(kernel) for kernel in kernels), "}  // namespace gemma4::kernels\n"]
    return "\n".join(parts)


def params_bytes(kernel: Kernel) -> int:
    return -(-4 * len(kernel.params) // 16) * 16


def _render_kernel(kernel: Kernel) -> str:
    symbol = pascal_case(kernel.name)
    size = params_bytes(kernel)
    kinds = ", ".join(f"BindingKind::{_CPP_KINDS[binding.kind]}" for binding in kernel.interface.bindings)
    names = ", ".join(binding.name for binding in kernel.interface.bindings)
    x, y, z = kernel.interface.workgroup
    features = " | ".join(_CPP_FEATURES[feature] for feature in kernel.features) or "0"
    return "\n".join([
        f"// {kernel.header.formula}",
        f"// dispatch: {kernel.header.dispatch}",
        *_render_params(kernel, symbol, size),
        f"// {names}",
        f"inline constexpr BindingKind k{symbol}Bindings[] = {{{kinds}}};",
        f"extern const char k{symbol}Wgsl[];",
        f"inline constexpr Kernel k{symbol} = {{",
        f'    "{kernel.name}", k{symbol}Wgsl,',
        f"    {{{x}, {y}, {z}}}, k{symbol}Bindings, {len(kernel.interface.bindings)}, {size},",
        f"    {kernel.workgroup_bytes}, {features}}};",
        "",
    ])


def _render_params(kernel: Kernel, symbol: str, size: int) -> list[str]:
    struct = f"{symbol}Params"
    words = size // 4 - len(kernel.params)
    padding = [f"  uint32_t padding[{words}] = {{}};"] if words else []
    return [
        f"struct {struct} {{",
        *(f"  {_CPP_TYPES[field.type]} {field.name} = 0;" for field in kernel.params),
        *padding,
        "};",
        f"static_assert(sizeof({struct}) == {size});",
        *(f"static_assert(offsetof({struct}, {field.name}) == {4 * index});"
          for index, field in enumerate(kernel.params)),
    ]


def _render_literal(text: str) -> list[str]:
    """Adjacent raw literals of at most 60 000 bytes, cut between lines where possible."""
    pieces: list[str] = []
    rest = text
    while len(rest.encode()) > _LITERAL_BYTES:
        head = rest.encode()[:_LITERAL_BYTES].decode(errors="ignore")
        cut = head.rfind("\n") + 1 or len(head)
        pieces.append(rest[:cut])
        rest = rest[cut:]
    pieces.append(rest)
    lines = [f'    R"{_DELIMITER}({piece}){_DELIMITER}"' for piece in pieces]
    lines[-1] += ";"
    return lines
