#include "program/certified.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "ops/registry.h"
#include "program/contracts.h"

#if GEMMA4_MTP

namespace gemma4::program {

namespace {

using ops::Op;
using ops::Tensor;
namespace schema = ops::schema;

class Chain {
 public:
  Chain(const Plan& plan, uint32_t scatter, std::string_view certified_table)
      : plan_(plan), scatter_(scatter), certified_table_(certified_table) {}

  Status Run() const {
    const Op& scatter = plan_.graph.ops[scatter_];
    if (Writer(scatter.inputs[0], schema::OpKind_Fill) == nullptr) return NotFrom(scatter.inputs[0], "Fill");
    const Op* gather = Writer(scatter.inputs[1], schema::OpKind_GatherRows);
    if (gather == nullptr) return NotFrom(scatter.inputs[1], "GatherRows");
    const Op* best = Writer(gather->inputs[1], schema::OpKind_TopK);
    if (best == nullptr || static_cast<int32_t>(best->outputs[1]) != gather->inputs[1]) {
      return NotFrom(gather->inputs[1], "the indices of TopK");
    }
    const Tensor& table = Named(gather->inputs[0]);
    if (table.storage != schema::Storage_Weight || table.elements != Named(scatter.inputs[0]).elements) {
      return Error(Text("takes its indices from ", table.name, ", wanted a weight of as many elements as the template"));
    }
    if (table.name != certified_table_) {
      return Error(Text("takes its indices from ", table.name, ", certified is ",
                        certified_table_.empty() ? "no table" : certified_table_));
    }
    return {};
  }

 private:
  const Tensor& Named(int32_t tensor) const { return plan_.graph.tensors[static_cast<size_t>(tensor)]; }
  Status Error(const std::string& what) const { return ops::Site(plan_.graph, scatter_).Error(what); }
  Status NotFrom(int32_t tensor, const char* wanted) const {
    return Error(Text("has no certified chain: ", Named(tensor).name, " does not come from ", wanted));
  }

  // The op that writes a tensor, when it is of this kind.
  const Op* Writer(int32_t tensor, schema::OpKind kind) const {
    for (const Op& op : plan_.graph.ops) {
      for (const uint32_t output : op.outputs) {
        if (static_cast<int32_t>(output) == tensor) return op.kind == kind ? &op : nullptr;
      }
    }
    return nullptr;
  }

  const Plan& plan_;
  const uint32_t scatter_;
  const std::string_view certified_table_;  // empty: none
};

}  // namespace

Status CheckCertified(const Plan& plan) {
  const auto proof = std::find_if(plan.certificate.begin(), plan.certificate.end(), [](const Proof& candidate) {
    return candidate.property == schema::Property_UniqueScatter;
  });
  const std::string_view table = proof == plan.certificate.end() ? std::string_view() : proof->subject;
  uint32_t found = 0;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    if (plan.graph.ops[i].kind != schema::OpKind_ScatterUnique) continue;
    GEMMA4_RETURN_IF_ERROR(Chain(plan, i, table).Run());
    ++found;
  }
  if (found == 0 && !table.empty()) {
    return CorruptData(Text("the certificate has unique scatters by ", table, ", the program has no ScatterUnique"));
  }
  if (found == 0 || (plan.header.mtp() && found == kDrafts)) return {};
  return CorruptData(Text("the program has ", found, " ops ScatterUnique, wanted none or ", kDrafts));
}

}  // namespace gemma4::program

#endif  // GEMMA4_MTP
