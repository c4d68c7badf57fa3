// Greedy token a row: f32[N,V] -> i32[N]. The lowest index wins a tie; a row that holds a NaN gives -1, which no caller
// may take for a token.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckArgmax(const Site& site);
void RecordArgmax(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// argmax_parts: a workgroup for every 2048 columns, then one a row; for rows of more than 4096 columns.
extern const Route kArgmaxRoutes[1];

}  // namespace gemma4::ops
