#include "program/certified.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "ops/registry.h"
#include "program/contracts.h"

namespace gemma4::program {

namespace {

using ops::Op;
using ops::Tensor;
namespace schema = ops::schema;

// The name of the table that is certified; empty: none.
std::string_view TableOf(const Plan& plan) {
  const auto proof = std::find_if(plan.certificate.begin(), plan.certificate.end(), [](const Proof& candidate) {
    return candidate.property == schema::Property_UniqueScatter;
  });
  return proof == plan.certificate.end() ? std::string_view() : proof->subject;
}

#if GEMMA4_MTP

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

#endif  // GEMMA4_MTP

}  // namespace

#if GEMMA4_MTP

Status CheckCertified(const Plan& plan) {
  const std::string_view table = TableOf(plan);
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

#endif  // GEMMA4_MTP

CertifiedTable::CertifiedTable(const Plan& plan, WeightSink& next) : plan_(plan), next_(next) {
  const std::string_view table = TableOf(plan);
  const auto piece = std::find_if(plan.spans.begin(), plan.spans.end(), [&](const WeightSpan& span) {
    return plan.graph.tensors[span.tensor].name == table;
  });
  if (piece != plan.spans.end()) first_ = &*piece;
}

Status CertifiedTable::Open(const WeightSpan& span) {
  open_ = first_ != nullptr && span.tensor == first_->tensor;
  number_ = number_bytes_ = 0;
  if (open_ && span.shard == first_->shard && span.begin == first_->begin) {
    seen_.assign(static_cast<size_t>(plan_.graph.tensors[span.tensor].elements), false);
  }
  return next_.Open(span);
}

Status CertifiedTable::Append(std::span<const uint8_t> slice) {
  if (!open_) return next_.Append(slice);
  for (const uint8_t byte : slice) {
    number_ |= static_cast<uint32_t>(byte) << (8 * number_bytes_);
    if (++number_bytes_ < sizeof(number_)) continue;
    const uint32_t whole = std::exchange(number_, 0);
    number_bytes_ = 0;
    GEMMA4_RETURN_IF_ERROR(Take(whole));
  }
  return next_.Append(slice);
}

Status CertifiedTable::Take(uint32_t number) {
  if (number < seen_.size() && !seen_[number]) {
    seen_[number] = true;
    return {};
  }
  return CorruptData(Text("weight ", plan_.graph.tensors[first_->tensor].name, " holds ", static_cast<int32_t>(number),
                          number < seen_.size() ? " twice" : "", ", but is certified to be a permutation of 0 to ",
                          seen_.size() - 1, ": export the model again"));
}

}  // namespace gemma4::program
