#include "ops/site.h"

#include "ops/registry.h"

namespace gemma4::ops {

RowCount MatrixRows(const Tensor& tensor) {
  if (tensor.rows != schema::Rows_Fixed) return {tensor.rows, tensor.dims.front()};
  if (tensor.dims.size() == 1) return {schema::Rows_Fixed, tensor.dims.front()};
  return {schema::Rows_Fixed, tensor.elements / tensor.dims.back()};
}

uint64_t MatrixWidth(const Tensor& tensor) { return tensor.dims.size() == 1 ? 1 : tensor.dims.back(); }

RowCount VectorRows(const Tensor& tensor) {
  if (tensor.dims.size() == 2 && tensor.dims[0] == 1 && tensor.storage == schema::Storage_Input) {
    return {schema::Rows_Pass, tensor.dims[1]};
  }
  return {tensor.rows, tensor.elements};
}

uint32_t RowsIn(const RowCount& rows, const PassRows& pass) {
  switch (rows.kind) {
    case schema::Rows_Pass:
      return pass.pass;
    case schema::Rows_Tail:
      return pass.tail;
    default:
      return static_cast<uint32_t>(rows.max);
  }
}

uint32_t ElementsIn(const Tensor& tensor, const PassRows& pass) {
  return RowsIn(MatrixRows(tensor), pass) * static_cast<uint32_t>(MatrixWidth(tensor));
}

BindingRef Site::In(size_t input) const {
  if (!has(input)) return {BindingRef::Kind::kAbsent, 0};
  const Tensor& tensor = in(input);
  const int32_t index = tensor.view_of >= 0 ? tensor.view_of : op_.inputs[input];
  return {BindingRef::Kind::kValues, static_cast<uint32_t>(index)};
}

BindingRef Site::InScales(size_t input) const {
  return {BindingRef::Kind::kScales, static_cast<uint32_t>(op_.inputs[input])};
}

BindingRef Site::Out(size_t output) const { return {BindingRef::Kind::kValues, op_.outputs[output]}; }

Status Site::Error(const std::string& what) const {
  return CorruptData(Text("op ", index_, " (", KindName(op_.kind), "): ", what));
}

}  // namespace gemma4::ops
