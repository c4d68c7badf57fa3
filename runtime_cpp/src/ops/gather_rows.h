// Rows of an integer table: table i32[C,G], index i32[1,k] -> i32[1,k*G]; token ids of the chosen clusters. A bad index
// gives -1 entries. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckGatherRows(const Site& site);
void RecordGatherRows(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
