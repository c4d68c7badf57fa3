// A graph of a single op, made in a test, and the way that it takes for a number of rows.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "check.h"
#include "footprint.h"
#include "ops/registry.h"
#include "program/routes.h"

namespace gemma4::test {

namespace schema = ops::schema;

inline ops::Tensor MakeTensor(schema::Dtype dtype, std::vector<uint32_t> dims) {
  ops::Tensor tensor;
  tensor.name = "t";
  tensor.dtype = dtype;
  tensor.dims = std::move(dims);
  tensor.elements = 1;
  for (const uint32_t dim : tensor.dims) tensor.elements *= dim;
  tensor.values_bytes = 4 * tensor.elements;
  return tensor;
}

// One op of a graph whose tensors are its inputs, then its outputs. Owns the attributes' bytes.
class OneOp {
 public:
  OneOp(schema::OpKind kind, flatbuffers::FlatBufferBuilder& builder, flatbuffers::Offset<void> attributes,
        std::vector<ops::Tensor> inputs, std::vector<ops::Tensor> outputs) {
    const std::vector<int32_t> none;
    builder.Finish(schema::CreateOpDirect(builder, kind, attributes, schema::Role_Target, schema::Phase_Always, &none,
                                          &none));
    ops::Op op;
    op.table = flatbuffers::GetRoot<schema::Op>(builder.GetBufferPointer());
    op.kind = kind;
    for (ops::Tensor& tensor : inputs) {
      op.inputs.push_back(static_cast<int32_t>(graph.tensors.size()));
      graph.tensors.push_back(std::move(tensor));
    }
    for (ops::Tensor& tensor : outputs) {
      op.outputs.push_back(static_cast<uint32_t>(graph.tensors.size()));
      graph.tensors.push_back(std::move(tensor));
    }
    graph.ops.push_back(std::move(op));
  }

  // The name of the way that a pass of these rows takes; its dispatches are in `specs`.
  std::string Way(const gpu::Limits& limits, uint32_t mask, ops::PassRows rows = {}, uint32_t max_rows = 4) {
    const ops::Site site(graph, 0);
    const ops::OpEntry& entry = *ops::FindOp(graph.ops[0].kind);
    const Status status = entry.check(site);
    if (!status.ok()) return status.message();
    const auto table = program::RouteTable::Make(graph, limits, mask, max_rows, 3);
    const ops::Route* route = table.Of(0, rows);
    specs.clear();
    if (route == nullptr) {
      entry.record(site, rows, specs);
    } else {
      route->record(site, rows, limits, specs);
    }
    CHECK_EQ(FindOutOfBounds(graph, specs), "");
    return route == nullptr ? "generic" : route->name;
  }

  ops::Graph graph;
  std::vector<ops::DispatchSpec> specs;
};

}  // namespace gemma4::test
