// The table of certified scatters on its way to the GPU (X11): what is no permutation is refused, however it is cut and
// wherever its pieces lie, and a damaged model loads as soon as its bytes are right.
#include "program/certified.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "check.h"
#include "fake_webgpu.h"
#include "program/model.h"

namespace gemma4 {
namespace {

using program::CertifiedTable;
using program::Model;
using program::Plan;
using program::WeightSpan;
namespace schema = ops::schema;

constexpr uint32_t kNumbers = 300;

struct Counter final : program::WeightSink {
  Status Open(const WeightSpan&) override { return {}; }
  Status Append(std::span<const uint8_t> slice) override {
    bytes += slice.size();
    return {};
  }
  size_t bytes = 0;
};

// A plan of a table in two pieces, the second rows first, with another weight between them.
Plan TwoPieces(bool certified = true) {
  Plan plan;
  for (const char* name : {"table", "other"}) {
    ops::Tensor tensor;
    tensor.name = name;
    tensor.elements = kNumbers;
    plan.graph.tensors.push_back(tensor);
  }
  plan.spans = {{0, false, 0, 100, 400, 800}, {1, false, 0, 500, 1200, 0}, {0, false, 1, 100, 800, 0}};
  if (certified) plan.certificate = {{schema::Property_UniqueScatter, "table", std::string(64, 'a')}};
  return plan;
}

std::vector<int32_t> Reversed() {
  std::vector<int32_t> numbers(kNumbers);
  std::iota(numbers.rbegin(), numbers.rend(), 0);
  return numbers;
}

// What the pieces of `numbers` lead to; the other weight holds zeros.
Status Feed(CertifiedTable& table, const Plan& plan, const std::vector<int32_t>& numbers, size_t slice_bytes) {
  std::vector<uint8_t> bytes(kNumbers * 4);
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  const std::vector<uint8_t> zeros(kNumbers * 4);
  for (const WeightSpan& span : plan.spans) {
    GEMMA4_RETURN_IF_ERROR(table.Open(span));
    const std::span<const uint8_t> whole = span.tensor == 0 ? bytes : zeros;
    std::span<const uint8_t> rest = whole.subspan(static_cast<size_t>(span.to), static_cast<size_t>(span.bytes));
    while (!rest.empty()) {
      const size_t count = std::min(slice_bytes, rest.size());
      GEMMA4_RETURN_IF_ERROR(table.Append(rest.first(count)));
      rest = rest.subspan(count);
    }
  }
  return {};
}

GEMMA4_TEST(CertifiedTableIsAPermutation) {
  const Plan plan = TwoPieces();
  for (const size_t slice : {size_t{1}, size_t{3}, size_t{257}, size_t{4096}}) {
    Counter sink;
    CertifiedTable table(plan, sink);
    std::vector<int32_t> numbers = Reversed();
    CHECK_OK(Feed(table, plan, numbers, slice));
    CHECK_EQ(sink.bytes, size_t{2 * 4 * kNumbers});
    numbers[299] = numbers[0];  // in the other piece
    CHECK_REFUSED(Feed(table, plan, numbers, slice), "weight table holds 299 twice,", "permutation of 0 to 299: export");
    numbers[299] = numbers[298];
    CHECK_REFUSED(Feed(table, plan, numbers, slice), "holds 1 twice");
    numbers[299] = kNumbers;
    CHECK_REFUSED(Feed(table, plan, numbers, slice), "holds 300,");
    numbers[299] = -1;
    CHECK_REFUSED(Feed(table, plan, numbers, slice), "holds -1,");
    CHECK_OK(Feed(table, plan, Reversed(), slice));  // what came before counts for nothing
  }
}

GEMMA4_TEST(CertifiedTableThatBreaksOffStartsAgain) {
  const Plan plan = TwoPieces();
  Counter sink;
  CertifiedTable table(plan, sink);
  CHECK_OK(table.Open(plan.spans[0]));
  CHECK_OK(table.Append(std::vector<uint8_t>{7, 0, 0, 0, 8, 0}));
  CHECK_OK(Feed(table, plan, Reversed(), 64));
}

GEMMA4_TEST(CertifiedTableIsTheOneThatTheCertificateNames) {
  const Plan plan = TwoPieces(false);
  Counter sink;
  CertifiedTable table(plan, sink);
  CHECK_OK(Feed(table, plan, std::vector<int32_t>(kNumbers), 64));
  CHECK_EQ(sink.bytes, size_t{2 * 4 * kNumbers});
}

GEMMA4_TEST(ModelRefusesATableThatIsNoPermutation) {
  test::ResetFake();
  gpu::ObjectCounter counter;
  std::unique_ptr<gpu::Context> context = test::OpenFake(counter);
  const std::vector<uint8_t> program = test::ReadFile(test::DataPath("q4/k2_round.g4p"));
  if (!GEMMA4_MTP) return CHECK(!Model::MakePlan(program, "k2_round", context->limits()).ok());
  auto model = std::move(
      Model::Create(*context, std::move(Model::MakePlan(program, "k2_round", context->limits())).value())).value();
  const Plan& plan = model->plan();
  const auto ordering = std::find_if(plan.spans.begin(), plan.spans.end(), [&](const WeightSpan& span) {
    return plan.graph.tensors[span.tensor].name == "assistant.masked_embedding.token_ordering";
  });
  CHECK(ordering != plan.spans.end());
  for (const bool damaged : {true, false}) {
    Status last;
    for (uint32_t i = 0; i < plan.shards.size() && last.ok(); ++i) {
      std::vector<uint8_t> bytes = test::ReadFile(test::DataPath(Text("q4/", plan.shards[i].file)));
      if (damaged && ordering->shard == i) {
        const auto first = bytes.begin() + static_cast<ptrdiff_t>(ordering->begin);
        std::copy_n(first, 4, first + 8);
      }
      CHECK_OK(model->BeginShard(i));
      last = model->WriteShard(i, bytes);
      if (last.ok()) last = model->EndShard(i, plan.shards[i].sha256);
    }
    if (damaged) {
      CHECK_REFUSED(last, "token_ordering", "twice", "permutation");
    } else {
      CHECK_OK(last);
    }
    CHECK_EQ(model->AllShardsLoaded(), !damaged);
  }
  model.reset();
  context.reset();
  test::Pump();
}

}  // namespace
}  // namespace gemma4
