// A program on the GPU: its buffers, its weights, its pipelines and the recorded passes. Owns every buffer that the
// program names. Never decides what to run next, never waits, never reads tokens: that is decode/'s work.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/context.h"
#include "gpu/pipeline.h"
#include "gpu/recording.h"
#include "ops/dispatch.h"
#include "program/plan.h"
#include "program/shard_stream.h"

namespace gemma4::program {

class Memory;

// Which ops a pass holds. kAlways: prefill (rows <= prefill_rows) and plain decode (rows 1); one tail row.
// kRound (MTP): the draft ops too; rows must be 3, all three are tail rows.
enum class Phase : uint8_t { kAlways, kRound };

enum class InputName : uint8_t { kIds, kPositions, kRoundFlag, kDonorLength };  // the last two only in k2_round
// kNextToken only in text_decoder, the others only in k2_round.
enum class OutputName : uint8_t { kNextToken, kCandidates, kTargetGreedy, kMatchCount, kBonus, kStateProbe };

// What a readable tensor holds after a pass: dims[0] is already that pass's row count.
struct TensorInfo {
  const char* dtype = "";  // "f32" or "i32"
  std::vector<uint32_t> dims;
  uint64_t bytes = 0;
};

class Model {
 public:
  // Verifies the program and computes what it needs; no GPU work. Refuses a method other than `expected_method`
  // ("text_decoder" or "k2_round"), an op that this build does not have, and tensors above the limits.
  static Result<Plan> MakePlan(std::span<const uint8_t> program, std::string_view expected_method,
                               const gpu::Limits& limits, uint32_t route_mask = ops::kDefaultRoutes);

  // Allocates every buffer and writes the RoPE tables. On failure nothing stays allocated. `context` must outlive it.
  // An out-of-memory answer of the device arrives later as Context::status().
  static Result<std::unique_ptr<Model>> Create(gpu::Context& context, Plan plan);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Creates the pipelines of all ops, asynchronously; `done` runs once, or never when the Model is destroyed first.
  // Record fails before it has succeeded.
  void CompilePipelines(gpu::StatusCallback done);

  // Shards arrive in the plan's order, each begun, written in slices of any size, and ended with the digest of the
  // bytes that were written. Any failure forgets everything loaded so far: start again at shard 0.
  Status BeginShard(uint32_t shard);
  Status WriteShard(uint32_t shard, std::span<const uint8_t> slice);
  Status EndShard(uint32_t shard, std::string_view sha256_hex);
  bool AllShardsLoaded() const;

  // The dispatches of one pass. Cached: pointers of the eight latest distinct calls of Record and RecordCommit stay
  // valid.
  Result<const gpu::Recording*> Record(Phase phase, uint32_t rows);
  // The dispatch that moves ids, positions (and flag, donor length) on by what a pass of `rows` rows decided: kernel
  // commit_step (text_decoder) or commit_round (k2_round). Run it right after the pass, in the same submit.
  Result<const gpu::Recording*> RecordCommit(uint32_t rows);

  const gpu::Buffer& Input(InputName name) const;  // asserts that the method has it
  const gpu::Buffer& Output(OutputName name) const;
  // An output or a tensor that the program retains, by name, as it is after a pass of (phase, rows); fails on every
  // other name.
  Result<const gpu::Buffer*> Readable(std::string_view tensor_name, Phase phase, uint32_t rows, TensorInfo* info) const;

  // How the passes recorded so far are encoded: empty when each shares one compute pass, else why the first that does not
  // has a compute pass for each dispatch.
  const std::string& passes_apart() const { return passes_apart_; }

  const Header& header() const { return plan_.header; }
  const Plan& plan() const { return plan_; }

 private:
  struct Recordings;
  Model(gpu::Context& context, Plan plan);
  Status CheckRows(Phase phase, uint32_t rows) const;
  Status MayShare(const std::vector<ops::DispatchSpec>& specs, Phase phase) const;
  ops::DispatchSpec CommitSpec(uint32_t rows) const;

  gpu::Context& context_;
  Plan plan_;
  gpu::PipelineCache pipelines_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<WeightSink> table_;  // what stands before the memory; none in plain builds
  std::unique_ptr<Recordings> recordings_;
  std::unique_ptr<ShardStream> shards_;
  std::string passes_apart_;
};

}  // namespace gemma4::program
