// Workgroup counts of one dispatch. Owns the fold over WebGPU's per-dimension limit, the only place that knows of it:
// kernels compute the linear group as wid.x + wid.y * nwg.x + wid.z * nwg.x * nwg.y and return when it is beyond range.
#pragma once

#include <cstdint>

#include "base/result.h"

namespace gemma4::gpu {

struct Grid {
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  friend bool operator==(const Grid&, const Grid&) = default;
};

// The smallest fold with x * y * z >= groups, every factor <= limit (65535 by default in WebGPU) and less than one row
// of surplus per folded dimension. groups 0 is an error (an empty dispatch is a bug of the caller), and so is
// groups > limit^3.
Result<Grid> FoldGrid(uint64_t groups, uint32_t limit);

// ceil(count / per_group)
constexpr uint64_t GroupsFor(uint64_t count, uint32_t per_group) { return (count + per_group - 1) / per_group; }

}  // namespace gemma4::gpu
