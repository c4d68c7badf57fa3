// Weights that are larger than one binding of the device: their rows in parts, one dispatch each. Owns nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/graph.h"

namespace gemma4::ops {

// Rows [first, first + count) of a weight, and the bytes that bind them; 0 bytes: the whole weight.
struct RowPart {
  uint32_t first = 0;
  uint32_t count = 0;
  uint64_t values_offset = 0, values_bytes = 0;
  uint64_t scales_offset = 0, scales_bytes = 0;
};

inline RowPart AllRows(const Tensor& weight) { return {.first = 0, .count = weight.dims[0]}; }

bool ExceedsBinding(const Tensor& weight, const gpu::Limits& limits);

// In order: all rows where one binding holds them. None where it does not hold a single part whose values and scales both
// begin at an aligned offset.
std::vector<RowPart> RowPartsOf(const Tensor& weight, const gpu::Limits& limits);

// Whether there is a part.
bool CanBind(const Tensor& weight, const gpu::Limits& limits);

BindingRef ValuesOf(const RowPart& part, BindingRef values);
BindingRef ScalesOf(const RowPart& part, BindingRef scales);

}  // namespace gemma4::ops
