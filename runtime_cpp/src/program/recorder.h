// From ops to dispatches. BuildPass, a pure function, lists what one pass runs; RecordDispatches binds buffers and
// pipelines to such a list. Owns the check that no dispatch reads and writes one buffer. Never chooses buffers (a BufferMap does)
// and never submits.
#pragma once

#include <vector>

#include "base/result.h"
#include "gpu/pipeline.h"
#include "gpu/recording.h"
#include "ops/dispatch.h"
#include "program/plan.h"

namespace gemma4::program {

// Dispatches of one pass in order: every op of phase Always, and with `round` those of phase Round too, each by the way
// that the plan's routes give it, and fused chains in the place of their first op.
std::vector<ops::DispatchSpec> BuildPass(const Plan& plan, bool round, const ops::PassRows& rows);

// One dispatch list for every way that any pass of the plan may take, each with its most rows.
std::vector<ops::DispatchSpec> BuildEveryWay(const Plan& plan);

// Every kernel that any pass may dispatch, once. A route may need one for some of its row counts only, so all of a route's
// are in it.
std::vector<const kernels::Kernel*> KernelsOf(const Plan& plan);

// The most that any dispatch needs of each scratch buffer.
ops::ScratchBytes ScratchOf(const Plan& plan);

// By tensor: the most bytes of one binding where every dispatch binds it in parts, else 0.
std::vector<uint64_t> PartsOf(const Plan& plan);

// Which GPU buffer a binding refers to.
class BufferMap {
 public:
  virtual ~BufferMap() = default;
  virtual const gpu::Buffer& Resolve(const ops::BindingRef& ref) const = 0;
};

Result<gpu::Recording> RecordDispatches(gpu::Context& context, const gpu::PipelineCache& pipelines,
                                        const BufferMap& buffers, const std::vector<ops::DispatchSpec>& specs);

}  // namespace gemma4::program
