// A list of dispatches that can be encoded any number of times. Owns the bind groups and, through UniformArena, the
// params that they bind; buffers and pipelines belong to others and outlive it. Never touches the queue when replayed.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/context.h"
#include "gpu/grid.h"
#include "gpu/pipeline.h"

namespace gemma4::gpu {

// Params of many dispatches packed into few uniform buffers, each at its own aligned offset. Bindings stay valid for the
// arena's life; contents reach the GPU with Flush.
class UniformArena {
 public:
  explicit UniformArena(Context& context) : context_(&context) {}
  UniformArena(UniformArena&&) = default;
  UniformArena& operator=(UniformArena&&) = default;

  template <typename Params>
  Result<Binding> Add(const Params& params) {
    static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) % 16 == 0);
    return AddBytes({reinterpret_cast<const uint8_t*>(&params), sizeof(Params)});
  }
  Result<Binding> AddBytes(std::span<const uint8_t> bytes);
  Status Flush();

 private:
  struct Page {
    Buffer buffer;
    std::vector<uint8_t> bytes;
    size_t flushed = 0;
  };
  Context* context_;
  std::vector<std::unique_ptr<Page>> pages_;
};

struct Dispatch {
  const Pipeline* pipeline = nullptr;
  BindGroup bind_group;
  Grid grid;
};

class Recording {
 public:
  explicit Recording(Context& context) : context_(&context), params_(context) {}
  Recording(Recording&&) = default;
  Recording& operator=(Recording&&) = default;

  // The one way an op adds a dispatch: `storage` are the kernel's storage bindings in order; params follow as the last.
  template <typename Params>
  Status Add(const Pipeline& pipeline, std::span<const Binding> storage, const Params& params, Grid grid) {
    GEMMA4_ASSIGN_OR_RETURN(const Binding uniform, params_.Add(params));
    return AddBound(pipeline, storage, uniform, grid);
  }
  // Writes pending params; call once after the last Add and before the first replay.
  Status Finish() { return params_.Flush(); }

  std::span<const Dispatch> dispatches() const { return dispatches_; }

  // From here on its dispatches are encoded in one compute pass; without this each gets its own.
  void ShareOnePass() { one_pass_ = true; }
  bool shares_one_pass() const { return one_pass_; }

 private:
  Status AddBound(const Pipeline& pipeline, std::span<const Binding> storage, const Binding& params, Grid grid);

  Context* context_;
  UniformArena params_;
  std::vector<Dispatch> dispatches_;
  bool one_pass_ = false;
};

}  // namespace gemma4::gpu
