// Scores of chosen vocabulary rows: f32[1,n] = weight[ids[j]] . y, weight [V,K] f32 or q4. A bad id scores -infinity.
// Only in MTP builds.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckGatherLinear(const Site& site);
void RecordGatherLinear(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// gather_linear_parts: a dispatch for every part of a weight that is too large for one binding; each scores its own ids.
extern const Route kGatherLinearRoutes[1];

}  // namespace gemma4::ops
