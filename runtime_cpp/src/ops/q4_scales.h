// How the scales of a 4-bit weight are stored, as the params of its kernels tell them. Owns nothing.
#pragma once

#include <bit>
#include <cstdint>

#include "ops/graph.h"

namespace gemma4::ops {

inline bool HasF32Scales(const Tensor& weight) { return weight.scale_dtype == schema::ScaleDtype_F32; }

// One dispatch has one form of scales for all its weights.
inline bool SameScales(const Tensor& a, const Tensor& b) {
  return a.group == b.group && a.scale_dtype == b.scale_dtype;
}

// Adds to the flags that are there.
template <typename Params>
void TellScales(const Tensor& weight, Params* params) {
  constexpr uint32_t kF32Scales = 1;  // as in include/q4_grouped.wgsl
  params->group_shift = static_cast<uint32_t>(std::countr_zero(weight.group / 16));
  if (HasF32Scales(weight)) params->flags |= kF32Scales;
}

}  // namespace gemma4::ops
