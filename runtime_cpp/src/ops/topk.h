// The k largest of f32[1,n], generic in n and k: values f32[1,k] and indices i32[1,k], descending, NaN first, +-0
// equal, ties by the lower index. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckTopK(const Site& site);
void RecordTopK(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
