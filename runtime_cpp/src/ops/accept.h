// Accept step on the GPU: compares drafts with the target's greedy tokens and writes candidates i32[1,2], target_greedy
// i32[1,3], match_count i32[1,1] and bonus i32[1,1]. Never moves positions: the commit does. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckAccept(const Site& site);
void RecordAccept(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
