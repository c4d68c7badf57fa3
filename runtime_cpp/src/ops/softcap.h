// Logit soft cap: out = cap * tanh(x / cap), elementwise.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckSoftcap(const Site& site);
void RecordSoftcap(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
