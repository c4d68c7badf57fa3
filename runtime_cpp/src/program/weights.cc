#include "program/weights.h"

#include <algorithm>

#include "base/text.h"
#include "program/reader.h"

namespace gemma4::program {

namespace {

using ops::Tensor;
namespace schema = ops::schema;

constexpr std::string_view kAssistantPrefix = "assistant.";
constexpr uint32_t kMaxShards = 4096;
constexpr uint64_t kMaxShardBytes = uint64_t{1} << 40;
constexpr uint64_t kSmallestHeader = 8 + 2;  // safetensors: u64 length, then at least "{}"

std::string_view View(const flatbuffers::String* text) { return {text->c_str(), text->size()}; }

Status ReadShards(const schema::Program& root, Plan* plan) {
  if (root.shards()->size() > kMaxShards) {
    return CorruptData(Text("the program has ", root.shards()->size(), " shards, wanted at most ", kMaxShards));
  }
  for (const schema::Shard* table : *root.shards()) {
    ShardInfo shard;
    if (!IsPlainFileName(View(table->file()))) {
      return CorruptData(Text("shard ", plan->shards.size(), " has a file name that is not a plain name"));
    }
    shard.file = View(table->file());
    shard.bytes = table->bytes();
    shard.sha256 = View(table->sha256());
    shard.assistant = table->role() == schema::Role_Assistant;
    const auto error = [&](std::string what) { return CorruptData(Text("shard ", shard.file, what)); };
    if (shard.bytes < kSmallestHeader || shard.bytes > kMaxShardBytes) {
      return error(Text(" has ", shard.bytes, " bytes, wanted ", kSmallestHeader, " to ", kMaxShardBytes));
    }
    if (!IsSha256(shard.sha256)) return error(": its sha256 is not 64 lower-case hexadecimal digits");
    if (table->role() > schema::Role_MAX) return error(" has an unknown role");
    if (shard.assistant && !plan->header.mtp())
      return error(" belongs to an assistant, which text_decoder does not have");
    for (const ShardInfo& other : plan->shards) {
      if (other.file == shard.file) return error(" is listed twice");
    }
    plan->shards.push_back(std::move(shard));
  }
  return {};
}

// One span of `tensor`, whose rows of `row_bytes` it continues at row `first`; fills in how many rows it has.
Status AddSpan(const schema::Span* table, uint32_t tensor, bool scales, uint64_t row_bytes, uint64_t first,
               uint64_t* rows, Plan* plan) {
  const std::string label = Text(scales ? "scales of weight " : "weight ", plan->graph.tensors[tensor].name);
  const WeightSpan span{tensor, scales, table->shard(), table->begin(), table->bytes(), first * row_bytes};
  if (span.bytes == 0 || span.bytes % row_bytes != 0) {
    return CorruptData(Text(label, ": ", span.bytes, " bytes in its shard, wanted whole rows of ", row_bytes));
  }
  *rows = span.bytes / row_bytes;
  if (span.to % 4 != 0) {
    return CorruptData(Text(label, " is split at row ", first, ", ", span.to, " bytes in, wanted a multiple of 4"));
  }
  if (span.shard >= plan->shards.size()) {
    return CorruptData(Text(label, " lies in shard ", span.shard, "; the program has ", plan->shards.size()));
  }
  const ShardInfo& shard = plan->shards[span.shard];
  if (span.begin < kSmallestHeader || span.bytes > shard.bytes || span.begin > shard.bytes - span.bytes) {
    return CorruptData(Text(label, ": ", span.bytes, " bytes from ", span.begin, " are not inside ", shard.file, " of ",
                            shard.bytes, " bytes"));
  }
  if (shard.assistant != plan->graph.tensors[tensor].name.starts_with(kAssistantPrefix)) {
    return CorruptData(Text(label, " lies in the other model's shard ", shard.file));
  }
  plan->spans.push_back(span);
  return {};
}

// `placed`: the rows of every tensor that have a place already.
Status ReadWeight(const schema::Weight& table, std::vector<uint64_t>* placed, Plan* plan) {
  const std::vector<Tensor>& tensors = plan->graph.tensors;
  const uint32_t index = table.tensor();
  if (index >= tensors.size()) {
    return CorruptData(Text("a weight names tensor ", index, "; the program has ", tensors.size()));
  }
  const Tensor& tensor = tensors[index];
  if (tensor.storage != schema::Storage_Weight) return CorruptData(Text("tensor ", tensor.name, " is no weight"));
  const uint64_t all = tensor.dims[0];
  const uint64_t first = (*placed)[index];
  if (first == all) return CorruptData(Text("weight ", tensor.name, " has two places"));
  if (table.values() == nullptr) return CorruptData(Text("weight ", tensor.name, " has no values"));
  uint64_t rows = 0;
  GEMMA4_RETURN_IF_ERROR(AddSpan(table.values(), index, false, tensor.values_bytes / all, first, &rows, plan));
  if (rows > all - first) {
    return CorruptData(Text("weight ", tensor.name, ": ", first + rows, " rows in its shards, wanted ", all));
  }
  (*placed)[index] = first + rows;
  if (tensor.dtype == schema::Dtype_Q4) {
    if (table.scales() == nullptr) return CorruptData(Text("q4 weight ", tensor.name, " has no scales"));
    uint64_t scale_rows = 0;
    GEMMA4_RETURN_IF_ERROR(AddSpan(table.scales(), index, true, tensor.scales_bytes / all, first, &scale_rows, plan));
    if (scale_rows == rows) return {};
    return CorruptData(
        Text("weight ", tensor.name, " has values of ", rows, " and scales of ", scale_rows, " rows in one place"));
  }
  if (table.scales() != nullptr && table.scales()->bytes() != 0) {
    return CorruptData(Text("weight ", tensor.name, " is not q4 and has scales"));
  }
  return {};
}

Status CheckOverlap(Plan* plan) {
  std::sort(plan->spans.begin(), plan->spans.end(), [](const WeightSpan& a, const WeightSpan& b) {
    return a.shard != b.shard ? a.shard < b.shard : a.begin < b.begin;
  });
  for (size_t i = 1; i < plan->spans.size(); ++i) {
    const WeightSpan& left = plan->spans[i - 1];
    const WeightSpan& right = plan->spans[i];
    if (left.shard == right.shard && left.begin + left.bytes > right.begin) {
      return CorruptData(Text("weights ", plan->graph.tensors[left.tensor].name, " and ",
                              plan->graph.tensors[right.tensor].name, " overlap at byte ", right.begin, " of ",
                              plan->shards[left.shard].file));
    }
  }
  return {};
}

}  // namespace

bool IsPlainFileName(std::string_view name) {
  if (name.empty() || name.size() > 200 || name.front() == '.' || name.back() == '.' || name.back() == ' ')
    return false;
  constexpr std::string_view kForbidden = "/\\:*?\"<>|%";
  return std::all_of(name.begin(), name.end(),
                     [&](char c) { return c >= 0x20 && c < 0x7f && kForbidden.find(c) == std::string_view::npos; });
}

Status ReadWeights(Plan* plan) {
  const schema::Program& root = Root(*plan);
  GEMMA4_RETURN_IF_ERROR(ReadShards(root, plan));
  std::vector<uint64_t> placed(plan->graph.tensors.size(), 0);
  for (const schema::Weight* table : *root.weights()) GEMMA4_RETURN_IF_ERROR(ReadWeight(*table, &placed, plan));
  for (size_t i = 0; i < placed.size(); ++i) {
    const Tensor& tensor = plan->graph.tensors[i];
    if (tensor.storage != schema::Storage_Weight) continue;
    if (placed[i] == 0) return CorruptData(Text("weight ", tensor.name, " has no place in a shard"));
    if (placed[i] != tensor.dims[0]) {
      return CorruptData(
          Text("weight ", tensor.name, ": ", placed[i], " rows in its shards, wanted ", tensor.dims[0]));
    }
  }
  return CheckOverlap(plan);
}

}  // namespace gemma4::program
