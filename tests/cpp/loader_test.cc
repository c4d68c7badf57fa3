// The loader against whole and damaged programs, P42: a damaged program is refused, or it is one that keeps every
// kernel inside its buffers. (That the bytes are the exporter's own is the manifest's business, which has the file's
// sha256.)
#include "check.h"
#include "footprint.h"
#include "program/contracts.h"
#include "program/loader.h"
#include "program/reader.h"
#include "program/recorder.h"
#include "program/weights.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using program::LoadProgram;
using program::Plan;
using test::DataPath;
using test::LargeLimits;
using test::Random;
using test::ReadFile;

#if GEMMA4_MTP
constexpr const char* kMethod = "k2_round";
constexpr const char* kOtherMethod = "text_decoder";
#else
constexpr const char* kMethod = "text_decoder";
constexpr const char* kOtherMethod = "k2_round";
#endif

constexpr const char* kModels[] = {"f32", "q4", "split", "all_logits", "progressive"};

std::vector<uint8_t> ReadProgram(std::string_view model) {
  return ReadFile(DataPath(Text(model, "/", kMethod, ".g4p")));
}

std::vector<std::vector<ops::DispatchSpec>> AllPasses(const Plan& plan) {
  std::vector<std::vector<ops::DispatchSpec>> passes;
  for (const uint32_t rows : {1u, plan.header.prefill_rows}) {
    passes.push_back(program::BuildPass(plan, false, {rows, 1}));
  }
  if (plan.header.mtp())
    passes.push_back(program::BuildPass(plan, true, {program::kRoundRows, program::kRoundRows}));
  return passes;
}

// Everything that the program says, as text.
std::string Meaning(const Plan& plan) {
  std::string text = plan.ToJson();
  for (const auto& pass : AllPasses(plan)) {
    for (const ops::DispatchSpec& spec : pass) {
      text += Text(spec.kernel->name, " ", spec.groups);
      for (const ops::BindingRef& ref : spec.bindings) text += Text(" ", static_cast<int>(ref.kind), ":", ref.index);
      text.append(reinterpret_cast<const char*>(spec.params.data()), spec.params_bytes);
    }
  }
  for (const program::WeightSpan& span : plan.spans) {
    text +=
        Text(plan.graph.tensors[span.tensor].name, " ", span.scales ? 1 : 0, " ", span.shard, " ", span.begin, "\n");
  }
  for (const ops::Tensor& tensor : plan.graph.tensors) text += Text(tensor.name, tensor.retain ? "+" : "-");
  return text;
}

void CheckSafe(const Plan& plan) {
  for (const auto& pass : AllPasses(plan)) CHECK_EQ(test::FindOutOfBounds(plan.graph, pass), "");
}

// O10: the table of per-layer embeddings, 64 rows of 640 bytes, in parts of what one binding holds, and a matrix of 160
// rows of 128 bytes too. They are refused where the mask forbids their parts, and a cache above the limit always.
GEMMA4_TEST(LoaderSplitsTablesAboveTheBindingLimit) {
  gpu::Limits limits = LargeLimits();
  limits.max_storage_binding_bytes = 64 * 640 - 4;
  const Result<Plan> plan = LoadProgram(ReadProgram("f32"), kMethod, limits);
  CHECK_OK(plan.status());
  if (!plan.ok()) return;
  CheckSafe(*plan);
  CHECK(plan->memory.largest_binding_bytes <= limits.max_storage_binding_bytes);
  CHECK_EQ(plan->memory.largest_binding_bytes, uint64_t{62 * 640});
  size_t parts = 0;
  for (const ops::DispatchSpec& spec : program::BuildPass(*plan, false, {2, 1})) {
    for (const ops::BindingRef& ref : spec.bindings) parts += ref.bytes != 0;
  }
  CHECK_EQ(parts, size_t{2});
  CHECK_REFUSED(LoadProgram(ReadProgram("f32"), kMethod, limits, ops::kAllRoutes & ~ops::kRouteEmbeddingParts).status(),
                "needs a binding of 40960 bytes", "40956");
  limits.max_storage_binding_bytes = 160 * 128 - 4;
  const Result<Plan> smaller = LoadProgram(ReadProgram("f32"), kMethod, limits);
  CHECK_OK(smaller.status());
  if (!smaller.ok()) return;
  CheckSafe(*smaller);
  CHECK_EQ(smaller->memory.largest_binding_bytes, uint64_t{158 * 128});
  CHECK_REFUSED(LoadProgram(ReadProgram("f32"), kMethod, limits, ops::kAllRoutes & ~ops::kRouteLinearParts).status(),
                "needs a binding of 20480 bytes", "20476");
  limits.max_storage_binding_bytes = 5000;
  CHECK_REFUSED(LoadProgram(ReadProgram("f32"), kMethod, limits).status(), "needs a binding of", "5000");
  limits.max_storage_binding_bytes = 64 * 640 - 4;
  limits.max_buffer_bytes = 64 * 640 - 4;
  CHECK_REFUSED(LoadProgram(ReadProgram("f32"), kMethod, limits).status(), "needs a buffer of 40960 bytes", "40956");
}

GEMMA4_TEST(LoaderAcceptsExports) {
  for (const char* model : kModels) {
    const Result<Plan> plan = LoadProgram(ReadProgram(model), kMethod, LargeLimits());
    CHECK_OK(plan.status());
    if (!plan.ok()) continue;
    CheckSafe(*plan);
    CHECK(plan->graph.ops.size() > 100);
    CHECK(plan->memory.slot_bytes.size() < 16);
    CHECK(!plan->spans.empty());
  }
}

// X1: a module runs one method.
GEMMA4_TEST(LoaderRefusesTheOtherMethod) {
  const std::vector<uint8_t> other = ReadFile(DataPath(Text("f32/", kOtherMethod, ".g4p")));
  const Result<Plan> plan = LoadProgram(other, kMethod, LargeLimits());
  CHECK_EQ(plan.status().code(), Code::kUnsupported);
  CHECK_REFUSED(plan.status(), kMethod, kOtherMethod);
}

// O8: the other method's ops are not part of this build, whatever the method check says.
GEMMA4_TEST(LoaderRefusesUnregisteredOps) {
  const std::vector<uint8_t> other = ReadFile(DataPath(Text("f32/", kOtherMethod, ".g4p")));
  const Result<Plan> plan = LoadProgram(other, kOtherMethod, LargeLimits());
  CHECK_EQ(plan.status().code(), Code::kUnsupported);
  CHECK_REFUSED(plan.status(), GEMMA4_MTP ? "CopyLast" : "DonorView", "not part of this build");
}

GEMMA4_TEST(LoaderRefusesForeignBytes) {
  CHECK_REFUSED(LoadProgram({}, kMethod, LargeLimits()).status(), "0 bytes");
  const std::vector<uint8_t> zeros(4096, 0);
  CHECK_REFUSED(LoadProgram(zeros, kMethod, LargeLimits()).status(), "G4WP");
  std::vector<uint8_t> bytes = ReadProgram("f32");
  bytes[4] = 'X';
  CHECK_REFUSED(LoadProgram(bytes, kMethod, LargeLimits()).status(), "G4WP");
  std::vector<uint8_t> large(program::kMaxProgramBytes + 1, 0);
  CHECK_REFUSED(LoadProgram(large, kMethod, LargeLimits()).status(), "at most");
}

GEMMA4_TEST(LoaderRefusesTooSmallAdapters) {
  const program::MemoryPlan memory = LoadProgram(ReadProgram("f32"), kMethod, LargeLimits()).value().memory;
  gpu::Limits limits = LargeLimits();
  limits.max_storage_binding_bytes = memory.largest_binding_bytes;
  CHECK_OK(LoadProgram(ReadProgram("f32"), kMethod, limits).status());
  limits.max_storage_binding_bytes -= 4;
  // The largest is a table of embeddings, which could be bound in parts.
  const uint32_t mask = ops::kAllRoutes & ~ops::kRouteEmbeddingParts;
  const Result<Plan> plan = LoadProgram(ReadProgram("f32"), kMethod, limits, mask);
  CHECK_EQ(plan.status().code(), Code::kLimitExceeded);
  CHECK_REFUSED(plan.status(), Text("tensor ", memory.largest_tensor), Text(memory.largest_binding_bytes),
                Text(limits.max_storage_binding_bytes));
}

// A truncated file is refused, unless only padding was cut off.
GEMMA4_TEST(LoaderRefusesTruncation) {
  for (const char* model : {"f32", "q4"}) {
    const std::vector<uint8_t> whole = ReadProgram(model);
    const std::string meaning = Meaning(LoadProgram(whole, kMethod, LargeLimits()).value());
    const size_t step = test::Soak() ? 1 : 211;
    for (size_t length = 0; length < whole.size(); length += length < 64 || length + 64 > whole.size() ? 1 : step) {
      const Result<Plan> plan = LoadProgram(std::span(whole).first(length), kMethod, LargeLimits());
      CHECK(!plan.ok() || Meaning(*plan) == meaning);
    }
  }
}

struct Outcome {
  uint32_t refused = 0, same = 0, other = 0;
};

void Load(const std::vector<uint8_t>& bytes, const std::string& meaning, Outcome* outcome) {
  const Result<Plan> plan = LoadProgram(bytes, kMethod, LargeLimits());
  if (!plan.ok()) {
    CHECK(!plan.status().message().empty());
    ++outcome->refused;
    return;
  }
  CheckSafe(*plan);
  ++(Meaning(*plan) == meaning ? outcome->same : outcome->other);
}

GEMMA4_TEST(LoaderSurvivesBitFlips) {
  const std::vector<uint8_t> whole = ReadProgram("q4");
  const std::string meaning = Meaning(LoadProgram(whole, kMethod, LargeLimits()).value());
  Random random(11);
  Outcome outcome;
  const size_t step = test::Soak() ? 1 : 31;
  for (size_t at = 0; at < whole.size(); at += step) {
    std::vector<uint8_t> bytes = whole;
    bytes[at] ^= static_cast<uint8_t>(1u << random.Below(8));
    Load(bytes, meaning, &outcome);
  }
  // Most bytes are offsets, lengths, indices and sizes: a flip there cannot pass.
  CHECK(outcome.refused > outcome.other);
  CHECK(outcome.refused > whole.size() / step / 4);
}

// Words replaced by values that break arithmetic: lengths, offsets and sizes near the ends of their ranges.
GEMMA4_TEST(LoaderSurvivesExtremeWords) {
  const std::vector<uint8_t> whole = ReadProgram("f32");
  const std::string meaning = Meaning(LoadProgram(whole, kMethod, LargeLimits()).value());
  constexpr uint32_t kExtremes[] = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffc, 0xffffffff};
  Random random(13);
  Outcome outcome;
  const size_t step = test::Soak() ? 4 : 4 * 29;
  for (size_t at = 8; at + 4 <= whole.size(); at += step) {
    std::vector<uint8_t> bytes = whole;
    const uint32_t word = kExtremes[random.Below(6)];
    std::memcpy(bytes.data() + at, &word, 4);
    Load(bytes, meaning, &outcome);
  }
  CHECK(outcome.refused > outcome.other);
}

// An offset that leads backward, or beyond the file, is refused by 32-bit and 64-bit builds alike.
GEMMA4_TEST(LoaderRefusesWrappingOffsets) {
  const std::vector<uint8_t> whole = ReadProgram("f32");
  const ops::schema::Program& root = *ops::schema::GetProgram(whole.data());
  for (const uint8_t* element :
       {root.tensors()->Data(), root.ops()->Data(), root.shards()->Data(), root.weights()->Data()}) {
    for (const uint32_t offset : {0xfffffffcu, 0xffffff00u, 0x80000000u, 0x7ffffffcu}) {
      std::vector<uint8_t> bytes = whole;
      std::memcpy(bytes.data() + (element - whole.data()), &offset, 4);
      CHECK_REFUSED(LoadProgram(bytes, kMethod, LargeLimits()).status(), "damaged");
    }
  }
}

// P49: a shard's name stays inside its folder.
GEMMA4_TEST(LoaderKnowsPlainFileNames) {
  for (const char* good : {"target-00001-of-00002.safetensors", "a", "my file.bin", "a..b", "x_1"}) {
    CHECK(program::IsPlainFileName(good));
  }
  for (const char* bad : {"", ".", "..", "../x", "/etc/passwd", "a/../x", "C:\\x", "a\\b", "C:x", "x.", "x ", ".x",
                          "a%2fb", "a\nb", "a\"b", "caf\xc3\xa9"}) {
    CHECK(!program::IsPlainFileName(bad));
  }
  CHECK(!program::IsPlainFileName(std::string_view("a\0b", 3)));
  CHECK(!program::IsPlainFileName(std::string(300, 'a')));
}

}  // namespace
}  // namespace gemma4
