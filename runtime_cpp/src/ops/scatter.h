// Duplicate-safe scatter: copies template f32[1,V] and puts source[j] at index[j], ascending, the last write wins,
// indices out of range are dropped. Two dispatches. Only in MTP builds.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

Status CheckScatter(const Site& site);
void RecordScatter(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

// Of indices that are certified to be unique (program/certified.h): looks for no duplicates.
void RecordScatterUnique(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
