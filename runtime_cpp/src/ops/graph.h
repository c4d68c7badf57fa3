// The program as plain data: tensors and ops in execution order, decoded from a verified FlatBuffer. Owns names and
// dims; op attributes stay in the FlatBuffer, whose bytes must outlive the graph. Never touches the GPU and decides
// nothing: ops/check.h validates, program/loader.h builds it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program_generated.h"

namespace gemma4::ops {

namespace schema = ::gemma4web::program;

// Row counts of one recorded pass: `pass` rows go through the target, `tail` of them want logits.
struct PassRows {
  uint32_t pass = 1;
  uint32_t tail = 1;
};

// One tensor. dims are row-major; dims[0] of a Pass or Tail tensor is the maximum. A 4-bit weight has logical dims.
struct Tensor {
  std::string name;
  schema::Dtype dtype = schema::Dtype_F32;
  schema::Storage storage = schema::Storage_Activation;
  schema::Rows rows = schema::Rows_Fixed;
  bool retain = false;
  std::vector<uint32_t> dims;
  // Of a 4-bit weight: columns that share a scale, a power of two, and what a scale is.
  uint32_t group = 32;
  schema::ScaleDtype scale_dtype = schema::ScaleDtype_F16;

  // The base tensor's index when this is a donor view, else -1.
  int32_t view_of = -1;
  uint32_t view_window = 0;  // the view's window; 0 means the whole prefix
  int32_t view_length = -1;  // the tensor that holds the donor length

  uint64_t elements = 0;      // product of dims
  uint64_t values_bytes = 0;  // bytes of the values at the largest row count
  uint64_t scales_bytes = 0;  // only for 4-bit weights
};

struct Op {
  const schema::Op* table = nullptr;  // attributes; verified, lives in the plan's bytes
  schema::OpKind kind = schema::OpKind_NONE;
  schema::Role role = schema::Role_Target;
  schema::Phase phase = schema::Phase_Always;
  std::vector<int32_t> inputs;  // -1: absent optional input
  std::vector<uint32_t> outputs;
};

struct Graph {
  std::vector<Tensor> tensors;
  std::vector<Op> ops;
  uint32_t prefill_rows = 0;
};

}  // namespace gemma4::ops
