// From ops to dispatches. BuildPass, a pure function, lists what one pass runs; Record binds buffers and pipelines to
// such a list. Owns the check that no dispatch reads and writes one buffer. Never chooses buffers (a BufferMap does)
// and never submits.
#pragma once

#include <vector>

#include "base/result.h"
#include "gpu/pipeline.h"
#include "gpu/recording.h"
#include "ops/dispatch.h"

namespace gemma4::program {

// Dispatches of one pass in order: every op of phase Always, and with `round` those of phase Round too.
std::vector<ops::DispatchSpec> BuildPass(const ops::Graph& graph, bool round, const ops::PassRows& rows);

// Which GPU buffer a binding refers to.
class BufferMap {
 public:
  virtual ~BufferMap() = default;
  virtual const gpu::Buffer& Resolve(const ops::BindingRef& ref) const = 0;
};

Result<gpu::Recording> RecordDispatches(gpu::Context& context, const gpu::PipelineCache& pipelines,
                                        const BufferMap& buffers, const std::vector<ops::DispatchSpec>& specs);

}  // namespace gemma4::program
