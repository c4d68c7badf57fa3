// A graph of a few ops, drawn in a test. Owns the ops' attributes.
#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "ops/graph.h"
#include "ops/registry.h"

namespace gemma4::test {

namespace schema = ops::schema;

class Sketch {
 public:
  // dims[0] of a tensor of the pass is the most rows.
  uint32_t Tensor(std::string name, schema::Storage storage, std::vector<uint32_t> dims,
                  schema::Dtype dtype = schema::Dtype_F32) {
    ops::Tensor tensor;
    tensor.name = std::move(name);
    tensor.dtype = dtype;
    tensor.storage = storage;
    tensor.rows = storage == schema::Storage_Weight ? schema::Rows_Fixed : schema::Rows_Pass;
    tensor.dims = std::move(dims);
    tensor.elements = 1;
    for (const uint32_t dim : tensor.dims) tensor.elements *= dim;
    tensor.values_bytes = dtype == schema::Dtype_Q4 ? tensor.elements / 2 : 4 * tensor.elements;
    tensor.scales_bytes = dtype == schema::Dtype_Q4 ? (tensor.elements / 16 + 3) / 4 * 4 : 0;
    graph.tensors.push_back(std::move(tensor));
    return static_cast<uint32_t>(graph.tensors.size() - 1);
  }
  uint32_t Activation(std::string name, uint32_t width) {
    return Tensor(std::move(name), schema::Storage_Activation, {kRows, width});
  }
  uint32_t Weight(std::vector<uint32_t> dims, schema::Dtype dtype = schema::Dtype_F32) {
    return Tensor("weight", schema::Storage_Weight, std::move(dims), dtype);
  }

  // attributes: from a FlatBufferBuilder to the table's offset. Returns the index of the op.
  template <typename Attributes>
  uint32_t Add(schema::OpKind kind, Attributes attributes, std::vector<int32_t> inputs, std::vector<uint32_t> outputs) {
    flatbuffers::FlatBufferBuilder& builder = builders_.emplace_back();
    const std::vector<int32_t> none;
    const flatbuffers::Offset<void> table = attributes(builder).Union();
    builder.Finish(schema::CreateOpDirect(builder, kind, table, schema::Role_Target, schema::Phase_Always, &none, &none));
    ops::Op op;
    op.table = flatbuffers::GetRoot<schema::Op>(builder.GetBufferPointer());
    op.kind = kind;
    op.inputs = std::move(inputs);
    op.outputs = std::move(outputs);
    graph.ops.push_back(std::move(op));
    return static_cast<uint32_t>(graph.ops.size() - 1);
  }
  uint32_t Norm(uint32_t width, float eps, std::vector<int32_t> inputs, uint32_t output) {
    return Add(schema::OpKind_RmsNorm, [&](auto& builder) { return schema::CreateRmsNorm(builder, eps, width); },
               std::move(inputs), {output});
  }
  uint32_t Linear(uint32_t x, uint32_t weight, uint32_t output) {
    return Add(schema::OpKind_Linear, [](auto& builder) { return schema::CreateLinear(builder); },
               {static_cast<int32_t>(x), static_cast<int32_t>(weight)}, {output});
  }
  uint32_t GeluMul(uint32_t a, uint32_t b, uint32_t offset, uint32_t output) {
    return Add(schema::OpKind_GeluMul, [&](auto& builder) { return schema::CreateGeluMul(builder, offset); },
               {static_cast<int32_t>(a), static_cast<int32_t>(b)}, {output});
  }

  // What a validated graph has passed.
  Status Check() const {
    for (uint32_t i = 0; i < graph.ops.size(); ++i) {
      GEMMA4_RETURN_IF_ERROR(ops::FindOp(graph.ops[i].kind)->check(ops::Site(graph, i)));
    }
    return {};
  }

  static constexpr uint32_t kRows = 8;
  ops::Graph graph;

 private:
  std::deque<flatbuffers::FlatBufferBuilder> builders_;
};

}  // namespace gemma4::test
