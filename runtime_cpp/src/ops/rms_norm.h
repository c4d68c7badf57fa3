// RMS norm over slices of `width`: out = (residual + rms(x) * weight) * scalar; weight, residual and scalar may be
// absent. Serves layer norms, per-head q/k/v norms and the residual adds. Never works in place.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckRmsNorm(const Site& site);
void RecordRmsNorm(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// rms_norm_wide: of rows that a workgroup of 256 has columns for.
extern const Route kNormRoutes[1];

// rms_norm_pair: of a chain of two norms, the first with a residual and the second of its result, in any number of rows.
extern const Route kNormPairRoutes[2];

}  // namespace gemma4::ops
