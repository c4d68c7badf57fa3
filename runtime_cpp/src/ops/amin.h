// Smallest of f32[1,n] -> f32[1,1]. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckAmin(const Site& site);
void RecordAmin(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
