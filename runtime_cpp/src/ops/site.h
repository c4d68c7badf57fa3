// One op in its graph, with the tensors that it names: what a check and a record function receive. Of a chain that one
// kernel runs it is the first op, and leads to the others. Owns nothing. The loader has made sure that every index is in
// range and that the op has as many inputs and outputs as its entry asks for, before either function runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "base/text.h"
#include "ops/dispatch.h"
#include "ops/graph.h"

namespace gemma4::ops {

// The leading dimension of a tensor, before a pass fixes it.
struct RowCount {
  schema::Rows kind = schema::Rows_Fixed;
  uint64_t max = 0;
  friend bool operator==(const RowCount&, const RowCount&) = default;
};

// A tensor as [rows, width]. A rank-1 tensor is [n, 1]; every dimension but the last counts as rows otherwise.
RowCount MatrixRows(const Tensor& tensor);
uint64_t MatrixWidth(const Tensor& tensor);

// An index vector: i32[N], i32[1,N], or a program input i32[1,M], whose first rows belong to the pass.
RowCount VectorRows(const Tensor& tensor);

// The row count in a pass of this size.
uint32_t RowsIn(const RowCount& rows, const PassRows& pass);

// The number of elements in a pass of this size.
uint32_t ElementsIn(const Tensor& tensor, const PassRows& pass);

class Site {
 public:
  Site(const Graph& graph, uint32_t op_index) : graph_(graph), op_(graph.ops[op_index]), index_(op_index) {}
  // A chain of at least one op, in execution order.
  Site(const Graph& graph, std::span<const uint32_t> chain) : Site(graph, chain.front()) { chain_ = chain; }

  const Graph& graph() const { return graph_; }
  const Op& op() const { return op_; }
  uint32_t index() const { return index_; }
  size_t chain_ops() const { return chain_.size(); }
  Site OpOfChain(size_t i) const { return {graph_, chain_[i]}; }
  bool has(size_t input) const { return op_.inputs[input] >= 0; }
  const Tensor& in(size_t input) const { return graph_.tensors[static_cast<size_t>(op_.inputs[input])]; }
  const Tensor& out(size_t output) const { return graph_.tensors[op_.outputs[output]]; }

  // The op's attributes: site.attributes<schema::Rope>().theta(). The kind has been checked by the registry.
  template <typename Table>
  const Table& attributes() const {
    return *op_.table->kind_as<Table>();
  }

  // Bindings. A donor view binds the cache that it looks at.
  BindingRef In(size_t input) const;
  BindingRef InScales(size_t input) const;
  BindingRef Out(size_t output) const;
  BindingRef RopeTable() const { return {BindingRef::Kind::kRopeTable, index_}; }

  // "op 12 (linear): " + what
  Status Error(const std::string& what) const;

 private:
  const Graph& graph_;
  const Op& op_;
  uint32_t index_;
  std::span<const uint32_t> chain_;  // empty for a single op
};

}  // namespace gemma4::ops
