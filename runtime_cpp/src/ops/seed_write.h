// State for the next draft: row `match` of h [N,H] (the last row in a prefill) goes to the seed cache f32[1,1,1,H], its
// element 0 to the probe f32[1,1]. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckSeedWrite(const Site& site);
void RecordSeedWrite(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
