#include "gpu/grid.h"

#include <algorithm>

#include "base/text.h"

namespace gemma4::gpu {

Result<Grid> FoldGrid(uint64_t groups, uint32_t limit) {
  if (groups == 0 || limit == 0) return Internal("a dispatch of zero workgroups was asked for");
  const uint64_t plane = static_cast<uint64_t>(limit) * limit;
  if (groups > plane * limit) {
    return LimitExceeded(Text("a dispatch needs ", groups, " workgroups; ", limit, " per dimension allow ", plane * limit));
  }
  if (groups <= limit) return Grid{static_cast<uint32_t>(groups), 1, 1};
  // Rows as equal as possible: y (and z) counts first, then the shortest row that covers all.
  const uint64_t z = (groups + plane - 1) / plane;
  const uint64_t per_plane = (groups + z - 1) / z;
  const uint64_t y = (per_plane + limit - 1) / limit;
  const uint64_t x = (per_plane + y - 1) / y;
  return Grid{static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)};
}

}  // namespace gemma4::gpu
