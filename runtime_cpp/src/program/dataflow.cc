#include "program/dataflow.h"

#include <algorithm>

#include "base/text.h"
#include "ops/registry.h"

namespace gemma4::program {

namespace {

using ops::Graph;
using ops::Op;
using ops::Site;
using ops::Tensor;
namespace schema = ops::schema;

constexpr uint32_t kNever = UINT32_MAX;

class Dataflow {
 public:
  explicit Dataflow(Graph* graph) : graph_(*graph), writer_(graph->tensors.size(), kNever) {}

  Status Run() {
    GEMMA4_RETURN_IF_ERROR(CollectWriters());
    for (uint32_t i = 0; i < graph_.ops.size(); ++i) {
      GEMMA4_RETURN_IF_ERROR(CheckReads(i));
      GEMMA4_RETURN_IF_ERROR(ops::FindOp(graph_.ops[i].kind)->check(Site(graph_, i)));
    }
    return CheckEveryTensor();
  }

 private:
  Status Error(uint32_t op, const std::string& what) const { return Site(graph_, op).Error(what); }

  Status CheckArity(uint32_t i) const {
    const Op& op = graph_.ops[i];
    const ops::OpEntry* entry = ops::FindOp(op.kind);
    if (entry == nullptr) {
      return {Code::kUnsupported, Text("op ", i, " (", ops::KindName(op.kind), ") is not part of this build")};
    }
    if (op.inputs.size() != entry->inputs || op.outputs.size() != entry->outputs) {
      return Error(i, Text("has ", op.inputs.size(), " inputs and ", op.outputs.size(), " outputs, wanted ",
                           entry->inputs, " and ", entry->outputs));
    }
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (op.inputs[k] < 0 && (entry->optional_inputs >> k & 1) == 0) return Error(i, Text("input ", k, " is absent"));
    }
    return {};
  }

  // Caches are written by cache_write and seed_write, views by donor_view, and nothing else is.
  static bool MayWrite(schema::OpKind kind, size_t output, schema::Storage storage) {
    switch (storage) {
      case schema::Storage_Cache:
        return kind == schema::OpKind_CacheWrite || (kind == schema::OpKind_SeedWrite && output == 0);
      case schema::Storage_View:
        return kind == schema::OpKind_DonorView;
      case schema::Storage_Activation:
      case schema::Storage_Output:
        return true;
      default:
        return false;  // weights and program inputs
    }
  }

  Status CollectWriters() {
    for (uint32_t i = 0; i < graph_.ops.size(); ++i) {
      GEMMA4_RETURN_IF_ERROR(CheckArity(i));
      const Op& op = graph_.ops[i];
      if ((op.role == schema::Role_Assistant) != (op.phase == schema::Phase_Round)) {
        return Error(i, "is not a draft op of the assistant and yet of one phase with them, or the reverse");
      }
      if (op.phase == schema::Phase_Round && i > 0 && graph_.ops[i - 1].phase == schema::Phase_Always) {
        return Error(i, "is a draft op behind an op of the target pass");
      }
      for (size_t k = 0; k < op.outputs.size(); ++k) {
        Tensor& tensor = graph_.tensors[op.outputs[k]];
        if (!MayWrite(op.kind, k, tensor.storage)) return Error(i, Text("may not write tensor ", tensor.name));
        if (writer_[op.outputs[k]] != kNever) {
          return Error(i,
                       Text("writes tensor ", tensor.name, ", which op ", writer_[op.outputs[k]], " writes already"));
        }
        writer_[op.outputs[k]] = i;
        if (std::find(op.inputs.begin(), op.inputs.end(), static_cast<int32_t>(op.outputs[k])) != op.inputs.end()) {
          return Error(i, Text("reads and writes tensor ", tensor.name));
        }
      }
      if (op.kind == schema::OpKind_DonorView) ResolveView(op);
    }
    return {};
  }

  void ResolveView(const Op& op) {
    Tensor& view = graph_.tensors[op.outputs[0]];
    view.view_of = op.inputs[0];
    view.view_window = op.table->kind_as_DonorView()->window();
    view.view_length = op.inputs[1];
  }

  // Draft tokens are bound by these two ops in every pass, and read by their kernels only when the flag is 1.
  static bool ReadsUnderFlag(schema::OpKind kind) {
    return kind == schema::OpKind_PassRows || kind == schema::OpKind_Accept;
  }

  Status CheckReads(uint32_t i) const {
    const Op& op = graph_.ops[i];
    for (const int32_t input : op.inputs) {
      if (input < 0) continue;
      const Tensor& tensor = graph_.tensors[static_cast<size_t>(input)];
      const uint32_t writer = writer_[static_cast<size_t>(input)];
      if (tensor.storage == schema::Storage_Weight || tensor.storage == schema::Storage_Input) continue;
      if (writer == kNever) return Error(i, Text("reads tensor ", tensor.name, ", which no op writes"));
      // Draft ops read what the previous pass left in the caches.
      if (tensor.storage == schema::Storage_Cache && op.phase == schema::Phase_Round) continue;
      if (writer >= i) return Error(i, Text("reads tensor ", tensor.name, " before op ", writer, " writes it"));
      if (op.phase == schema::Phase_Always && graph_.ops[writer].phase == schema::Phase_Round &&
          !ReadsUnderFlag(op.kind)) {
        return Error(i, Text("reads tensor ", tensor.name, ", which is written only when the round flag is 1"));
      }
    }
    return {};
  }

  Status CheckEveryTensor() const {
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const schema::Storage storage = graph_.tensors[t].storage;
      const bool preset = storage == schema::Storage_Weight || storage == schema::Storage_Input;
      if (!preset && writer_[t] == kNever)
        return CorruptData(Text("tensor ", graph_.tensors[t].name, " is never written"));
    }
    return {};
  }

  Graph& graph_;
  std::vector<uint32_t> writer_;  // op that writes each tensor
};

}  // namespace

Status CheckDataflow(Graph* graph) { return Dataflow(graph).Run(); }

}  // namespace gemma4::program
