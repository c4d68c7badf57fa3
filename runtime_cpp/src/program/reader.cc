#include "program/reader.h"

#include <algorithm>

#include "base/text.h"
#include "ops/check.h"
#include "ops/q4_scales.h"
#include "ops/registry.h"

namespace gemma4::program {

namespace {

using ops::Op;
using ops::Tensor;
namespace schema = ops::schema;

constexpr uint32_t kSchema = 1;
constexpr uint32_t kMaxDepth = 16;
constexpr uint32_t kMaxTables = 200'000;
constexpr uint32_t kMaxTensors = 16'384;
constexpr uint32_t kMaxOps = 16'384;
constexpr uint32_t kMaxArity = 8;
constexpr uint32_t kMaxRank = 4;
constexpr uint32_t kMaxNameBytes = 200;
constexpr uint32_t kMaxStopIds = 64;
constexpr uint32_t kMaxPositions = 1u << 24;   // context, prefill rows and window; far above any Gemma 4
constexpr uint64_t kMaxElements = UINT32_MAX;  // kernels index elements with 32 bits

std::string_view View(const flatbuffers::String* text) { return {text->c_str(), text->size()}; }

// Names go into messages and JSON, and are the keys of weights.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

// Offsets in a vector of tables lead forward, into the buffer. The verifier looks at the sum of address and offset
// alone, which wraps in 32 bits, so that a huge offset could lead backward there.
template <typename Table>
bool LeadForward(const flatbuffers::Vector<flatbuffers::Offset<Table>>& vector, size_t bytes) {
  for (uint32_t i = 0; i < vector.size(); ++i) {
    const uint8_t* element = vector.Data() + i * sizeof(flatbuffers::uoffset_t);
    if (flatbuffers::ReadScalar<flatbuffers::uoffset_t>(element) >= bytes) return false;
  }
  return true;
}

Status VerifyBytes(const std::vector<uint8_t>& bytes) {
  constexpr size_t kIdentifierEnd = 8;
  if (bytes.size() < kIdentifierEnd)
    return CorruptData(Text("the program has ", bytes.size(), " bytes, wanted at least 8"));
  if (bytes.size() > kMaxProgramBytes) {
    return CorruptData(Text("the program has ", bytes.size(), " bytes, wanted at most ", kMaxProgramBytes));
  }
  if (!schema::ProgramBufferHasIdentifier(bytes.data())) {
    return CorruptData(Text("the file does not carry the identifier ", schema::ProgramIdentifier(), " of a program"));
  }
  flatbuffers::Verifier verifier(bytes.data(), bytes.size(), kMaxDepth, kMaxTables);
  const bool verified = schema::VerifyProgramBuffer(verifier);
  const schema::Program* root = verified ? schema::GetProgram(bytes.data()) : nullptr;
  if (!verified || !LeadForward(*root->tensors(), bytes.size()) || !LeadForward(*root->ops(), bytes.size()) ||
      !LeadForward(*root->shards(), bytes.size()) || !LeadForward(*root->weights(), bytes.size()) ||
      (root->certificate() != nullptr && !LeadForward(*root->certificate(), bytes.size()))) {
    return CorruptData("the program is truncated or damaged: its FlatBuffer does not verify");
  }
  return {};
}

Status InRange(std::string_view what, uint64_t found, uint64_t low, uint64_t high) {
  if (found >= low && found <= high) return {};
  return CorruptData(Text(what, " is ", found, ", wanted ", low, " to ", high));
}

Status ReadHeader(const schema::Program& root, Header* header) {
  header->vocab = root.vocab();
  header->hidden = root.hidden();
  header->context = root.context();
  header->prefill_rows = root.prefill_rows();
  header->window = root.window();
  header->source_sha256 = View(root.source_sha256());
  GEMMA4_RETURN_IF_ERROR(InRange("vocab", header->vocab, 1, INT32_MAX));
  GEMMA4_RETURN_IF_ERROR(InRange("hidden", header->hidden, 1, INT32_MAX));
  GEMMA4_RETURN_IF_ERROR(InRange("context", header->context, 1, kMaxPositions));
  GEMMA4_RETURN_IF_ERROR(InRange("prefill_rows", header->prefill_rows, 1, kMaxPositions));
  GEMMA4_RETURN_IF_ERROR(InRange("window", header->window, 0, kMaxPositions));
  GEMMA4_RETURN_IF_ERROR(InRange("query_positions", root.query_positions(), 0, schema::QueryPositions_MAX));
  header->progressive_queries = root.query_positions() == schema::QueryPositions_Progressive;
  GEMMA4_RETURN_IF_ERROR(InRange("draft_head", root.draft_head(), 0, schema::DraftHead_MAX));
  header->dense_drafts = root.draft_head() == schema::DraftHead_Dense;
  if (!IsSha256(header->source_sha256)) {
    return CorruptData("source_sha256 of the program is not 64 lower-case hexadecimal digits");
  }
  if (root.stop_ids() == nullptr) return {};
  GEMMA4_RETURN_IF_ERROR(InRange("number of stop ids", root.stop_ids()->size(), 0, kMaxStopIds));
  for (const int32_t id : *root.stop_ids()) {
    if (id < 0 || static_cast<uint32_t>(id) >= header->vocab) {
      return CorruptData(Text("stop id ", id, " is outside the vocabulary of ", header->vocab));
    }
    header->stop_ids.push_back(id);
  }
  return {};
}

// Of its digests only the form. The page loads no program whose bytes are not those that the manifest lists, and what they
// vouch for is looked at itself: the table as it comes (certified.h), the passes as they are recorded (one_pass.h).
Status ReadCertificate(const schema::Program& root, Plan* plan) {
  if (root.certificate() == nullptr) return {};
  for (const schema::Proof* table : *root.certificate()) {
    GEMMA4_RETURN_IF_ERROR(InRange("property of the certificate", table->property(), 0, schema::Property_MAX));
    const Proof proof{table->property(), table->subject()->str(), table->sha256()->str()};
    const std::string where = Text("certificate of ", schema::EnumNameProperty(proof.property));
    if (!IsName(proof.subject)) return CorruptData(Text(where, ": its subject is not a name"));
    if (!IsSha256(proof.sha256)) return CorruptData(Text(where, ": sha256 is not 64 lower-case hexadecimal digits"));
    if (plan->Proves(proof.property)) return CorruptData(Text(where, " stands twice"));
    if (proof.property == schema::Property_SingleComputePass && proof.subject != "graph") {
      return CorruptData(Text(where, ": its subject is ", proof.subject, ", wanted graph"));
    }
    plan->certificate.push_back(proof);
  }
  return {};
}

Status CheckScales(const Tensor& tensor) {
  const auto error = [&](std::string what) { return CorruptData(Text("tensor ", tensor.name, what)); };
  if (tensor.group != 32 && tensor.group != 64 && tensor.group != 128) {
    return error(Text(" has groups of ", tensor.group, ", wanted 32, 64 or 128"));
  }
  if (tensor.dtype != schema::Dtype_Q4 && (tensor.group != 32 || ops::HasF32Scales(tensor))) {
    return error(Text(" is ", ops::DtypeName(tensor.dtype), " and says how its scales are stored"));
  }
  return {};
}

// Sizes follow from dims, dtype and the form of the scales alone.
Status SizeTensor(Tensor* tensor) {
  const auto error = [&](std::string what) { return CorruptData(Text("tensor ", tensor->name, what)); };
  if (tensor->dims.empty() || tensor->dims.size() > kMaxRank) {
    return error(Text(" has ", tensor->dims.empty() ? "no" : "too many", " dimensions, wanted 1 to ", kMaxRank));
  }
  tensor->elements = 1;
  for (const uint32_t dim : tensor->dims) {
    if (dim == 0) return error(" has a dimension of 0");
    if (tensor->elements > kMaxElements / dim) return error(Text(" has more than ", kMaxElements, " elements"));
    tensor->elements *= dim;
  }
  if (tensor->dtype == schema::Dtype_Q4) {
    if (tensor->storage != schema::Storage_Weight || tensor->dims.size() != 2 || tensor->dims[1] % tensor->group != 0) {
      return error(Text(" is q4, wanted a weight [out,in] with in a multiple of ", tensor->group));
    }
    tensor->values_bytes = tensor->elements / 2;
    tensor->scales_bytes = tensor->elements / tensor->group * (ops::HasF32Scales(*tensor) ? 4 : 2);
  } else if (tensor->storage != schema::Storage_View) {
    tensor->values_bytes = tensor->elements * 4;
  }
  return {};
}

Status ReadTensor(const schema::Tensor& table, uint32_t index, Tensor* tensor) {
  if (!IsName(View(table.name()))) {
    return CorruptData(Text("tensor ", index, " has a bad name: wanted 1 to ", kMaxNameBytes, " printable characters"));
  }
  tensor->name = View(table.name());
  GEMMA4_RETURN_IF_ERROR(InRange(Text("dtype of tensor ", tensor->name), table.dtype(), 0, schema::Dtype_MAX));
  GEMMA4_RETURN_IF_ERROR(InRange(Text("storage of tensor ", tensor->name), table.storage(), 0, schema::Storage_MAX));
  GEMMA4_RETURN_IF_ERROR(InRange(Text("row kind of tensor ", tensor->name), table.rows(), 0, schema::Rows_MAX));
  tensor->dtype = table.dtype();
  tensor->storage = table.storage();
  tensor->rows = table.rows();
  tensor->retain = table.retain();
  GEMMA4_RETURN_IF_ERROR(
      InRange(Text("scale dtype of tensor ", tensor->name), table.scale_dtype(), 0, schema::ScaleDtype_MAX));
  tensor->group = table.group();
  tensor->scale_dtype = table.scale_dtype();
  GEMMA4_RETURN_IF_ERROR(CheckScales(*tensor));
  const uint32_t rank = std::min(table.dims()->size(), kMaxRank + 1);
  for (uint32_t i = 0; i < rank; ++i) tensor->dims.push_back(table.dims()->Get(i));
  if (tensor->rows != schema::Rows_Fixed && tensor->storage != schema::Storage_Activation) {
    return CorruptData(
        Text("tensor ", tensor->name, " has a variable number of rows, which only activations may have"));
  }
  if (tensor->rows != schema::Rows_Fixed && tensor->dims.size() > 2) {
    return CorruptData(
        Text("tensor ", tensor->name, " has rows and ", tensor->dims.size(), " dimensions, wanted 1 or 2"));
  }
  return SizeTensor(tensor);
}

Status CheckUniqueNames(const std::vector<Tensor>& tensors) {
  std::vector<std::string_view> names(tensors.size());
  std::transform(tensors.begin(), tensors.end(), names.begin(),
                 [](const Tensor& t) { return std::string_view(t.name); });
  std::sort(names.begin(), names.end());
  const auto twin = std::adjacent_find(names.begin(), names.end());
  return twin == names.end() ? Status() : CorruptData(Text("two tensors are called ", *twin));
}

Status ReadOp(const schema::Op& table, uint32_t index, uint32_t tensors, Op* op) {
  op->table = &table;
  op->kind = table.kind_type();
  const auto error = [&](std::string what) {
    return CorruptData(Text("op ", index, " (", ops::KindName(op->kind), ")", what));
  };
  if (op->kind == schema::OpKind_NONE) return error(" has no kind");
  if (table.role() > schema::Role_MAX || table.phase() > schema::Phase_MAX)
    return error(" has an unknown role or phase");
  op->role = table.role();
  op->phase = table.phase();
  if (table.inputs()->size() > kMaxArity || table.outputs()->size() > kMaxArity) {
    return error(Text(" has more than ", kMaxArity, " inputs or outputs"));
  }
  for (const int32_t input : *table.inputs()) {
    if (input < -1 || input >= static_cast<int64_t>(tensors)) {
      return error(Text(" reads tensor ", input, "; the program has ", tensors));
    }
    op->inputs.push_back(input);
  }
  for (const int32_t output : *table.outputs()) {
    if (output < 0 || output >= static_cast<int64_t>(tensors)) {
      return error(Text(" writes tensor ", output, "; the program has ", tensors));
    }
    op->outputs.push_back(static_cast<uint32_t>(output));
  }
  return {};
}

Status ReadIndices(std::string_view what, const flatbuffers::Vector<uint32_t>& table, size_t tensors,
                   std::vector<uint32_t>* out) {
  GEMMA4_RETURN_IF_ERROR(InRange(Text("number of ", what, "s"), table.size(), 1, kMaxArity));
  for (const uint32_t index : table) {
    if (index >= tensors) return CorruptData(Text(what, " names tensor ", index, "; the program has ", tensors));
    out->push_back(index);
  }
  return {};
}

}  // namespace

bool IsSha256(std::string_view text) {
  return text.size() == 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

const schema::Program& Root(const Plan& plan) { return *schema::GetProgram(plan.bytes.data()); }

Status ReadProgram(Plan* plan, std::string_view expected_method) {
  GEMMA4_RETURN_IF_ERROR(VerifyBytes(plan->bytes));
  const schema::Program& root = Root(*plan);
  if (root.schema() != kSchema) {
    return CorruptData(
        Text("the program has schema ", root.schema(), ", wanted ", kSchema, ": export the model again"));
  }
  if (View(root.method()) != expected_method) {
    const std::string_view found = View(root.method());
    return {Code::kUnsupported, Text("the program's method is ", IsName(found) ? found : "not a name",
                                     "; this module runs only ", expected_method)};
  }
  plan->header.method = expected_method;
  GEMMA4_RETURN_IF_ERROR(ReadHeader(root, &plan->header));
  GEMMA4_RETURN_IF_ERROR(ReadCertificate(root, plan));
  GEMMA4_RETURN_IF_ERROR(InRange("number of tensors", root.tensors()->size(), 1, kMaxTensors));
  GEMMA4_RETURN_IF_ERROR(InRange("number of ops", root.ops()->size(), 1, kMaxOps));
  ops::Graph& graph = plan->graph;
  graph.prefill_rows = plan->header.prefill_rows;
  for (const schema::Tensor* table : *root.tensors()) {
    Tensor tensor;
    GEMMA4_RETURN_IF_ERROR(ReadTensor(*table, static_cast<uint32_t>(graph.tensors.size()), &tensor));
    graph.tensors.push_back(std::move(tensor));
  }
  GEMMA4_RETURN_IF_ERROR(CheckUniqueNames(graph.tensors));
  for (const schema::Op* table : *root.ops()) {
    Op op;
    GEMMA4_RETURN_IF_ERROR(
        ReadOp(*table, static_cast<uint32_t>(graph.ops.size()), static_cast<uint32_t>(graph.tensors.size()), &op));
    graph.ops.push_back(std::move(op));
  }
  GEMMA4_RETURN_IF_ERROR(ReadIndices("program input", *root.inputs(), graph.tensors.size(), &plan->inputs));
  return ReadIndices("program output", *root.outputs(), graph.tensors.size(), &plan->outputs);
}

}  // namespace gemma4::program
