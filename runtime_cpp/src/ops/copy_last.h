// The last entry of the greedy tokens i32[N] becomes next_token i32[1,1], the output of a text_decoder pass.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckCopyLast(const Site& site);
void RecordCopyLast(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
