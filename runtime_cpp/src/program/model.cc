#include "program/model.h"

#include <algorithm>
#include <cassert>

#include "base/text.h"
#include "ops/commit.h"
#include "program/certified.h"
#include "program/contracts.h"
#include "program/loader.h"
#include "program/memory.h"
#include "program/one_pass.h"

namespace gemma4::program {

namespace {

namespace schema = ops::schema;

// Prefill chunk, last shorter chunk, decode or round, and their commits; the rest is room for a second prompt's tail.
constexpr size_t kKeptRecordings = 8;

ops::PassRows RowsOf(Phase phase, uint32_t rows) { return {rows, phase == Phase::kRound ? rows : 1}; }

}  // namespace

// Recordings by what was asked for; the least recently used one makes room.
struct Model::Recordings {
  struct Entry {
    bool commit = false;
    Phase phase = Phase::kAlways;
    uint32_t rows = 0;
    std::unique_ptr<gpu::Recording> recording;
  };

  gpu::Recording* Find(bool commit, Phase phase, uint32_t rows) {
    const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.commit == commit && entry.phase == phase && entry.rows == rows;
    });
    if (found == entries.end()) return nullptr;
    std::rotate(entries.begin(), found, found + 1);
    return entries.front().recording.get();
  }

  const gpu::Recording* Keep(Entry entry) {
    if (entries.size() == kKeptRecordings) entries.pop_back();
    return entries.insert(entries.begin(), std::move(entry))->recording.get();
  }

  std::vector<Entry> entries;  // most recently used first
};

Model::Model(gpu::Context& context, Plan plan)
    : context_(context), plan_(std::move(plan)), pipelines_(context), recordings_(std::make_unique<Recordings>()) {}

Model::~Model() = default;

Result<Plan> Model::MakePlan(std::span<const uint8_t> program, std::string_view expected_method,
                             const gpu::Limits& limits, uint32_t route_mask) {
  return LoadProgram(program, expected_method, limits, route_mask);
}

Result<std::unique_ptr<Model>> Model::Create(gpu::Context& context, Plan plan) {
  std::unique_ptr<Model> model(new Model(context, std::move(plan)));
  GEMMA4_ASSIGN_OR_RETURN(model->memory_, Memory::Create(context, model->plan_));
  WeightSink* sink = model->memory_.get();
#if GEMMA4_MTP
  model->table_ = std::make_unique<CertifiedTable>(model->plan_, *sink);
  sink = model->table_.get();
#endif
  model->shards_ = std::make_unique<ShardStream>(model->plan_.shards, model->plan_.spans, *sink);
  return model;
}

void Model::CompilePipelines(gpu::StatusCallback done) {
  std::vector<const kernels::Kernel*> kernels = KernelsOf(plan_);
  kernels.push_back(CommitSpec(1).kernel);
  pipelines_.Build(kernels, std::move(done));
}

Status Model::BeginShard(uint32_t shard) { return shards_->Begin(shard); }
Status Model::WriteShard(uint32_t shard, std::span<const uint8_t> slice) { return shards_->Write(shard, slice); }
Status Model::EndShard(uint32_t shard, std::string_view sha256_hex) { return shards_->End(shard, sha256_hex); }
bool Model::AllShardsLoaded() const { return shards_->complete(); }

Status Model::CheckRows(Phase phase, uint32_t rows) const {
  if (phase == Phase::kRound && (!plan_.header.mtp() || rows != kRoundRows)) {
    return InvalidArgument(
        Text("a round of ", rows, " rows of ", plan_.header.method, ": wanted ", kRoundRows, " rows of k2_round"));
  }
  if (rows == 0 || rows > std::max(plan_.header.prefill_rows, phase == Phase::kRound ? kRoundRows : 1)) {
    return InvalidArgument(Text("a pass of ", rows, " rows, wanted 1 to ", plan_.header.prefill_rows));
  }
  if (!AllShardsLoaded()) return FailedState("the weights are not loaded");
  return {};
}

Result<const gpu::Recording*> Model::Record(Phase phase, uint32_t rows) {
  GEMMA4_RETURN_IF_ERROR(CheckRows(phase, rows));
  if (const gpu::Recording* known = recordings_->Find(false, phase, rows)) return known;
  const std::vector<ops::DispatchSpec> specs = BuildPass(plan_, phase == Phase::kRound, RowsOf(phase, rows));
  GEMMA4_ASSIGN_OR_RETURN(gpu::Recording recording, RecordDispatches(context_, pipelines_, *memory_, specs));
  if (const Status shared = MayShare(specs, phase); shared.ok()) {
    recording.ShareOnePass();
  } else if (passes_apart_.empty()) {
    passes_apart_ = shared.message();
  }
  return recordings_->Keep({false, phase, rows, std::make_unique<gpu::Recording>(std::move(recording))});
}

Status Model::MayShare(const std::vector<ops::DispatchSpec>& specs, Phase phase) const {
#if GEMMA4_PROFILE
  if (context_.queries() != nullptr) return FailedState("timestamps need a compute pass for each dispatch");
#endif
  return MayShareOnePass(plan_, specs, phase == Phase::kRound);
}

ops::DispatchSpec Model::CommitSpec(uint32_t rows) const {
#if GEMMA4_MTP
  return ops::CommitRound({.match_count = plan_.outputs[2],
                           .bonus = plan_.outputs[3],
                           .ids = plan_.inputs[0],
                           .positions = plan_.inputs[1],
                           .flag = plan_.inputs[2],
                           .donor_length = plan_.inputs[3]},
                          rows);
#else
  return ops::CommitStep({.next_token = plan_.outputs[0], .ids = plan_.inputs[0], .positions = plan_.inputs[1]}, rows);
#endif
}

Result<const gpu::Recording*> Model::RecordCommit(uint32_t rows) {
  if (const gpu::Recording* known = recordings_->Find(true, Phase::kAlways, rows)) return known;
  GEMMA4_ASSIGN_OR_RETURN(gpu::Recording recording,
                          RecordDispatches(context_, pipelines_, *memory_, {CommitSpec(rows)}));
  // No op of the program: a single dispatch, which may stand in the pass of what it commits.
  if (passes_apart_.empty()) recording.ShareOnePass();
  return recordings_->Keep({true, Phase::kAlways, rows, std::make_unique<gpu::Recording>(std::move(recording))});
}

const gpu::Buffer& Model::Input(InputName name) const {
  const auto index = static_cast<size_t>(name);
  assert(index < plan_.inputs.size());
  return memory_->Values(plan_.inputs[index]);
}

const gpu::Buffer& Model::Output(OutputName name) const {
  // k2_round's outputs follow kNextToken in the enum.
  const size_t index = plan_.header.mtp() ? static_cast<size_t>(name) - 1 : static_cast<size_t>(name);
  assert(index < plan_.outputs.size());
  return memory_->Values(plan_.outputs[index]);
}

Result<const gpu::Buffer*> Model::Readable(std::string_view tensor_name, Phase phase, uint32_t rows,
                                           TensorInfo* info) const {
  for (uint32_t i = 0; i < plan_.graph.tensors.size(); ++i) {
    const ops::Tensor& tensor = plan_.graph.tensors[i];
    if (tensor.name != tensor_name) continue;
    if (tensor.storage != schema::Storage_Output && !tensor.retain) break;
    info->dtype = tensor.dtype == schema::Dtype_I32 ? "i32" : "f32";
    info->dims = tensor.dims;
    if (tensor.rows != schema::Rows_Fixed) info->dims[0] = ops::RowsIn(ops::MatrixRows(tensor), RowsOf(phase, rows));
    info->bytes = 4;
    for (const uint32_t dim : info->dims) info->bytes *= dim;
    return &memory_->Values(i);
  }
  return InvalidArgument(Text("the program keeps no tensor ", tensor_name, " that can be read"));
}

}  // namespace gemma4::program
