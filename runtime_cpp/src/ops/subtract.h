// a - b of int32, wrapping; b has the shape of a, or is one integer. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckSubtract(const Site& site);
void RecordSubtract(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
