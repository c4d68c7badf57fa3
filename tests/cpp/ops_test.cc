// Ops below the loader: which of them a build has, rotary frequencies, rows of the tail, workgroup counts, numbers in
// messages.
#include <cmath>
#include <numbers>

#include "check.h"
#include "gpu/grid.h"
#include "ops/check.h"
#include "ops/registry.h"
#include "ops/rope.h"
#include "program/loader.h"
#include "program/recorder.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

namespace schema = ops::schema;

// O8: the registry of a plain build knows nothing of drafts.
GEMMA4_TEST(RegistryHasTheOpsOfItsBuild) {
  constexpr schema::OpKind kRoundOnly[] = {
      schema::OpKind_DonorView, schema::OpKind_Concat,    schema::OpKind_TopK,    schema::OpKind_GatherRows,
      schema::OpKind_Amin,      schema::OpKind_Fill,      schema::OpKind_Scatter, schema::OpKind_GatherLinear,
      schema::OpKind_ScatterUnique, schema::OpKind_AddScalar, schema::OpKind_Subtract, schema::OpKind_SeedWrite, schema::OpKind_Accept,  schema::OpKind_PassRows};
  for (int number = schema::OpKind_MIN; number <= schema::OpKind_MAX + 3; ++number) {
    const auto kind = static_cast<schema::OpKind>(number);
    bool wanted = number > schema::OpKind_NONE && number <= schema::OpKind_MAX;
    for (const schema::OpKind mtp : kRoundOnly) wanted = wanted && (kind != mtp || GEMMA4_MTP);
    if (kind == schema::OpKind_CopyLast) wanted = !GEMMA4_MTP;
    const ops::OpEntry* entry = ops::FindOp(kind);
    CHECK_EQ(entry != nullptr, wanted);
    if (entry == nullptr) continue;
    CHECK_EQ(entry->kind, kind);
    CHECK(entry->check != nullptr && entry->record != nullptr);
  }
}

// P27: position * frequency is the angle, to half a step of 2^-32 turns a position; pairs beyond the rotated ones stand
// still.
void CheckFrequencies(const ops::RopeKey& key) {
  const std::vector<uint32_t> frequencies = ops::RopeFrequencies(key);
  CHECK_EQ(frequencies.size(), size_t{key.head_dim / 2});
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    if (i >= key.rotated_pairs) {
      CHECK_EQ(frequencies[i], 0u);
      continue;
    }
    const double wanted = std::exp(-2.0 * i / key.denominator * std::log(static_cast<double>(key.theta)));
    for (const double position : {1.0, 511.0, 4096.0, 131071.0}) {
      const double turned = frequencies[i] / 4294967296.0 * 2.0 * std::numbers::pi * position;
      CHECK(std::fabs(turned - wanted * position) <= position * std::numbers::pi / 4294967296.0 * 1.001);
    }
  }
}

GEMMA4_TEST(RopeFrequenciesAreTurns) {
  CheckFrequencies({256, 128, 256, 1e4f});
  CheckFrequencies({512, 64, 512, 1e6f});
  CheckFrequencies({32, 16, 32, 1e4f});
  CheckFrequencies({64, 0, 64, 1e6f});
  // One radian a position is the largest frequency.
  CHECK_EQ(ops::RopeFrequencies({2, 1, 2, 1.0f})[0], 683565276u);
}

GEMMA4_TEST(TailRowsAreTheLastRows) {
  const char* method = GEMMA4_MTP ? "k2_round" : "text_decoder";
  const auto bytes = test::ReadFile(test::DataPath(Text("f32/", method, ".g4p")));
  const program::Plan plan = program::LoadProgram(bytes, method, test::LargeLimits()).value();
  size_t seen = 0;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    if (plan.graph.ops[i].kind != schema::OpKind_TailRows) continue;
    ++seen;
    const ops::Site site(plan.graph, i);
    const uint64_t width = ops::MatrixWidth(site.out(0));
    for (const ops::PassRows rows :
         {ops::PassRows{1, 1}, ops::PassRows{5, 1}, ops::PassRows{8, 1}, ops::PassRows{3, 3}}) {
      std::vector<ops::DispatchSpec> specs;
      ops::FindOp(schema::OpKind_TailRows)->record(site, rows, specs);
      kernels::CopyWordsParams params;
      CHECK_EQ(specs.size(), size_t{1});
      std::memcpy(&params, specs[0].params.data(), sizeof(params));
      CHECK_EQ(uint64_t{params.count}, rows.tail * width);
      CHECK_EQ(uint64_t{params.source_offset}, (rows.pass - rows.tail) * width);
    }
  }
  CHECK(seen >= 2);
}

// P19: counts just around the per-dimension limit come out exact and fold.
GEMMA4_TEST(ElementGroupsAroundTheLimit) {
  const uint64_t lanes = kernels::kSoftcap.workgroup[0];
  for (const uint64_t groups : {65534ull, 65535ull, 65536ull, 131071ull}) {
    for (const uint64_t elements : {groups * lanes, groups * lanes - 1, (groups - 1) * lanes + 1}) {
      CHECK_EQ(ops::ElementGroups(kernels::kSoftcap, elements), groups);
    }
    const gpu::Grid grid = gpu::FoldGrid(groups, 65535).value();
    CHECK(uint64_t{grid.x} * grid.y * grid.z >= groups);
  }
}

GEMMA4_TEST(FloatsInMessages) {
  CHECK_EQ(ops::FloatText(0), "0");
  CHECK_EQ(ops::FloatText(1), "1");
  CHECK_EQ(ops::FloatText(-1.5f), "-1.5");
  CHECK_EQ(ops::FloatText(39.1918f), "3.91917992e1");
  CHECK_EQ(ops::FloatText(1e-6f), "9.99999997e-7");
  CHECK_EQ(ops::FloatText(999999999.0f), "1e9");
  CHECK_EQ(ops::FloatText(1e-45f), "1.40129846e-45");
  CHECK_EQ(ops::FloatText(3.4028235e38f), "3.40282347e38");
  CHECK_EQ(ops::FloatText(-INFINITY), "-infinity");
  CHECK_EQ(ops::FloatText(NAN), "NaN");
  CHECK(ops::FloatText(0.1f) != ops::FloatText(std::nextafter(0.1f, 1.0f)));
}

}  // namespace
}  // namespace gemma4
