// The k largest of f32[1,n], generic in n and k: values f32[1,k] and indices i32[1,k], descending, NaN first, +-0
// equal, ties by the lower index. Only in MTP builds.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckTopK(const Site& site);
void RecordTopK(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// topk_staged: one dispatch of one workgroup, for 32 of 2048 only.
extern const Route kTopKRoutes[1];

}  // namespace gemma4::ops
