#if GEMMA4_PROFILE

#include "gpu/query_pool.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "gpu/context_state.h"
#include "gpu/convert.h"

namespace gemma4::gpu {
namespace {

void DestroyQuerySet(WGPUQuerySet set) {
  wgpuQuerySetDestroy(set);
  wgpuQuerySetRelease(set);
}

}  // namespace

struct QueryPool::Chunk {
  Handle<WGPUQuerySet, &DestroyQuerySet> set;
  Buffer resolved;
  std::unique_ptr<Readback> readback;
  std::vector<const char*> names;  // kernel of pair i, queries 2i and 2i + 1
};

QueryPool::QueryPool(Context& context) : context_(context) {}
QueryPool::~QueryPool() = default;

std::unique_ptr<Timing> QueryPool::Begin() { return std::make_unique<Timing>(*this); }

void QueryPool::Reset() {
  const uint64_t pending = profile_.pending;
  const uint64_t generation = profile_.generation + 1;
  profile_ = {};
  profile_.pending = pending;
  profile_.generation = generation;
  anchor_ns_ = 0;
}

std::unique_ptr<QueryPool::Chunk> QueryPool::Take() {
  if (!free_.empty()) {
    std::unique_ptr<Chunk> chunk = std::move(free_.back());
    free_.pop_back();
    return chunk;
  }
  auto chunk = std::make_unique<Chunk>();
  WGPUQuerySetDescriptor descriptor = {};
  descriptor.label = ToView("timestamps");
  descriptor.type = WGPUQueryType_Timestamp;
  descriptor.count = kQueries;
  chunk->set = {wgpuDeviceCreateQuerySet(context_.device_.get(), &descriptor), context_.counter_};
  auto resolved = context_.CreateBuffer("timestamps", kQueries * sizeof(uint64_t), BufferUsage::kQueryResolve);
  auto readback = Readback::Create(context_, "timestamps readback", kQueries * sizeof(uint64_t));
  if (!chunk->set || !resolved.ok() || !readback.ok()) return nullptr;
  chunk->resolved = std::move(resolved).value();
  chunk->readback = std::move(readback).value();
  return chunk;
}

void QueryPool::Accumulate(const std::vector<const char*>& names, std::span<const uint8_t> stamps) {
  for (size_t i = 0; i < names.size(); ++i) {
    uint64_t pair[2];
    std::memcpy(pair, stamps.data() + i * sizeof(pair), sizeof(pair));
    if (pair[0] == 0 || pair[1] < pair[0]) {
      ++profile_.broken_pairs;
      continue;
    }
    if (anchor_ns_ == 0) anchor_ns_ = pair[0];
    for (const uint64_t stamp : pair) {
      const uint64_t distance = stamp > anchor_ns_ ? stamp - anchor_ns_ : anchor_ns_ - stamp;
      profile_.quantum_ns = std::gcd(profile_.quantum_ns, distance);
    }
    KernelTime& time = profile_.kernels[names[i]];
    ++time.calls;
    time.total_ns += pair[1] - pair[0];
    profile_.total_ns += pair[1] - pair[0];
  }
}

Timing::Timing(QueryPool& pool) : pool_(pool) {}
Timing::~Timing() = default;

bool Timing::Next(const char* kernel, WGPUPassTimestampWrites& writes) {
  if (chunks_.empty() || chunks_.back()->names.size() == QueryPool::kQueries / 2) {
    std::unique_ptr<QueryPool::Chunk> chunk = pool_.Take();
    if (chunk == nullptr) {
      ++pool_.profile_.broken_pairs;
      return false;
    }
    chunks_.push_back(std::move(chunk));
  }
  QueryPool::Chunk& chunk = *chunks_.back();
  const auto query = static_cast<uint32_t>(chunk.names.size() * 2);
  chunk.names.push_back(kernel);
  writes.querySet = chunk.set.get();
  writes.beginningOfPassWriteIndex = query;
  writes.endOfPassWriteIndex = query + 1;
  return true;
}

void Timing::Resolve(WGPUCommandEncoder encoder) {
  for (const auto& chunk : chunks_) {
    const auto queries = static_cast<uint32_t>(chunk->names.size() * 2);
    wgpuCommandEncoderResolveQuerySet(encoder, chunk->set.get(), 0, queries, chunk->resolved.raw(), 0);
    wgpuCommandEncoderCopyBufferToBuffer(encoder, chunk->resolved.raw(), 0, chunk->readback->buffer().raw(), 0,
                                         queries * sizeof(uint64_t));
  }
}

void Timing::Collect() {
  for (auto& owned : chunks_) {
    // The closure owns the chunk until its timestamps are there, and gives it back to the pool.
    auto chunk = std::shared_ptr<QueryPool::Chunk>(std::move(owned));
    QueryPool* pool = &pool_;
    ++pool->profile_.pending;
    ++pool->context_.state_->unanswered;
    const uint64_t generation = pool->profile_.generation;
    const uint64_t bytes = chunk->names.size() * 2 * sizeof(uint64_t);
    chunk->readback->Map(bytes, [chunk, pool, generation](Result<std::span<const uint8_t>> stamps) {
      Profile& profile = pool->profile_;
      --profile.pending;
      if (profile.generation == generation) {
        if (stamps.ok()) {
          pool->Accumulate(chunk->names, *stamps);
          ++profile.collected;
        } else {
          profile.broken_pairs += chunk->names.size();
        }
      }
      auto back = std::make_unique<QueryPool::Chunk>(std::move(*chunk));
      back->names.clear();
      pool->free_.push_back(std::move(back));
      pool->context_.state_->Answered();
    });
  }
  chunks_.clear();
}

}  // namespace gemma4::gpu

#endif  // GEMMA4_PROFILE
