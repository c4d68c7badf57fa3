// Columns side by side: a [N,A], b [N,B] -> [N,A+B]. Joins token embedding and state at the head of a draft step.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckConcat(const Site& site);
void RecordConcat(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
