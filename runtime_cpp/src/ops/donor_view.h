// The frozen prefix of a donor cache [1,S,heads,d], read as [1,heads,S,d] by draft attention: positions [0,
// donor_length) or the last `window` of them. No dispatch and no memory: attention binds the cache itself. Only in MTP
// builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckDonorView(const Site& site);
void RecordDonorView(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
