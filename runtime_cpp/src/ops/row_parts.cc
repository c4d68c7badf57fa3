#include "ops/row_parts.h"

#include <algorithm>
#include <numeric>

namespace gemma4::ops {
namespace {

// Rows of a part: as many as one binding holds whose values and scales both begin at an aligned offset; 0: not even one
// such part fits.
uint32_t PartRows(const Tensor& weight, const gpu::Limits& limits) {
  const uint64_t row_values = weight.values_bytes / weight.dims[0];
  const uint64_t row_scales = weight.scales_bytes / weight.dims[0];
  const uint64_t alignment = limits.storage_offset_alignment;
  const uint64_t step = std::lcm(alignment / std::gcd(alignment, row_values),
                                 row_scales == 0 ? 1 : alignment / std::gcd(alignment, row_scales));
  return static_cast<uint32_t>(std::min<uint64_t>(limits.max_storage_binding_bytes / row_values / step * step, UINT32_MAX));
}

BindingRef Range(BindingRef ref, uint64_t offset, uint64_t bytes) {
  ref.offset = offset;
  ref.bytes = bytes;
  return ref;
}

}  // namespace

bool ExceedsBinding(const Tensor& weight, const gpu::Limits& limits) {
  return weight.values_bytes > limits.max_storage_binding_bytes;
}

bool CanBind(const Tensor& weight, const gpu::Limits& limits) {
  return !ExceedsBinding(weight, limits) || PartRows(weight, limits) > 0;
}

std::vector<RowPart> RowPartsOf(const Tensor& weight, const gpu::Limits& limits) {
  if (!ExceedsBinding(weight, limits)) return {AllRows(weight)};
  std::vector<RowPart> parts;
  const uint64_t row_values = weight.values_bytes / weight.dims[0];
  const uint64_t row_scales = weight.scales_bytes / weight.dims[0];
  const uint32_t step = PartRows(weight, limits);
  for (uint32_t first = 0; step != 0 && first < weight.dims[0];) {
    const uint32_t count = std::min(step, weight.dims[0] - first);
    // An odd number of f16 scales at the end shares its word with padding.
    parts.push_back({first, count, first * row_values, count * row_values, first * row_scales,
                     (count * row_scales + 3) / 4 * 4});
    first += count;
  }
  return parts;
}

BindingRef ValuesOf(const RowPart& part, BindingRef values) {
  return Range(values, part.values_offset, part.values_bytes);
}

BindingRef ScalesOf(const RowPart& part, BindingRef scales) {
  return Range(scales, part.scales_offset, part.scales_bytes);
}

}  // namespace gemma4::ops
