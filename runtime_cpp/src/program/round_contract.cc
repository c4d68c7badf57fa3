#include "program/round_contract.h"

#include <algorithm>

#include "base/text.h"
#include "ops/registry.h"
#include "program/contracts.h"

#if GEMMA4_MTP

namespace gemma4::program {

namespace {

using ops::Op;
using ops::Site;
using ops::Tensor;
namespace schema = ops::schema;

// Ops of one kind and phase, by index, in program order.
std::vector<uint32_t> Find(const Plan& plan, schema::OpKind kind, schema::Phase phase) {
  std::vector<uint32_t> found;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    if (plan.graph.ops[i].kind == kind && plan.graph.ops[i].phase == phase) found.push_back(i);
  }
  return found;
}

Status Count(const Plan& plan, schema::OpKind kind, schema::Phase phase, uint32_t wanted) {
  const size_t found = Find(plan, kind, phase).size();
  if (found == wanted) return {};
  return CorruptData(Text("k2_round has ", found, phase == schema::Phase_Round ? " draft ops " : " target ops ",
                          ops::KindName(kind), ", wanted ", wanted));
}

class Round {
 public:
  explicit Round(const Plan& plan)
      : plan_(plan),
        ids_(Port(plan.inputs[0])),
        positions_(Port(plan.inputs[1])),
        flag_(Port(plan.inputs[2])),
        donor_length_(Port(plan.inputs[3])) {}

  Status Run() {
    GEMMA4_RETURN_IF_ERROR(Count(plan_, schema::OpKind_Embedding, schema::Phase_Round, kDrafts));
    GEMMA4_RETURN_IF_ERROR(Count(plan_, schema::OpKind_Argmax, schema::Phase_Round, kDrafts));
    for (const schema::OpKind kind : {schema::OpKind_PassRows, schema::OpKind_Accept, schema::OpKind_SeedWrite}) {
      GEMMA4_RETURN_IF_ERROR(Count(plan_, kind, schema::Phase_Always, 1));
    }
    for (const uint32_t op : Find(plan_, schema::OpKind_Argmax, schema::Phase_Round)) {
      drafts_.push_back(Port(plan_.graph.ops[op].outputs[0]));
    }
    greedy_ = Port(plan_.graph.ops[Find(plan_, schema::OpKind_Argmax, schema::Phase_Always)[0]].outputs[0]);
    GEMMA4_RETURN_IF_ERROR(plan_.header.dense_drafts ? CheckDenseHeads() : CheckCentroidHeads());
    GEMMA4_RETURN_IF_ERROR(CheckDraftTokens());
    GEMMA4_RETURN_IF_ERROR(CheckQueryPositions());
    GEMMA4_RETURN_IF_ERROR(CheckDonors());
    GEMMA4_RETURN_IF_ERROR(CheckJunctions());
    return CheckWhoReadsInputs();
  }

 private:
  static int32_t Port(uint32_t tensor) { return static_cast<int32_t>(tensor); }
  const Tensor& Named(int32_t tensor) const { return plan_.graph.tensors[static_cast<size_t>(tensor)]; }
  Status Error(uint32_t op, const std::string& what) const { return Site(plan_.graph, op).Error(what); }

  // The op of this kind that writes a tensor in draft `step`, or null.
  const Op* WriterIn(uint32_t step, int32_t tensor, schema::OpKind kind) const {
    const std::vector<uint32_t> ends = Find(plan_, schema::OpKind_Argmax, schema::Phase_Round);
    for (uint32_t i = step == 0 ? 0 : ends[step - 1] + 1; i < ends[step]; ++i) {
      const Op& op = plan_.graph.ops[i];
      if (op.kind != kind || op.phase != schema::Phase_Round) continue;
      for (const uint32_t output : op.outputs) {
        if (Port(output) == tensor) return &op;
      }
    }
    return nullptr;
  }

  // The scores of a draft's argmax, when an op of its own step and of this kind writes them.
  const Op* Scores(uint32_t step, schema::OpKind kind) const {
    const std::vector<uint32_t> ends = Find(plan_, schema::OpKind_Argmax, schema::Phase_Round);
    return WriterIn(step, plan_.graph.ops[ends[step]].inputs[0], kind);
  }

  // Candidates of the best centroids, scattered over the vocabulary.
  Status CheckCentroidHeads() const {
    for (uint32_t step = 0; step < kDrafts; ++step) {
      if (Scores(step, schema::OpKind_Scatter) != nullptr) continue;
      if (Scores(step, schema::OpKind_ScatterUnique) != nullptr) continue;
      return CorruptData(
          Text("draft ", step, " is not chosen from scattered candidates, wanted so as draft_head is centroids"));
    }
    return {};
  }

  // One product with a row for every token, by the same weight in every draft, which is not the target's table; and nothing
  // of a centroid head anywhere.
  Status CheckDenseHeads() const {
    for (const schema::OpKind kind : {schema::OpKind_TopK, schema::OpKind_Scatter, schema::OpKind_ScatterUnique,
                                      schema::OpKind_GatherRows, schema::OpKind_GatherLinear, schema::OpKind_Amin,
                                      schema::OpKind_Fill}) {
      GEMMA4_RETURN_IF_ERROR(Count(plan_, kind, schema::Phase_Round, 0));
      GEMMA4_RETURN_IF_ERROR(Count(plan_, kind, schema::Phase_Always, 0));
    }
    const int32_t table = plan_.graph.ops[Find(plan_, schema::OpKind_Embedding, schema::Phase_Round)[0]].inputs[1];
    const Op* first = Scores(0, schema::OpKind_Linear);
    for (uint32_t step = 0; step < kDrafts; ++step) {
      const Op* scores = Scores(step, schema::OpKind_Linear);
      if (scores == nullptr) {
        return CorruptData(Text("draft ", step, " is not chosen from one Linear, wanted so as draft_head is dense"));
      }
      if (scores->inputs[1] == table || scores->inputs[1] != first->inputs[1]) {
        return CorruptData(Text("draft ", step, " is scored by ", Named(scores->inputs[1]).name,
                                ", wanted one head of the assistant for all drafts"));
      }
    }
    return {};
  }

  // Step 0 embeds the pending token, step 1 the first draft.
  Status CheckDraftTokens() const {
    const std::vector<uint32_t> embeddings = Find(plan_, schema::OpKind_Embedding, schema::Phase_Round);
    const int32_t wanted[kDrafts] = {ids_, drafts_[0]};
    for (uint32_t step = 0; step < kDrafts; ++step) {
      const int32_t found = plan_.graph.ops[embeddings[step]].inputs[0];
      if (found != wanted[step]) {
        return Error(embeddings[step],
                     Text("draft ", step, " embeds ", Named(found).name, ", wanted ", Named(wanted[step]).name));
      }
    }
    return {};
  }

  // Offset of a draft's position tensor from P, the donor length; false when it is something else.
  bool OffsetFromP(int32_t tensor, int64_t* offset) const {
    *offset = 0;
    if (tensor == donor_length_) return true;
    for (const uint32_t op : Find(plan_, schema::OpKind_AddScalar, schema::Phase_Round)) {
      const Op& add = plan_.graph.ops[op];
      if (Port(add.outputs[0]) != tensor || add.inputs[0] != donor_length_) continue;
      *offset = add.table->kind_as_AddScalar()->value();
      return true;
    }
    return false;
  }

  Status CheckQueryPositions() const {
    int64_t step = 0;
    for (uint32_t i = 0; i < plan_.graph.ops.size(); ++i) {
      const Op& op = plan_.graph.ops[i];
      if (op.phase != schema::Phase_Round) break;
      if (op.kind == schema::OpKind_Argmax) ++step;
      if (op.kind != schema::OpKind_Rope) continue;
      int64_t offset = 0;
      if (!OffsetFromP(op.inputs[1], &offset)) {
        return Error(i,
                     Text("turns a draft by ", Named(op.inputs[1]).name, ", wanted positions made from donor_length"));
      }
      const int64_t wanted = plan_.header.progressive_queries ? step : 0;
      if (offset != wanted) {
        return Error(i, Text("queries of draft ", step, " are at P + ", offset, ", wanted P + ", wanted,
                             " as query_positions is ", plan_.header.progressive_queries ? "progressive" : "constant"));
      }
    }
    return {};
  }

  // The keys' (input 1) or values' (input 2) cache of the target's last layer that owns one and has this window.
  const Tensor* LastCache(uint32_t window, size_t input) const {
    std::vector<uint32_t> seen;
    for (const uint32_t i : Find(plan_, schema::OpKind_Attention, schema::Phase_Always)) {
      const Site site(plan_.graph, i);
      const uint32_t cache = site.In(input).index;
      if (site.attributes<schema::Attention>().window() != window) continue;
      if (std::find(seen.begin(), seen.end(), cache) == seen.end()) seen.push_back(cache);
    }
    return seen.empty() ? nullptr : &plan_.graph.tensors[seen.back()];
  }

  // The assistant reads the last caches of each kind: those that it was trained on.
  Status CheckDonors() const {
    for (const uint32_t i : Find(plan_, schema::OpKind_Attention, schema::Phase_Round)) {
      const Site site(plan_.graph, i);
      for (const size_t input : {1, 2}) {
        const Tensor& found = plan_.graph.tensors[site.In(input).index];
        const Tensor* wanted = LastCache(site.attributes<schema::Attention>().window(), input);
        if (&found == wanted) continue;
        const std::string_view name = wanted == nullptr ? "a cache" : std::string_view(wanted->name);
        return Error(i, Text("reads ", found.name, ", wanted ", name, ", the target's last with this window"));
      }
    }
    return {};
  }

  Status CheckWiring(schema::OpKind kind, const std::vector<int32_t>& inputs,
                     const std::vector<int32_t>& outputs) const {
    const uint32_t index = Find(plan_, kind, schema::Phase_Always)[0];
    const Op& op = plan_.graph.ops[index];
    constexpr int32_t kAny = -1;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == kAny || op.inputs[i] == inputs[i]) continue;
      return Error(index, Text("input ", i, " is ", Named(op.inputs[i]).name, ", wanted ", Named(inputs[i]).name));
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == kAny || Port(op.outputs[i]) == outputs[i]) continue;
      return Error(index,
                   Text("output ", i, " is ", Named(Port(op.outputs[i])).name, ", wanted ", Named(outputs[i]).name));
    }
    return {};
  }

  Status CheckJunctions() const {
    std::vector<int32_t> out;
    for (const uint32_t output : plan_.outputs) out.push_back(Port(output));
    GEMMA4_RETURN_IF_ERROR(CheckWiring(schema::OpKind_PassRows, {ids_, positions_, flag_, drafts_[0], drafts_[1]}, {}));
    GEMMA4_RETURN_IF_ERROR(
        CheckWiring(schema::OpKind_Accept, {flag_, drafts_[0], drafts_[1], greedy_}, {out[0], out[1], out[2], out[3]}));
    GEMMA4_RETURN_IF_ERROR(CheckWiring(schema::OpKind_SeedWrite, {flag_, -1, out[2]}, {-1, out[4]}));
    const uint32_t seed = plan_.graph.ops[Find(plan_, schema::OpKind_SeedWrite, schema::Phase_Always)[0]].outputs[0];
    const std::vector<uint32_t> concats = Find(plan_, schema::OpKind_Concat, schema::Phase_Round);
    if (concats.empty() || plan_.graph.ops[concats[0]].inputs[1] != Port(seed)) {
      return CorruptData(Text("the first draft does not start from the state ", Named(Port(seed)).name));
    }
    return {};
  }

  // In a round the target's tokens and positions come from pass_rows; whoever read the inputs would miss the drafts.
  Status CheckWhoReadsInputs() const {
    for (uint32_t i = 0; i < plan_.graph.ops.size(); ++i) {
      const Op& op = plan_.graph.ops[i];
      if (op.kind == schema::OpKind_PassRows) continue;
      for (const int32_t input : op.inputs) {
        const bool pending_token =
            input == ids_ && op.phase == schema::Phase_Round && op.kind == schema::OpKind_Embedding;
        if ((input == ids_ && !pending_token) || input == positions_) {
          return Error(i, Text("reads ", Named(input).name, " itself, wanted what pass_rows made of it"));
        }
      }
    }
    return {};
  }

  const Plan& plan_;
  const int32_t ids_, positions_, flag_, donor_length_;
  std::vector<int32_t> drafts_;
  int32_t greedy_ = -1;
};

}  // namespace

Status CheckRound(const Plan& plan) { return Round(plan).Run(); }

}  // namespace gemma4::program

#endif  // GEMMA4_MTP
