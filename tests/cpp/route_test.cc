// Guards of routes: which way an op goes for every shape around the one that a route wants, and that what a route records
// stays inside its buffers. Graphs of a single op, made here.
#include "check.h"
#include "gpu/grid.h"
#include "one_op.h"
#include "test_limits.h"

namespace gemma4 {
namespace {

using test::LargeLimits;
using test::MakeTensor;
using test::OneOp;
namespace schema = ops::schema;

std::string ArgmaxWay(uint32_t rows, uint32_t width, uint32_t mask, std::vector<uint64_t>* groups = nullptr) {
  flatbuffers::FlatBufferBuilder builder;
  const auto attributes = schema::CreateArgmax(builder).Union();
  OneOp op(schema::OpKind_Argmax, builder, attributes, {MakeTensor(schema::Dtype_F32, {rows, width})},
           {MakeTensor(schema::Dtype_I32, {rows})});
  const std::string way = op.Way(LargeLimits(), mask);
  for (const ops::DispatchSpec& spec : op.specs) {
    if (groups != nullptr) groups->push_back(spec.groups);
    CHECK_EQ(spec.scratch[0], way == "generic" ? 0 : uint64_t{rows} * ((width + 2047) / 2048) * 8);
  }
  return way;
}

// O9: two stages above 4096 columns, in every number of rows.
GEMMA4_TEST(ArgmaxOfWideRowsIsInTwoStages) {
  for (const uint32_t width : {1u, 2048u, 4095u, 4096u}) CHECK_EQ(ArgmaxWay(3, width, ops::kAllRoutes), "generic");
  for (const uint32_t rows : {1u, 3u}) {
    for (const uint32_t width : {4097u, 6144u, 262143u, 262144u}) {
      std::vector<uint64_t> groups;
      CHECK_EQ(ArgmaxWay(rows, width, ops::kAllRoutes, &groups), "argmax_parts");
      CHECK_EQ(groups.size(), size_t{2});
      CHECK_EQ(groups[0], uint64_t{rows} * ((width + 2047) / 2048));
      CHECK_EQ(groups[1], uint64_t{rows});
    }
  }
  CHECK_EQ(ArgmaxWay(3, 262144, ops::kAllRoutes & ~ops::kRouteArgmaxParts), "generic");
}

// The parts of a table of this form under a limit: rows of each, after a check that they are all of it in order.
std::vector<uint32_t> EmbeddingParts(schema::Dtype dtype, uint32_t vocab, uint32_t width, uint64_t limit,
                                     std::string* way) {
  flatbuffers::FlatBufferBuilder builder;
  const auto attributes = schema::CreateEmbedding(builder, 2.0f).Union();
  ops::Tensor table = MakeTensor(dtype, {vocab, width});
  table.storage = schema::Storage_Weight;
  if (dtype == schema::Dtype_Q4) table.values_bytes = table.elements / 2, table.scales_bytes = table.elements / 16;
  OneOp op(schema::OpKind_Embedding, builder, attributes, {MakeTensor(schema::Dtype_I32, {3}), table},
           {MakeTensor(schema::Dtype_F32, {3, width})});
  gpu::Limits limits = LargeLimits();
  limits.max_storage_binding_bytes = limit;
  *way = op.Way(limits, ops::kAllRoutes);
  std::vector<uint32_t> counts;
  uint32_t next = 0;
  for (const ops::DispatchSpec& spec : op.specs) {
    kernels::EmbeddingF32Params params;  // as EmbeddingQ4Params begin
    std::memcpy(&params, spec.params.data(), sizeof(params));
    CHECK_EQ(params.first, next);
    CHECK_EQ(params.vocab, vocab);
    CHECK(*way == "generic" || spec.bindings[1].bytes <= limit);
    next += params.count;
    counts.push_back(params.count);
  }
  CHECK_EQ(next, vocab);
  return counts;
}

// O10: a table above the binding limit is bound in whole rows at offsets that the device takes.
GEMMA4_TEST(EmbeddingTablesAboveTheBindingLimitAreInParts) {
  using Counts = std::vector<uint32_t>;
  std::string way;
  CHECK(EmbeddingParts(schema::Dtype_F32, 97, 64, 97 * 256, &way) == Counts({97}));
  CHECK_EQ(way, "generic");
  CHECK(EmbeddingParts(schema::Dtype_F32, 97, 64, 97 * 256 - 4, &way) == Counts({96, 1}));
  CHECK_EQ(way, "embedding_parts");
  // Rows of 212 bytes begin at multiples of 256 every 64 rows; scales of 6 bytes every 128.
  CHECK(EmbeddingParts(schema::Dtype_F32, 97, 53, 15000, &way) == Counts({64, 33}));
  CHECK(EmbeddingParts(schema::Dtype_Q4, 389, 96, 48 * 255, &way) == Counts({128, 128, 128, 5}));
  CHECK(EmbeddingParts(schema::Dtype_Q4, 262144, 8960, uint64_t{1} << 30, &way) == Counts({239664, 22480}));
  CHECK(EmbeddingParts(schema::Dtype_Q4, 262144, 8960, uint64_t{128} << 20, &way).size() == 9);
  // Not even one aligned part fits: the generic way, which the memory plan refuses.
  CHECK(EmbeddingParts(schema::Dtype_F32, 97, 53, 13000, &way) == Counts({97}));
  CHECK_EQ(way, "generic");
}

// O10: candidates of a weight above the binding limit are scored by the part that holds them, a bad id by the first.
GEMMA4_TEST(GatheredWeightsAboveTheBindingLimitAreInParts) {
  if (!GEMMA4_MTP) return CHECK(ops::FindOp(schema::OpKind_GatherLinear) == nullptr);
  for (const auto dtype : {schema::Dtype_F32, schema::Dtype_Q4}) {
    flatbuffers::FlatBufferBuilder builder;
    ops::Tensor weight = MakeTensor(dtype, {1000, 64});
    weight.storage = schema::Storage_Weight;
    if (dtype == schema::Dtype_Q4) weight.values_bytes = weight.elements / 2, weight.scales_bytes = weight.elements / 16;
    OneOp op(schema::OpKind_GatherLinear, builder, schema::CreateGatherLinear(builder).Union(),
             {MakeTensor(schema::Dtype_F32, {1, 64}), weight, MakeTensor(schema::Dtype_I32, {1, 5})},
             {MakeTensor(schema::Dtype_F32, {1, 5})});
    gpu::Limits limits = LargeLimits();
    limits.max_storage_binding_bytes = weight.values_bytes;
    CHECK_EQ(op.Way(limits, ops::kAllRoutes), "generic");
    limits.max_storage_binding_bytes -= 4;
    CHECK_EQ(op.Way(limits, ops::kAllRoutes & ~ops::kRouteGatherLinearParts), "generic");
    CHECK_EQ(op.Way(limits, ops::kSoftwareRoutes), "gather_linear_parts");
    uint32_t next = 0;
    for (const ops::DispatchSpec& spec : op.specs) {
      kernels::GatherLinearF32Params params;  // as GatherLinearQ4Params begin
      std::memcpy(&params, spec.params.data(), sizeof(params));
      CHECK_EQ(params.rows, 1000u);
      CHECK_EQ(params.first, next);
      next += params.held;
    }
    CHECK_EQ(next, 1000u);
    CHECK_EQ(op.specs.size(), size_t{2});
  }
}

std::string TopKWay(uint32_t n, uint32_t k, uint32_t mask, const gpu::Limits& limits) {
  flatbuffers::FlatBufferBuilder builder;
  const auto attributes = schema::CreateTopK(builder, k).Union();
  OneOp op(schema::OpKind_TopK, builder, attributes, {MakeTensor(schema::Dtype_F32, {1, n})},
           {MakeTensor(schema::Dtype_F32, {1, k}), MakeTensor(schema::Dtype_I32, {1, k})});
  return op.Way(limits, mask);
}

// O1: the staged kernel for 32 of 2048 and for nothing else. O8: a plain build has neither way.
GEMMA4_TEST(StagedTopKIsForItsShapeOnly) {
  if (!GEMMA4_MTP) return CHECK(ops::FindOp(schema::OpKind_TopK) == nullptr);
  const gpu::Limits limits = LargeLimits();
  for (const uint32_t n : {2047u, 2048u, 2049u, 4096u}) {
    for (const uint32_t k : {1u, 31u, 32u, 33u}) {
      CHECK_EQ(TopKWay(n, k, ops::kAllRoutes, limits), n == 2048 && k == 32 ? "topk_staged" : "generic");
    }
  }
  CHECK_EQ(TopKWay(2048, 32, ops::kAllRoutes & ~ops::kRouteTopkStaged, limits), "generic");
  gpu::Limits small = limits;
  small.max_workgroup_storage_bytes = kernels::kTopkStaged.workgroup_bytes - 1;
  CHECK_EQ(TopKWay(2048, 32, ops::kAllRoutes, small), "generic");
  CHECK_EQ(kernels::kTopkStaged.workgroup[0], 64u);
  CHECK_EQ(kernels::kTopk.workgroup[0], 64u);
}

// O5: the scalar of an int32 addition or subtraction reaches the kernel as it is, at both ends too; x is int32.
GEMMA4_TEST(AddScalarKeepsItsValue) {
  if (!GEMMA4_MTP) return CHECK(ops::FindOp(schema::OpKind_AddScalar) == nullptr);
  for (const int32_t value : {INT32_MIN, INT32_MIN + 1, -1, 0, 1, INT32_MAX}) {
    flatbuffers::FlatBufferBuilder builder;
    const auto attributes = schema::CreateAddScalar(builder, value).Union();
    OneOp op(schema::OpKind_AddScalar, builder, attributes, {MakeTensor(schema::Dtype_I32, {5})},
             {MakeTensor(schema::Dtype_I32, {5})});
    CHECK_EQ(op.Way(LargeLimits(), ops::kAllRoutes), "generic");
    kernels::OffsetIntegersParams params;
    std::memcpy(&params, op.specs[0].params.data(), sizeof(params));
    CHECK_EQ(params.value, value);
    CHECK_EQ(params.others, 0u);
    op.graph.tensors[0].dtype = schema::Dtype_F32;
    CHECK(op.Way(LargeLimits(), ops::kAllRoutes).find("AddScalar") != std::string::npos);
  }
}

// O5: a difference of tensors of one shape, in a pass of any size, or of one tensor and an integer; of nothing else.
GEMMA4_TEST(SubtractTakesOneShapeOrOneInteger) {
  if (!GEMMA4_MTP) return CHECK(ops::FindOp(schema::OpKind_Subtract) == nullptr);
  const auto rows = [](uint32_t most) {
    ops::Tensor tensor = MakeTensor(schema::Dtype_I32, {most});
    tensor.rows = schema::Rows_Pass;
    return tensor;
  };
  const auto fixed = [](std::vector<uint32_t> dims) { return MakeTensor(schema::Dtype_I32, std::move(dims)); };
  const auto way = [](ops::Tensor a, ops::Tensor b, ops::Tensor out, uint32_t count, uint32_t others) {
    flatbuffers::FlatBufferBuilder builder;
    OneOp op(schema::OpKind_Subtract, builder, schema::CreateSubtract(builder).Union(), {std::move(a), std::move(b)},
             {std::move(out)});
    const std::string found = op.Way(LargeLimits(), ops::kAllRoutes, {3, 1});
    if (op.specs.empty()) return found;
    kernels::OffsetIntegersParams params;
    std::memcpy(&params, op.specs[0].params.data(), sizeof(params));
    CHECK_EQ(params.count, count);
    CHECK_EQ(params.value, 0);
    CHECK_EQ(params.others, others);
    return found;
  };
  CHECK_EQ(way(fixed({5}), fixed({5}), fixed({5}), 5, 5), "generic");
  CHECK_EQ(way(fixed({2, 7}), fixed({1}), fixed({2, 7}), 14, 1), "generic");
  CHECK_EQ(way(fixed({1}), fixed({1}), fixed({1}), 1, 1), "generic");
  // A symbolic position: as many as the pass has rows.
  CHECK_EQ(way(rows(8), fixed({1}), rows(8), 3, 1), "generic");
  CHECK_EQ(way(rows(8), rows(8), rows(8), 3, 3), "generic");
  for (const auto& wrong : {way(fixed({5}), fixed({4}), fixed({5}), 0, 0), way(fixed({5}), fixed({5}), fixed({4}), 0, 0),
                            way(rows(8), fixed({8}), rows(8), 0, 0), way(fixed({8}), rows(8), fixed({8}), 0, 0),
                            way(rows(1), fixed({1}), fixed({1}), 0, 0),
                            way(fixed({5}), MakeTensor(schema::Dtype_F32, {5}), fixed({5}), 0, 0)}) {
    CHECK(wrong.find("Subtract") != std::string::npos);
  }
}

}  // namespace
}  // namespace gemma4
