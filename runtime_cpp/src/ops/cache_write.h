// Appends K or V rows: x [N,heads*d] goes to slots position % S of a cache [1,S,heads,d]. The only op besides
// seed_write that writes persistent state; knows no other layout.
#pragma once

#include "ops/route.h"
#include "ops/site.h"

namespace gemma4::ops {

Status CheckCacheWrite(const Site& site);
void RecordCacheWrite(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// cache_write_pair: of a chain of two, keys and values of one layer, in any number of rows.
extern const Route kCachePairRoutes[1];

}  // namespace gemma4::ops
