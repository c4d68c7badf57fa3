// When the dispatches of a pass share one compute pass (R11): what the recorded list must not do, what a model encodes with
// and without the exporter's proof, and that it says which.
#include <algorithm>

#include "check.h"
#include "fake_webgpu.h"
#include "gpu/pass.h"
#include "program/contracts.h"
#include "program/loader.h"
#include "program/model.h"
#include "program/one_pass.h"
#include "program/recorder.h"
#include "sketch.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using ops::BindingRef;
using ops::DispatchSpec;
using program::Phase;
using program::Plan;
using test::Fake;
using test::Sketch;
namespace schema = ops::schema;

constexpr bool kMtp = GEMMA4_MTP;
constexpr const char* kMethod = kMtp ? "k2_round" : "text_decoder";

// x -> gelu(x) * x -> a -> gelu(a) * x -> b, in slots of their own unless a test says otherwise.
struct Chain {
  Chain() {
    x = sketch.Tensor("x", schema::Storage_Input, {Sketch::kRows, 4});
    weight = sketch.Weight({4, 4});
    a = sketch.Activation("a", 4);
    b = sketch.Activation("b", 4);
    view = sketch.Tensor("view", schema::Storage_View, {Sketch::kRows, 4});
    sketch.GeluMul(x, x, 0, a);
    sketch.GeluMul(a, x, 0, b);
    sketch.graph.ops[0].outputs.push_back(view);
    memory.slot = {program::kNoSlot, program::kNoSlot, 0, 1, program::kNoSlot};
    memory.slot_bytes = {128, 128};
    specs = {Gelu(x, x, a), Gelu(a, x, b)};
  }
  static BindingRef Of(uint32_t tensor) { return {BindingRef::Kind::kValues, tensor}; }
  static DispatchSpec Gelu(uint32_t in, uint32_t other, uint32_t out) {
    return ops::MakeDispatch(kernels::kGeluMul, {Of(in), Of(other), Of(out)}, kernels::GeluMulParams{}, 1);
  }
  Status Check() const { return program::CheckRecorded(sketch.graph, memory, specs, false); }

  Sketch sketch;
  program::MemoryPlan memory;
  std::vector<DispatchSpec> specs;
  uint32_t x = 0, weight = 0, a = 0, b = 0, view = 0;
};

GEMMA4_TEST(OnePassTakesWhatIsInOrder) {
  CHECK_OK(Chain().Check());
  Chain parts;  // rows of one tensor by two dispatches
  parts.specs.insert(parts.specs.begin(), parts.specs[0]);
  CHECK_OK(parts.Check());
  Chain reused;  // a slot again, when nobody reads what was in it
  reused.specs.push_back(Chain::Gelu(reused.x, reused.x, reused.a));
  CHECK_OK(reused.Check());
}

GEMMA4_TEST(OnePassRefusesUndeclaredWrites) {
  for (const char* name : {"x", "weight", "view"}) {
    Chain chain;
    const uint32_t tensor = name[0] == 'x' ? chain.x : name[0] == 'w' ? chain.weight : chain.view;
    chain.specs[0].bindings[2] = Chain::Of(tensor);
    if (tensor == chain.x) chain.specs[0].bindings[0] = chain.specs[0].bindings[1] = Chain::Of(chain.weight);
    CHECK_REFUSED(chain.Check(), "gelu_mul writes", name, "no op's output");
  }
  Chain scales;
  scales.specs[0].bindings[2] = {BindingRef::Kind::kScales, scales.a};
  CHECK_REFUSED(scales.Check(), "no op's output");
}

GEMMA4_TEST(OnePassRefusesAliases) {
  Chain itself;
  itself.specs[1] = Chain::Gelu(itself.a, itself.x, itself.a);
  CHECK_REFUSED(itself.Check(), "writes a where it binds a");
  Chain planned;  // two tensors that the plan of memory puts in one buffer
  planned.memory.slot[planned.b] = planned.memory.slot[planned.a];
  CHECK_REFUSED(planned.Check(), "writes b where it binds a");
  Chain ranges;  // WebGPU looks at the buffer, not at the bytes
  ranges.memory.slot[ranges.b] = ranges.memory.slot[ranges.a];
  ranges.specs[1].bindings[0].offset = 256;
  CHECK_REFUSED(ranges.Check(), "writes b where it binds a");
}

GEMMA4_TEST(OnePassRefusesStaleReads) {
  Chain swapped;
  std::swap(swapped.specs[0], swapped.specs[1]);
  CHECK_REFUSED(swapped.Check(), "reads a, which nothing before it writes");
  Chain overwritten;  // b takes the slot of a, which is read once more
  overwritten.memory.slot[overwritten.b] = overwritten.memory.slot[overwritten.a];
  overwritten.specs[1] = Chain::Gelu(overwritten.x, overwritten.x, overwritten.b);
  overwritten.specs.push_back(Chain::Gelu(overwritten.a, overwritten.x, overwritten.view));
  CHECK_REFUSED(overwritten.Check(), "reads a where b is by then");
  Chain scratch;
  scratch.specs[0].bindings[1] = {BindingRef::Kind::kScratch, 1};
  CHECK_REFUSED(scratch.Check(), "reads scratch 1, which nothing before it writes");
}

// Device, context and model of one test, ready to record.
struct Bench {
  explicit Bench(Plan plan) {
    test::ResetFake();
    context = test::OpenFake(counter);
    model = std::move(program::Model::Create(*context, std::move(plan))).value();
    Status compiled = Internal("the pipelines never came");
    model->CompilePipelines([&](Status status) { compiled = std::move(status); });
    test::Pump();
    CHECK_OK(compiled);
    for (uint32_t i = 0; i < model->plan().shards.size(); ++i) {
      const auto& shard = model->plan().shards[i];
      CHECK_OK(model->BeginShard(i));
      CHECK_OK(model->WriteShard(i, test::ReadFile(test::DataPath(Text("q4/", shard.file)))));
      CHECK_OK(model->EndShard(i, shard.sha256));
    }
  }
  ~Bench() {
    model.reset();
    context.reset();
    test::Pump();
  }

  // A step or round with its commit and a copy, as decode/ submits them; the numbers of the compute passes of its dispatches.
  std::vector<uint32_t> Submit() {
    const uint32_t rows = kMtp ? program::kRoundRows : 1;
    const size_t before = Fake().dispatches.size();
    const auto pass = model->Record(kMtp ? Phase::kRound : Phase::kAlways, rows);
    const auto commit = model->RecordCommit(rows);
    CHECK_OK(pass.status());
    CHECK_OK(commit.status());
    if (!pass.ok() || !commit.ok()) return {};
    gpu::CommandRecorder recorder(*context, "step");
    recorder.Run(**pass);
    recorder.Run(**commit);
    CHECK_OK(recorder.CopyBuffer(model->Input(program::InputName::kIds), 0,
                                 model->Input(program::InputName::kPositions), 0, 4));
    CHECK_OK(recorder.Submit());
    std::vector<uint32_t> found;
    for (size_t i = before; i < Fake().dispatches.size(); ++i) found.push_back(Fake().dispatches[i].pass);
    for (const std::string& error : Fake().validation_errors) test::Failed(__FILE__, __LINE__, error);
    return found;
  }

  gpu::ObjectCounter counter;
  std::unique_ptr<gpu::Context> context;
  std::unique_ptr<program::Model> model;
};

Plan Load() {
  test::ResetFake();
  gpu::ObjectCounter counter;
  const auto context = test::OpenFake(counter);
  return std::move(program::Model::MakePlan(test::ReadFile(test::DataPath(Text("q4/", kMethod, ".g4p"))), kMethod,
                                            context->limits())).value();
}

bool AllInOne(const std::vector<uint32_t>& passes) {
  return passes.size() > 20 && std::ranges::all_of(passes, [&](uint32_t pass) { return pass == passes[0]; });
}
bool EachItsOwn(const std::vector<uint32_t>& passes) {
  return passes.size() > 20 && std::ranges::adjacent_find(passes, std::equal_to()) == passes.end();
}

GEMMA4_TEST(ModelEncodesAProvenStepInOnePass) {
  Bench bench(Load());
  CHECK(AllInOne(bench.Submit()));
  CHECK(AllInOne(bench.Submit()));  // and the recording again
  CHECK_EQ(Fake().passes, 2u);
  CHECK_EQ(bench.model->passes_apart(), "");
}

GEMMA4_TEST(ModelWithoutAProofEncodesAPassADispatch) {
  Plan plan = Load();
  std::erase_if(plan.certificate, [](const program::Proof& proof) {
    return proof.property == schema::Property_SingleComputePass;
  });
  Bench bench(std::move(plan));
  CHECK(EachItsOwn(bench.Submit()));
  CHECK_EQ(bench.model->passes_apart(), "the program has no proof of a single compute pass");
}

// A proof alone switches nothing on: here two activations share a buffer while both are wanted.
GEMMA4_TEST(ModelDoesNotBelieveAForgedProof) {
  size_t forged = 0;
  const Plan sound = Load();
  for (uint32_t tensor = 0; tensor < sound.graph.tensors.size() && forged < 3; ++tensor) {
    for (uint32_t slot = 0; sound.memory.slot[tensor] != program::kNoSlot && slot < sound.memory.slot_bytes.size(); ++slot) {
      Plan plan = Load();
      if (slot == plan.memory.slot[tensor] || plan.graph.tensors[tensor].values_bytes > plan.memory.slot_bytes[slot]) continue;
      plan.memory.slot[tensor] = slot;
      const uint32_t rows = kMtp ? program::kRoundRows : 1;
      const Status found = program::MayShareOnePass(plan, BuildPass(plan, kMtp, {rows, rows}), kMtp);
      if (found.message().find("is by then") == std::string::npos) continue;
      Bench bench(std::move(plan));
      if (!bench.model->Record(kMtp ? Phase::kRound : Phase::kAlways, rows).ok()) continue;  // an alias: not even recorded
      CHECK(EachItsOwn(bench.Submit()));
      CHECK_EQ(bench.model->passes_apart(), found.message());
      ++forged;
      break;
    }
  }
  CHECK_EQ(forged, size_t{3});
}

}  // namespace
}  // namespace gemma4
