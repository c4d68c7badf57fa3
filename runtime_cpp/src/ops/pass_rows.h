// Tokens and positions of the target pass: the inputs themselves for a prefill, [pending, draft 0, draft 1] at P, P+1,
// P+2 for a round. The flag decides on the GPU. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckPassRowsOp(const Site& site);
void RecordPassRowsOp(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
