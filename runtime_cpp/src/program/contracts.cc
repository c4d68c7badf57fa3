#include "program/contracts.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/text.h"
#include "ops/check.h"
#include "ops/registry.h"
#include "program/reader.h"
#include "program/certified.h"
#include "program/round_contract.h"

namespace gemma4::program {

namespace {

using ops::Graph;
using ops::Op;
using ops::Site;
using ops::Tensor;
namespace schema = ops::schema;

struct Port {
  const char* name;
  schema::Dtype dtype;
  std::vector<uint32_t> dims;
};

std::vector<Port> Inputs(const Header& header) {
  const std::vector<uint32_t> rows = {1, header.prefill_rows};
  std::vector<Port> ports = {{"ids", schema::Dtype_I32, rows}, {"positions", schema::Dtype_I32, rows}};
  if (header.mtp()) {
    ports.push_back({"round_flag", schema::Dtype_I32, {1}});
    ports.push_back({"donor_length", schema::Dtype_I32, {1}});
  }
  return ports;
}

std::vector<Port> Outputs(const Header& header) {
  if (!header.mtp()) return {{"next_token", schema::Dtype_I32, {1, 1}}};
  return {{"candidates", schema::Dtype_I32, {1, 2}},
          {"target_greedy", schema::Dtype_I32, {1, 3}},
          {"match_count", schema::Dtype_I32, {1, 1}},
          {"bonus", schema::Dtype_I32, {1, 1}},
          {"state_probe", schema::Dtype_F32, {1, 1}}};
}

Status CheckPorts(const Plan& plan, std::string_view what, const std::vector<uint32_t>& found,
                  const std::vector<Port>& wanted, schema::Storage storage) {
  const std::vector<Tensor>& tensors = plan.graph.tensors;
  if (found.size() != wanted.size()) {
    return CorruptData(Text(plan.header.method, " has ", found.size(), " ", what, "s, wanted ", wanted.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    const Tensor& tensor = tensors[found[i]];
    const Port& port = wanted[i];
    if (tensor.name != port.name) {
      return CorruptData(Text(what, " ", i, " of ", plan.header.method, " is ", tensor.name, ", wanted ", port.name));
    }
    if (tensor.dtype != port.dtype || tensor.dims != port.dims || tensor.storage != storage) {
      Tensor like;
      like.dims = port.dims;
      return CorruptData(Text(what, " ", port.name, " is ", ops::DtypeName(tensor.dtype), ops::DimsText(tensor),
                              ", wanted ", ops::DtypeName(port.dtype), ops::DimsText(like), " stored as an ", what));
    }
  }
  const auto listed = static_cast<size_t>(
      std::count_if(tensors.begin(), tensors.end(), [&](const Tensor& tensor) { return tensor.storage == storage; }));
  if (listed != wanted.size()) {
    return CorruptData(Text("the program stores ", listed, " tensors as ", what, "s and lists ", wanted.size()));
  }
  return {};
}

// Every variable tensor is made for the largest pass.
Status CheckRowCounts(const Plan& plan) {
  for (const Tensor& tensor : plan.graph.tensors) {
    if (tensor.rows == schema::Rows_Fixed) continue;
    const uint32_t wanted =
        tensor.rows == schema::Rows_Pass ? LargestPassRows(plan.header) : LargestTailRows(plan.header);
    if (tensor.dims.front() != wanted) {
      return CorruptData(
          Text("tensor ", tensor.name, " has dims ", ops::DimsText(tensor), ", wanted ", wanted, " rows"));
    }
  }
  return {};
}

// A ring shorter than window - 1 + the rows of the largest pass would lose keys that early rows of the pass still need.
Status CheckAttention(const Plan& plan, const Site& site, const std::vector<uint32_t>& cache_writer) {
  const schema::Attention& attributes = site.attributes<schema::Attention>();
  const Header& header = plan.header;
  const bool donor = attributes.visibility() == schema::Visibility_Donor;
  if (donor != (site.op().phase == schema::Phase_Round)) {
    return site.Error(donor ? "reads a donor view outside a draft" : "is causal inside a draft");
  }
  if (attributes.window() != 0 && attributes.window() != header.window) {
    return site.Error(Text("window is ", attributes.window(), ", wanted 0 or the program's ", header.window));
  }
  const uint64_t wanted = attributes.window() == 0
                              ? uint64_t{header.context} + kDrafts
                              : uint64_t{header.window} - 1 + std::max(header.prefill_rows, kRoundRows);
  for (const size_t input : {1, 2}) {
    const uint32_t cache = site.In(input).index;
    const Tensor& tensor = plan.graph.tensors[cache];
    if (tensor.dims[1] < wanted) {
      return site.Error(Text("cache ", tensor.name, " holds ", tensor.dims[1], " positions, wanted at least ", wanted));
    }
    if (plan.graph.ops[cache_writer[cache]].kind != schema::OpKind_CacheWrite) {
      return site.Error(Text("cache ", tensor.name, " is not written by cache_write"));
    }
  }
  return {};
}

Status CheckAttentions(const Plan& plan) {
  std::vector<uint32_t> writer(plan.graph.tensors.size(), 0);
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    for (const uint32_t output : plan.graph.ops[i].outputs) writer[output] = i;
  }
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    if (plan.graph.ops[i].kind != schema::OpKind_Attention) continue;
    GEMMA4_RETURN_IF_ERROR(CheckAttention(plan, Site(plan.graph, i), writer));
  }
  return {};
}

// The target's scale goes on its own embedding and on both drafts', bit for bit.
Status CheckEmbeddingScale(const Plan& plan) {
  const float wanted = Root(plan).embedding_scale();
  if (!std::isfinite(wanted) || !(wanted > 0)) {
    return CorruptData(Text("embedding_scale is ", ops::FloatText(wanted), ", wanted finite and above 0"));
  }
  uint32_t target_embeddings = 0;
  int32_t table = -1;
  for (const Op& op : plan.graph.ops) {
    if (op.kind != schema::OpKind_Embedding || op.phase != schema::Phase_Always) continue;
    if (op.table->kind_as_Embedding()->scale() != wanted) continue;
    if (table < 0) table = op.inputs[1];
    ++target_embeddings;
  }
  if (target_embeddings == 0) {
    return CorruptData(Text("no embedding of the target has the embedding_scale ", ops::FloatText(wanted)));
  }
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    const Op& op = plan.graph.ops[i];
    if (op.kind != schema::OpKind_Embedding || op.phase != schema::Phase_Round) continue;
    const float found = op.table->kind_as_Embedding()->scale();
    if (std::bit_cast<uint32_t>(found) != std::bit_cast<uint32_t>(wanted)) {
      return Site(plan.graph, i)
          .Error(Text("draft embedding scale is ", ops::FloatText(found), ", wanted the target's embedding_scale ",
                      ops::FloatText(wanted)));
    }
    if (op.inputs[1] != table) return Site(plan.graph, i).Error("does not read the target's embedding table");
  }
  return {};
}

Status CheckCensus(const Plan& plan) {
  const schema::Census& census = *Root(plan).census();
  uint32_t argmax = 0, scatter = 0, top_k = 0, target = 0, assistant = 0, writes = 0;
  for (const Op& op : plan.graph.ops) {
    argmax += op.kind == schema::OpKind_Argmax;
    scatter += op.kind == schema::OpKind_Scatter || op.kind == schema::OpKind_ScatterUnique;
    top_k += op.kind == schema::OpKind_TopK;
    writes += op.kind == schema::OpKind_CacheWrite || op.kind == schema::OpKind_SeedWrite;
    if (op.kind == schema::OpKind_Attention) ++(op.role == schema::Role_Target ? target : assistant);
  }
  const struct {
    const char* name;
    uint32_t recorded, counted;
  } rows[] = {{"argmax", census.argmax(), argmax},
              {"scatter", census.scatter(), scatter},
              {"top_k", census.top_k(), top_k},
              {"attention_target", census.attention_target(), target},
              {"attention_assistant", census.attention_assistant(), assistant},
              {"cache_writes", census.cache_writes(), writes},
              {"ops", census.ops(), static_cast<uint32_t>(plan.graph.ops.size())}};
  for (const auto& row : rows) {
    if (row.recorded != row.counted) {
      return CorruptData(Text("census records ", row.recorded, " ", row.name, ", the graph has ", row.counted));
    }
  }
  return {};
}

// Greedy tokens come from one argmax over the vocabulary; in text_decoder, copy_last hands them out.
Status CheckPlainHead(const Plan& plan) {
  uint32_t heads = 0;
  int32_t greedy = -1;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    const Op& op = plan.graph.ops[i];
    if (op.kind == schema::OpKind_Argmax) {
      const Site site(plan.graph, i);
      if (const uint64_t width = ops::MatrixWidth(site.in(0)); width != plan.header.vocab) {
        return site.Error(Text("runs over ", width, " logits, wanted the vocabulary's ", plan.header.vocab));
      }
      if (op.phase == schema::Phase_Always) greedy = static_cast<int32_t>(op.outputs[0]), ++heads;
    }
    if (op.kind == schema::OpKind_CopyLast && op.inputs[0] != greedy) {
      return Site(plan.graph, i).Error("does not read the greedy tokens");
    }
  }
  if (heads != 1) return CorruptData(Text("the target has ", heads, " argmax ops, wanted 1"));
  return {};
}

}  // namespace

uint32_t LargestPassRows(const Header& header) {
  return header.mtp() ? std::max(header.prefill_rows, kRoundRows) : header.prefill_rows;
}

uint32_t LargestTailRows(const Header& header) { return header.mtp() ? kRoundRows : 1; }

Status CheckContracts(const Plan& plan) {
  GEMMA4_RETURN_IF_ERROR(CheckPorts(plan, "input", plan.inputs, Inputs(plan.header), schema::Storage_Input));
  GEMMA4_RETURN_IF_ERROR(CheckPorts(plan, "output", plan.outputs, Outputs(plan.header), schema::Storage_Output));
  GEMMA4_RETURN_IF_ERROR(CheckRowCounts(plan));
  GEMMA4_RETURN_IF_ERROR(CheckAttentions(plan));
  GEMMA4_RETURN_IF_ERROR(CheckEmbeddingScale(plan));
  GEMMA4_RETURN_IF_ERROR(CheckPlainHead(plan));
#if GEMMA4_MTP
  if (plan.header.mtp()) GEMMA4_RETURN_IF_ERROR(CheckRound(plan));
  GEMMA4_RETURN_IF_ERROR(CheckCertified(plan));
#endif
  if (plan.header.dense_drafts && !plan.header.mtp()) {
    return CorruptData(Text("draft_head of ", plan.header.method, " is dense, and it makes no drafts"));
  }
  return CheckCensus(plan);
}

}  // namespace gemma4::program
