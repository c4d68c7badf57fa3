// A row of one value: scalar f32[1,1] -> f32[1,V] filled with scalar + offset. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckFill(const Site& site);
void RecordFill(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
