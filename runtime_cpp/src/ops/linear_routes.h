// Guarded ways of a linear op with 4-bit weights. One and three rows: kernels linear_q4_m1 and linear_q4_m3, which go through
// the same additions, so that a round's rows are those of a step (R12). More rows: tiles of 32 or 64 rows, k in parts
// where there are too few tiles to fill a GPU; on the matrix unit where there is one. A weight above the binding limit is
// multiplied in parts by those of one and three rows and by the generic kernels, each part writing its own columns. The f16
// forms round activations and weights to f16 and are off by default.
#pragma once

#include <algorithm>

#include "ops/q4_scales.h"
#include "ops/route.h"
#include "ops/row_parts.h"

namespace gemma4::ops {

extern const Route kLinearRoutes[16];

// Of a linear op in a pass: out [rows, n] = x [rows, k] . weight [n, k]. rows 0: not a 4-bit weight.
struct LinearShape {
  uint32_t rows = 0;
  uint32_t k = 0;
  uint32_t n = 0;
  uint64_t max_rows = 0;  // of any pass
};
LinearShape ShapeOf(const Site& site, const PassRows& pass);

// Threads that share a column of the kernels of one and three rows.
uint32_t LanesOf(const LinearShape& shape, const gpu::Limits& limits);

// Workgroups of those kernels.
uint64_t FewRowsGroups(const kernels::Kernel& kernel, uint32_t n, uint32_t lanes);

// What the params of those kernels have in common.
template <typename Params>
Params FewRowsParams(const kernels::Kernel& kernel, const Tensor& weight, const LinearShape& shape,
                     const gpu::Limits& limits) {
  Params params;
  params.k = shape.k;
  params.n = shape.n;
  TellScales(weight, &params);
  params.lanes = LanesOf(shape, limits);
  params.subgroup = (kernel.features & kernels::kNeedsSubgroups) != 0 ? std::min(limits.subgroup_lanes, params.lanes) : 1;
  return params;
}

// Shapes that linear_q4_bk64 is accepted for, [k, n] and group: Llama-style projections and those of Gemma 4 E2B (G4).
bool IsBk64Shape(uint32_t k, uint32_t n, uint32_t group);

}  // namespace gemma4::ops
