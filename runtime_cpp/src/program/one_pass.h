// Whether the dispatches of a pass may share one compute pass (R11): the exporter has to have proven it of the graph, and
// here the recorded list is looked at again, dispatch by dispatch, by the memory that each of them binds. Pure functions;
// never records, and what they refuse still runs with a compute pass for each dispatch.
#pragma once

#include <vector>

#include "base/result.h"
#include "ops/dispatch.h"
#include "program/plan.h"

namespace gemma4::program {

// Every writable binding is an output that some op of the graph declares, or scratch; it shares its memory with no other
// binding of its dispatch. What is read was written before it in this list and not been written over, unless it is a
// weight, an input or a cache. In a pass that is no round, drafts are bound and not read. Else kFailedState with the
// first dispatch that departs from this.
Status CheckRecorded(const ops::Graph& graph, const MemoryPlan& memory, const std::vector<ops::DispatchSpec>& specs,
                     bool round);

// The certificate, then the list. Else kFailedState with the reason, as a record shows it.
Status MayShareOnePass(const Plan& plan, const std::vector<ops::DispatchSpec>& specs, bool round);

}  // namespace gemma4::program
