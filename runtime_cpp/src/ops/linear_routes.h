// Guarded ways of a linear op with 4-bit weights. One and three rows: kernels linear_q4_m1 and linear_q4_m3, which go through
// the same additions, so that a round's rows are those of a step (R12). More rows: tiles of 32 or 64 rows, k in parts
// where there are too few tiles to fill a GPU. The f16 forms round activations and weights to f16 and are off by default.
#pragma once

#include "ops/route.h"

namespace gemma4::ops {

extern const Route kLinearRoutes[12];

// Shapes that linear_q4_bk64 is accepted for, [k, n] and group: Llama-style projections and those of Gemma 4 E2B (G4).
bool IsBk64Shape(uint32_t k, uint32_t n, uint32_t group);

}  // namespace gemma4::ops
