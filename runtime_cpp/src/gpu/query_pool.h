// Time per kernel, in profile builds only. Owns query sets, their readbacks and the sums by kernel name; every dispatch
// has a timestamp pair at its pass's begin and end. Never part of a wall build, never waits: sums grow as readbacks
// arrive, and Context::Settle waits for them.
#pragma once

#if GEMMA4_PROFILE

#include <webgpu/webgpu.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gpu/buffer.h"
#include "gpu/context.h"
#include "gpu/readback.h"

namespace gemma4::gpu {

struct KernelTime {
  uint64_t calls = 0;
  uint64_t total_ns = 0;
};

struct Profile {
  std::map<std::string_view, KernelTime> kernels;
  uint64_t total_ns = 0;     // sum over all dispatches
  uint64_t quantum_ns = 0;   // the greatest step that divides every difference of two timestamps seen; 0: none seen
  uint64_t generation = 0;   // counts resets
  uint64_t collected = 0;    // command buffers summed up
  uint64_t pending = 0;      // command buffers whose timestamps have not arrived
  uint64_t broken_pairs = 0; // end before begin, never written, or not read
};

class Timing;

class QueryPool {
 public:
  explicit QueryPool(Context& context);
  ~QueryPool();
  QueryPool(const QueryPool&) = delete;
  QueryPool& operator=(const QueryPool&) = delete;

  std::unique_ptr<Timing> Begin();
  const Profile& profile() const { return profile_; }
  // Forgets all sums; timestamps still in flight belong to the old generation and are dropped on arrival.
  void Reset();

 private:
  friend class Timing;
  static constexpr uint32_t kQueries = 4096;  // WebGPU's largest set; 2048 dispatches
  struct Chunk;

  std::unique_ptr<Chunk> Take();
  void Accumulate(const std::vector<const char*>& names, std::span<const uint8_t> stamps);

  Context& context_;
  std::vector<std::unique_ptr<Chunk>> free_;
  Profile profile_;
  uint64_t anchor_ns_ = 0;  // the first timestamp of this generation
};

// The timestamps of one command buffer.
class Timing {
 public:
  explicit Timing(QueryPool& pool);
  ~Timing();

  // The next pair, for a dispatch of `kernel` (static storage); false when no query set could be had.
  bool Next(const char* kernel, WGPUPassTimestampWrites& writes);
  void Resolve(WGPUCommandEncoder encoder);  // after the last dispatch
  void Collect();                            // after the submit

 private:
  QueryPool& pool_;
  std::vector<std::unique_ptr<QueryPool::Chunk>> chunks_;
};

}  // namespace gemma4::gpu

#endif  // GEMMA4_PROFILE
