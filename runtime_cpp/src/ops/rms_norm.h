// RMS norm over slices of `width`: out = (residual + rms(x) * weight) * scalar; weight, residual and scalar may be
// absent. Serves layer norms, per-head q/k/v norms and the residual adds. Never works in place.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckRmsNorm(const Site& site);
void RecordRmsNorm(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
