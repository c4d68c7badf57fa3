// A program on a device that validates everything and computes nothing: uploads, recordings, failures, teardown.
#include <algorithm>

#include "check.h"
#include "fake_webgpu.h"
#include "gpu/pass.h"
#include "program/contracts.h"
#include "program/model.h"
#include "program/recorder.h"

namespace gemma4 {
namespace {

using program::InputName;
using program::Model;
using program::OutputName;
using program::Phase;
using program::Plan;
using test::DataPath;
using test::Fake;
using test::OpenFake;
using test::Pump;
using test::ReadFile;

#if GEMMA4_MTP
constexpr const char* kMethod = "k2_round";
#else
constexpr const char* kMethod = "text_decoder";
#endif
constexpr bool kMtp = GEMMA4_MTP;

Plan MakePlan(std::string_view model, const gpu::Limits& limits) {
  return std::move(Model::MakePlan(ReadFile(DataPath(Text(model, "/", kMethod, ".g4p"))), kMethod, limits)).value();
}

// Device, context and model of one test; the device is new.
struct Bench {
  explicit Bench(std::string_view name, uint64_t max_binding_bytes = 0) : model_name(name) {
    test::ResetFake();
    if (max_binding_bytes != 0) Fake().max_binding_bytes = max_binding_bytes;
    context = OpenFake(counter);
  }
  ~Bench() {
    model.reset();
    context.reset();
    Pump();  // what WebGPU still owes is answered
  }

  Status Create() {
    GEMMA4_ASSIGN_OR_RETURN(model, Model::Create(*context, MakePlan(model_name, context->limits())));
    return {};
  }

  Status Compile() {
    Status compiled = Internal("the pipelines never came");
    model->CompilePipelines([&](Status status) { compiled = std::move(status); });
    Pump();
    return compiled;
  }

  Status Upload(size_t slice_bytes) {
    const auto& shards = model->plan().shards;
    for (uint32_t i = 0; i < shards.size(); ++i) {
      const std::vector<uint8_t> bytes = ReadFile(DataPath(Text(model_name, "/", shards[i].file)));
      GEMMA4_RETURN_IF_ERROR(model->BeginShard(i));
      for (size_t at = 0; at < bytes.size(); at += slice_bytes) {
        const size_t count = std::min(slice_bytes, bytes.size() - at);
        GEMMA4_RETURN_IF_ERROR(model->WriteShard(i, std::span(bytes).subspan(at, count)));
      }
      GEMMA4_RETURN_IF_ERROR(model->EndShard(i, shards[i].sha256));
    }
    return {};
  }

  void MakeReady() {
    CHECK_OK(Create());
    CHECK_OK(Compile());
    CHECK_OK(Upload(1 << 20));
    CHECK(model->AllShardsLoaded());
  }

  void CheckNoErrors() const {
    CHECK_OK(context->status());
    for (const std::string& error : Fake().validation_errors) test::Failed(__FILE__, __LINE__, error);
  }

  std::string model_name;
  gpu::ObjectCounter counter;
  std::unique_ptr<gpu::Context> context;
  std::unique_ptr<Model> model;
};

// Every weight arrives whole, whatever the slices and over however many shards; what pads a buffer to whole words stays
// zero, P22.
GEMMA4_TEST(ModelUploadsEveryWeight) {
  for (const std::string_view name : {"f32", "q4", "split"}) {
    for (const size_t slice : {size_t{4} << 20, size_t{10007}, size_t{257}, size_t{1}}) {
      Bench bench(name);
      CHECK_OK(bench.Create());
      CHECK_OK(bench.Upload(slice));
      CHECK(bench.model->AllShardsLoaded());
      const Plan& plan = bench.model->plan();
      std::vector<std::vector<uint8_t>> files;
      for (const auto& shard : plan.shards) files.push_back(ReadFile(DataPath(Text(name, "/", shard.file))));
      size_t split = 0;
      for (const program::WeightSpan& span : plan.spans) {
        const std::string label = Text(plan.graph.tensors[span.tensor].name, span.scales ? ".scale" : "");
        const auto buffer = Fake().Find(label);
        CHECK(buffer != nullptr);
        if (buffer == nullptr) continue;
        const uint8_t* wanted = files[span.shard].data() + span.begin;
        const auto begin = buffer->bytes.begin() + static_cast<ptrdiff_t>(span.to);
        const auto end = begin + static_cast<ptrdiff_t>(span.bytes);
        CHECK(std::equal(begin, end, wanted));
        split += span.to != 0;
        const ops::Tensor& tensor = plan.graph.tensors[span.tensor];
        if (span.to + span.bytes != (span.scales ? tensor.scales_bytes : tensor.values_bytes)) continue;
        CHECK(std::all_of(end, buffer->bytes.end(), [](uint8_t byte) { return byte == 0; }));
      }
      CHECK_EQ(split > 0, name == "split");
      bench.CheckNoErrors();
    }
  }
}

// R2: what was loaded in part counts for nothing, and a second load from the start succeeds.
GEMMA4_TEST(ModelForgetsAPartialLoad) {
  Bench bench("q4");
  CHECK_OK(bench.Create());
  CHECK_OK(bench.Compile());
  const std::vector<uint8_t> bytes = ReadFile(DataPath(Text("q4/", bench.model->plan().shards[0].file)));
  CHECK_OK(bench.model->BeginShard(0));
  CHECK_OK(bench.model->WriteShard(0, bytes));
  CHECK_REFUSED(bench.model->EndShard(0, std::string(64, '0')), "sha256");
  CHECK(!bench.model->AllShardsLoaded());
  CHECK_REFUSED(bench.model->Record(Phase::kAlways, 1).status(), "not loaded");
  CHECK_REFUSED(bench.model->BeginShard(1), "wanted shard 0");
  CHECK_OK(bench.Upload(65536));
  CHECK_OK(bench.model->Record(Phase::kAlways, 1).status());
}

// Runs a pass and compares what was dispatched with the pure list of its dispatches.
void CheckPass(Bench& bench, Phase phase, uint32_t rows, uint32_t tail) {
  const Result<const gpu::Recording*> recording = bench.model->Record(phase, rows);
  CHECK_OK(recording.status());
  if (!recording.ok()) return;
  const size_t before = Fake().dispatches.size();
  gpu::CommandRecorder recorder(*bench.context, "pass");
  recorder.Run(**recording);
  CHECK_OK(recorder.Submit());
  const auto specs = program::BuildPass(bench.model->plan(), phase == Phase::kRound, {rows, tail});
  CHECK_EQ(Fake().dispatches.size() - before, specs.size());
  for (size_t i = 0; i < std::min(specs.size(), Fake().dispatches.size() - before); ++i) {
    const test::FakeDispatch& found = Fake().dispatches[before + i];
    CHECK_EQ(found.kernel, specs[i].kernel->name);
    CHECK(uint64_t{found.x} * found.y * found.z >= specs[i].groups);
    // Params arrive in the uniform buffer exactly as the op made them.
    const auto& uniform = found.buffers.back();
    CHECK(std::equal(specs[i].params.begin(), specs[i].params.begin() + specs[i].params_bytes,
                     uniform->bytes.begin() + static_cast<ptrdiff_t>(found.offsets.back())));
  }
}

GEMMA4_TEST(ModelRecordsPasses) {
  for (const std::string_view name : {"f32", "q4", "all_logits", "progressive"}) {
    Bench bench(name);
    bench.MakeReady();
    const uint32_t prefill = bench.model->header().prefill_rows;
    for (const uint32_t rows : {prefill, 1u, prefill - 1, 3u}) CheckPass(bench, Phase::kAlways, rows, 1);
    if (kMtp) CheckPass(bench, Phase::kRound, program::kRoundRows, program::kRoundRows);
    for (const uint32_t rows : {1u, 3u}) {
      const size_t before = Fake().dispatches.size();
      const Result<const gpu::Recording*> commit = bench.model->RecordCommit(rows);
      CHECK_OK(commit.status());
      gpu::CommandRecorder recorder(*bench.context, "commit");
      recorder.Run(**commit);
      CHECK_OK(recorder.Submit());
      CHECK_EQ(Fake().dispatches.size(), before + 1);
      CHECK_EQ(Fake().dispatches.back().kernel, kMtp ? "commit_round" : "commit_step");
    }
    bench.CheckNoErrors();
  }
}

// O10: each part of the table is bound at its own offset; the device would refuse a larger binding.
GEMMA4_TEST(ModelBindsALargeTableInParts) {
  Bench bench("f32", 64 * 640 - 4);
  bench.MakeReady();
  CheckPass(bench, Phase::kAlways, 3, 1);
  std::vector<uint64_t> offsets;
  for (const test::FakeDispatch& dispatch : Fake().dispatches) {
    if (dispatch.kernel == "embedding_f32" && dispatch.buffers[1]->bytes.size() == 64 * 640) {
      offsets.push_back(dispatch.offsets[1]);
    }
  }
  CHECK(offsets == std::vector<uint64_t>({0, 62 * 640}));
  bench.CheckNoErrors();
}

GEMMA4_TEST(ModelRefusesPassesThatItDoesNotHave) {
  Bench bench("q4");
  bench.MakeReady();
  const uint32_t prefill = bench.model->header().prefill_rows;
  CHECK_REFUSED(bench.model->Record(Phase::kAlways, 0).status(), "0 rows");
  CHECK_REFUSED(bench.model->Record(Phase::kAlways, prefill + 1).status(), Text(prefill + 1, " rows"));
  CHECK_REFUSED(bench.model->Record(Phase::kRound, 2).status(), "2 rows");
  if (!kMtp) CHECK_REFUSED(bench.model->Record(Phase::kRound, 3).status(), "k2_round");
}

GEMMA4_TEST(ModelKeepsRecordings) {
  Bench bench("q4");
  bench.MakeReady();
  const gpu::Recording* first = bench.model->Record(Phase::kAlways, 1).value();
  const size_t buffers = Fake().buffers.size();
  for (uint32_t rows = 2; rows <= 8; ++rows) CHECK_OK(bench.model->Record(Phase::kAlways, rows).status());
  CHECK(bench.model->Record(Phase::kAlways, 1).value() == first);
  const uint64_t live = Fake().LiveBytes();
  for (uint32_t rows = 2; rows <= bench.model->header().prefill_rows; ++rows) {
    CHECK_OK(bench.model->Record(Phase::kAlways, rows).status());
  }
  CHECK(Fake().buffers.size() > buffers);
  CHECK(Fake().LiveBytes() <= live + (64 << 10));  // old recordings make room
  bench.CheckNoErrors();
}

GEMMA4_TEST(ModelKnowsItsPorts) {
  Bench bench("q4");
  CHECK_OK(bench.Create());
  CHECK_EQ(bench.model->Input(InputName::kIds).label(), "ids");
  CHECK_EQ(bench.model->Input(InputName::kPositions).label(), "positions");
  if (kMtp) {
    CHECK_EQ(bench.model->Input(InputName::kRoundFlag).label(), "round_flag");
    CHECK_EQ(bench.model->Input(InputName::kDonorLength).label(), "donor_length");
    CHECK_EQ(bench.model->Output(OutputName::kCandidates).label(), "candidates");
    CHECK_EQ(bench.model->Output(OutputName::kTargetGreedy).label(), "target_greedy");
    CHECK_EQ(bench.model->Output(OutputName::kMatchCount).label(), "match_count");
    CHECK_EQ(bench.model->Output(OutputName::kBonus).label(), "bonus");
    CHECK_EQ(bench.model->Output(OutputName::kStateProbe).label(), "state_probe");
  } else {
    CHECK_EQ(bench.model->Output(OutputName::kNextToken).label(), "next_token");
  }
}

GEMMA4_TEST(ModelLetsRetainedTensorsBeRead) {
  for (const bool all : {false, true}) {
    Bench bench(all ? "all_logits" : "f32");
    CHECK_OK(bench.Create());
    program::TensorInfo info;
    const auto logits = bench.model->Readable("logits", Phase::kAlways, 5, &info);
    CHECK_OK(logits.status());
    CHECK_EQ((*logits)->label(), "logits");
    CHECK_EQ(std::string(info.dtype), "f32");
    CHECK_EQ(info.dims.size(), size_t{2});
    CHECK_EQ(info.dims[0], all ? 5u : 1u);
    CHECK_EQ(info.dims[1], bench.model->header().vocab);
    CHECK_EQ(info.bytes, uint64_t{4} * info.dims[0] * info.dims[1]);
    if (kMtp) {
      CHECK_OK(bench.model->Readable("target_greedy", Phase::kRound, 3, &info).status());
      CHECK_EQ(std::string(info.dtype), "i32");
      CHECK_OK(bench.model->Readable("logits", Phase::kRound, 3, &info).status());
      CHECK_EQ(info.dims[0], 3u);
    }
    for (const char* hidden_away : {"embedded", "cache.0.k", "ids", "no such tensor", ""}) {
      CHECK_REFUSED(bench.model->Readable(hidden_away, Phase::kAlways, 1, &info).status(), "no tensor");
    }
  }
}

GEMMA4_TEST(ModelNamesThePipelineThatFails) {
  Bench bench("q4");
  CHECK_OK(bench.Create());
  CHECK_OK(bench.Upload(1 << 20));
  CHECK_REFUSED(bench.model->Record(Phase::kAlways, 1).status(), "before its pipeline");
  Fake().fail_pipeline = "rope";
  CHECK_REFUSED(bench.Compile(), "rope", "the shader is refused");
  CHECK_REFUSED(bench.model->Record(Phase::kAlways, 1).status(), "before its pipeline");
  Fake().fail_pipeline.clear();
  CHECK_OK(bench.Compile());
  CHECK_OK(bench.model->Record(Phase::kAlways, 1).status());
}

// P25: whichever allocation fails, the error names it and nothing stays allocated.
GEMMA4_TEST(ModelSurvivesEveryFailedAllocation) {
  size_t count = 0;
  {
    Bench bench("q4");
    CHECK_OK(bench.Create());
    count = Fake().buffers.size();
  }
  CHECK(count > 100);
  for (size_t n = 0; n < count; n += test::Soak() ? 1 : 7) {
    Bench bench("q4");
    Fake().fail_buffer = static_cast<int32_t>(n);
    const Status created = bench.Create();  // the out-of-memory answer arrives later
    CHECK_OK(created);
    Status settled;
    bench.context->Settle([&](Status status) { settled = std::move(status); });
    Pump();
    CHECK_EQ(settled.code(), Code::kOutOfMemory);
    CHECK_REFUSED(settled, "buffer ", " bytes", Fake().buffers[n]->label);
    bench.model.reset();
    CHECK_EQ(Fake().LiveBytes(), 0u);
    CHECK_EQ(bench.counter.buffer_bytes, 0u);
  }
}

GEMMA4_TEST(ModelLeavesNothingBehind) {
  Bench bench("f32");
  const int32_t objects = bench.counter.objects;
  for (int round = 0; round < 3; ++round) {
    bench.MakeReady();
    CHECK_OK(bench.model->Record(Phase::kAlways, 1).status());
    CHECK_OK(bench.model->RecordCommit(1).status());
    CHECK(bench.counter.buffer_bytes > 0);
    bench.model.reset();
    Pump();
    CHECK_EQ(bench.counter.objects, objects);
    CHECK_EQ(bench.counter.buffer_bytes, 0u);
    CHECK_EQ(Fake().LiveBytes(), 0u);
  }
  bench.context.reset();
  Pump();
  CHECK_EQ(bench.counter.objects, 0);
  CHECK_EQ(Fake().live_objects, 0);
}

// A model destroyed while its pipelines are being made is not called back.
GEMMA4_TEST(ModelMayGoWhileItCompiles) {
  Bench bench("q4");
  CHECK_OK(bench.Create());
  bool called = false;
  bench.model->CompilePipelines([&](Status) { called = true; });
  bench.model.reset();
  Pump();
  CHECK(!called);
  bench.context.reset();
  Pump();
  CHECK_EQ(Fake().live_objects, 0);
}

}  // namespace
}  // namespace gemma4
