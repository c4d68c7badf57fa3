// Every GPU buffer of a program: one a weight (two for 4-bit), one a cache, input, output and retained tensor, the
// shared activation slots, the RoPE tables. Owns them; writes weights into them as the shard stream's sink. Never plans
// sizes.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/context.h"
#include "ops/rope.h"
#include "program/plan.h"
#include "program/recorder.h"
#include "program/shard_stream.h"

namespace gemma4::program {

class Memory final : public BufferMap, public WeightSink {
 public:
  // `plan` outlives the memory. Fails with the name of the buffer that could not be made and both numbers.
  static Result<std::unique_ptr<Memory>> Create(gpu::Context& context, const Plan& plan);

  const gpu::Buffer& Resolve(const ops::BindingRef& ref) const override;
  const gpu::Buffer& Values(uint32_t tensor) const;  // of any tensor but a view

  Status Open(const WeightSpan& span) override;
  Status Append(std::span<const uint8_t> slice) override;

 private:
  struct RopeTable {
    ops::RopeKey key;
    gpu::Buffer buffer;  // u32[head_dim/2]
  };

  Memory(gpu::Context& context, const Plan& plan);
  Status AllocateTensors();
  Status AllocateRopeTables();

  gpu::Context& context_;
  const Plan& plan_;
  std::vector<gpu::Buffer> values_;  // by tensor; empty where a slot holds it, or for a view
  std::vector<gpu::Buffer> scales_;  // by tensor; only of 4-bit weights
  std::vector<gpu::Buffer> slots_;
  std::array<gpu::Buffer, ops::kScratchBuffers> scratch_;  // empty where no route needs it
  std::vector<RopeTable> rope_tables_;
  gpu::Buffer absent_;  // 16 bytes, bound where an optional input is not there
  std::optional<gpu::StreamWriter> writer_;
};

}  // namespace gemma4::program
