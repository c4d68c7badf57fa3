// Fused forms of 4-bit linear ops, for passes of one row and three. Each goes through the additions of linear_q4_m1 and m3,
// so that its results are theirs bit by bit, and is taken only where the mask has the form that it stands for too.
#pragma once

#include "ops/route.h"

namespace gemma4::ops {

// gelu_tanh(x . gate) * factor. The chain is gate, second linear op, gelu_mul; without the second linear op the factor is a
// slice of another tensor.
extern const Route kGatedLinearRoutes[4];

// Products of one x with several weights, as of query, keys and values. Three bind 10 storage buffers, which not every device
// allows.
extern const Route kThreeLinearsRoutes[4];
extern const Route kTwoLinearsRoutes[4];

}  // namespace gemma4::ops
