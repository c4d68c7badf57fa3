#include "program/fusions.h"

#include <algorithm>

#include "ops/cache_write.h"
#include "ops/linear_fusions.h"
#include "ops/rms_norm.h"
#include "ops/site.h"

namespace gemma4::program {
namespace {

using ops::Graph;
using ops::Op;
using ops::Tensor;
namespace schema = ops::schema;

constexpr uint32_t kNever = UINT32_MAX;

// Who writes and who reads every tensor.
class Users {
 public:
  explicit Users(const Graph& graph) : graph_(graph), writer_(graph.tensors.size(), kNever), readers_(graph.tensors.size()) {
    for (uint32_t i = 0; i < graph.ops.size(); ++i) {
      for (const int32_t input : graph.ops[i].inputs) {
        if (input >= 0) readers_[static_cast<size_t>(input)].push_back(i);
      }
      for (const uint32_t output : graph.ops[i].outputs) writer_[output] = i;
    }
  }

  // Ops that read a tensor, ascending; one that reads it twice is there twice.
  const std::vector<uint32_t>& ReadersOf(uint32_t tensor) const { return readers_[tensor]; }

  // The op that writes a tensor which one op alone reads, and which need not be written where that op is fused with it; else
  // kNever.
  uint32_t WriterOfPrivate(int32_t tensor) const {
    const Tensor& values = graph_.tensors[static_cast<size_t>(tensor)];
    const bool is_private = values.storage == schema::Storage_Activation && !values.retain &&
                            readers_[static_cast<size_t>(tensor)].size() == 1;
    return is_private ? writer_[static_cast<size_t>(tensor)] : kNever;
  }

  // Whether one kernel may run these ops where the first of them stands: their other inputs are there, and all are of one
  // phase and row count.
  bool MayRunTogether(const OpChain& chain) const {
    const Op& first = graph_.ops[chain.front()];
    const ops::RowCount rows = ops::MatrixRows(graph_.tensors[first.outputs[0]]);
    return std::all_of(chain.begin(), chain.end(), [&](uint32_t i) {
      const Op& op = graph_.ops[i];
      return op.phase == first.phase && op.role == first.role &&
             ops::MatrixRows(graph_.tensors[op.outputs[0]]) == rows &&
             std::all_of(op.inputs.begin(), op.inputs.end(), [&](int32_t input) {
               return input < 0 || IsThereFor(static_cast<uint32_t>(input), chain);
             });
    });
  }

 private:
  bool IsThereFor(uint32_t tensor, const OpChain& chain) const {
    switch (graph_.tensors[tensor].storage) {
      case schema::Storage_Weight:
      case schema::Storage_Input:
        return true;
      case schema::Storage_Activation:
      case schema::Storage_Output:
        return writer_[tensor] < chain.front() ||
               std::find(chain.begin(), chain.end(), writer_[tensor]) != chain.end();
      default:
        return false;  // caches change their contents between ops
    }
  }

  const Graph& graph_;
  std::vector<uint32_t> writer_;
  std::vector<std::vector<uint32_t>> readers_;
};

// h = (residual + norm(x) w) scalar, y = norm(h) w2 of the same width and eps. Anybody may read h and y: both are written.
std::vector<OpChain> FindNormPairs(const Graph& graph, const std::vector<bool>& taken) {
  enum Input : size_t { kX, kWeight, kResidual, kScalar };
  const Users users(graph);
  std::vector<OpChain> found;
  for (uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (taken[i] || op.kind != schema::OpKind_RmsNorm || op.inputs[kResidual] < 0) continue;
    const schema::RmsNorm& form = *op.table->kind_as_RmsNorm();
    for (const uint32_t reader : users.ReadersOf(op.outputs[0])) {
      const Op& next = graph.ops[reader];
      if (taken[reader] || next.kind != schema::OpKind_RmsNorm) continue;
      const schema::RmsNorm& next_form = *next.table->kind_as_RmsNorm();
      const bool plain = next.inputs[kX] == static_cast<int32_t>(op.outputs[0]) && next.inputs[kWeight] >= 0 &&
                         next.inputs[kWeight] != next.inputs[kX] && next.inputs[kResidual] < 0 &&
                         next.inputs[kScalar] < 0;
      if (!plain || form.width() != next_form.width() || form.eps() != next_form.eps()) continue;
      if (!users.MayRunTogether({i, reader})) continue;
      found.push_back({i, reader});
      break;
    }
  }
  return found;
}

bool IsQ4Linear(const Graph& graph, uint32_t op) {
  return op != kNever && graph.ops[op].kind == schema::OpKind_Linear &&
         graph.tensors[static_cast<size_t>(graph.ops[op].inputs[1])].dtype == schema::Dtype_Q4;
}

// Whether two ops are products of one x with weights of one shape.
bool AreAlike(const Graph& graph, const Op& a, const Op& b) {
  return a.inputs[0] == b.inputs[0] && graph.tensors[static_cast<size_t>(a.inputs[1])].dims ==
                                           graph.tensors[static_cast<size_t>(b.inputs[1])].dims;
}

// gelu(x . gate) * (x . up), and nobody else reads the two products.
std::vector<OpChain> FindGatedLinears(const Graph& graph, const std::vector<bool>& taken) {
  const Users users(graph);
  std::vector<OpChain> found;
  for (uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (taken[i] || op.kind != schema::OpKind_GeluMul || op.table->kind_as_GeluMul()->offset() != 0) continue;
    const uint32_t gate = users.WriterOfPrivate(op.inputs[0]);
    const uint32_t up = users.WriterOfPrivate(op.inputs[1]);
    if (!IsQ4Linear(graph, gate) || !IsQ4Linear(graph, up) || gate >= up || taken[gate] || taken[up]) continue;
    if (AreAlike(graph, graph.ops[gate], graph.ops[up]) && users.MayRunTogether({gate, up, i})) {
      found.push_back({gate, up, i});
    }
  }
  return found;
}

// gelu(x . gate) * a slice of any tensor that is there already.
std::vector<OpChain> FindLinearsWithGate(const Graph& graph, const std::vector<bool>& taken) {
  const Users users(graph);
  std::vector<OpChain> found;
  for (uint32_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (taken[i] || op.kind != schema::OpKind_GeluMul) continue;
    const uint32_t gate = users.WriterOfPrivate(op.inputs[0]);
    if (IsQ4Linear(graph, gate) && !taken[gate] && users.MayRunTogether({gate, i})) found.push_back({gate, i});
  }
  return found;
}

constexpr size_t kMostLinears = 3;

// The last `count` of at most three 4-bit linear ops that read one x.
std::vector<OpChain> FindLinearsOfOne(const Graph& graph, const std::vector<bool>& taken, size_t count) {
  const Users users(graph);
  std::vector<OpChain> found;
  for (uint32_t tensor = 0; tensor < graph.tensors.size(); ++tensor) {
    OpChain linears;
    for (const uint32_t reader : users.ReadersOf(tensor)) {
      const bool reads_as_x = graph.ops[reader].inputs[0] == static_cast<int32_t>(tensor);
      if (reads_as_x && !taken[reader] && IsQ4Linear(graph, reader)) linears.push_back(reader);
    }
    if (linears.size() > kMostLinears || linears.size() < count) continue;
    linears.erase(linears.begin(), linears.end() - static_cast<ptrdiff_t>(count));
    if (users.MayRunTogether(linears)) found.push_back(std::move(linears));
  }
  return found;
}
std::vector<OpChain> FindThreeLinears(const Graph& graph, const std::vector<bool>& taken) {
  return FindLinearsOfOne(graph, taken, 3);
}
// Of three, those behind the first: keys and values.
std::vector<OpChain> FindTwoLinears(const Graph& graph, const std::vector<bool>& taken) {
  return FindLinearsOfOne(graph, taken, 2);
}

// Keys and values that go to the same rows of two caches of one shape, one right behind the other.
std::vector<OpChain> FindCachePairs(const Graph& graph, const std::vector<bool>& taken) {
  const Users users(graph);
  std::vector<OpChain> found;
  for (uint32_t i = 0; i + 1 < graph.ops.size(); ++i) {
    const Op& keys = graph.ops[i];
    const Op& values = graph.ops[i + 1];
    if (keys.kind != schema::OpKind_CacheWrite || values.kind != schema::OpKind_CacheWrite) continue;
    if (taken[i] || taken[i + 1] || keys.inputs[1] != values.inputs[1] || keys.outputs[0] == values.outputs[0]) continue;
    if (graph.tensors[keys.outputs[0]].dims != graph.tensors[values.outputs[0]].dims) continue;
    if (users.MayRunTogether({i, i + 1})) found.push_back({i, i + 1});
    ++i;
  }
  return found;
}

constexpr Fusion kFusions[] = {
    {"gated_linear", ops::kGatedLinearRoutes, &FindGatedLinears},
    {"linear_with_gate", ops::kGatedLinearRoutes, &FindLinearsWithGate},
    {"three_linears", ops::kThreeLinearsRoutes, &FindThreeLinears},
    {"two_linears", ops::kTwoLinearsRoutes, &FindTwoLinears},
    {"norm_pair", ops::kNormPairRoutes, &FindNormPairs},
    {"cache_write_pair", ops::kCachePairRoutes, &FindCachePairs},
};

}  // namespace

std::span<const Fusion> Fusions() { return kFusions; }

}  // namespace gemma4::program
