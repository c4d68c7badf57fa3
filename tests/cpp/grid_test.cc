// Folding of workgroup counts over the per-dimension limit, P19.
#include "check.h"
#include "gpu/grid.h"

namespace gemma4 {
namespace {

// Every linear group id below `groups` is met once, and the surplus is less than one row a folded dimension.
void CheckFold(uint64_t groups, uint32_t limit) {
  const Result<gpu::Grid> folded = gpu::FoldGrid(groups, limit);
  CHECK_OK(folded.status());
  if (!folded.ok()) return;
  const gpu::Grid grid = *folded;
  CHECK(grid.x >= 1 && grid.y >= 1 && grid.z >= 1);
  CHECK(grid.x <= limit && grid.y <= limit && grid.z <= limit);
  const uint64_t dispatched = uint64_t{grid.x} * grid.y * grid.z;
  CHECK(dispatched >= groups);
  CHECK(dispatched - groups < uint64_t{grid.x} * grid.y + grid.z * uint64_t{grid.x});
}

GEMMA4_TEST(GridAtTheLimit) {
  for (const uint64_t groups : {1ull, 2ull, 65534ull, 65535ull, 65536ull, 65537ull, 131070ull, 131071ull, 131072ull}) {
    CheckFold(groups, 65535);
  }
  CHECK_EQ(gpu::FoldGrid(65535, 65535).value(), (gpu::Grid{65535, 1, 1}));
  CHECK_EQ(gpu::FoldGrid(65536, 65535).value(), (gpu::Grid{32768, 2, 1}));
  CHECK_EQ(gpu::FoldGrid(131071, 65535).value().y, 3u);
}

GEMMA4_TEST(GridWithSmallLimit) {
  for (uint64_t groups = 1; groups <= 256 * 256 + 3; ++groups) CheckFold(groups, 256);
  for (uint64_t groups = 1; groups <= 7 * 7 * 7; ++groups) CheckFold(groups, 7);
}

GEMMA4_TEST(GridRefusesNothingAndTooMuch) {
  CHECK_REFUSED(gpu::FoldGrid(0, 65535).status(), "zero");
  CHECK_REFUSED(gpu::FoldGrid(7 * 7 * 7 + 1, 7).status(), "344", "343");
}

}  // namespace
}  // namespace gemma4
