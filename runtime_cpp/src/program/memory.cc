#include "program/memory.h"

#include <algorithm>
#include <cassert>

#include "base/text.h"

namespace gemma4::program {

namespace {
using ops::BindingRef;
using ops::Tensor;
namespace schema = ops::schema;
}  // namespace

Memory::Memory(gpu::Context& context, const Plan& plan) : context_(context), plan_(plan) {}

Result<std::unique_ptr<Memory>> Memory::Create(gpu::Context& context, const Plan& plan) {
  std::unique_ptr<Memory> memory(new Memory(context, plan));
  GEMMA4_RETURN_IF_ERROR(memory->AllocateTensors());
  GEMMA4_RETURN_IF_ERROR(memory->AllocateRopeTables());
  GEMMA4_ASSIGN_OR_RETURN(memory->absent_, context.CreateBuffer("absent input", 16, gpu::BufferUsage::kStorage));
  return memory;
}

Status Memory::AllocateTensors() {
  const std::vector<Tensor>& tensors = plan_.graph.tensors;
  values_.resize(tensors.size());
  scales_.resize(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    if (tensor.storage == schema::Storage_View || plan_.memory.slot[i] != kNoSlot) continue;
    GEMMA4_ASSIGN_OR_RETURN(values_[i],
                            context_.CreateBuffer(tensor.name, tensor.values_bytes, gpu::BufferUsage::kStorage));
    if (tensor.scales_bytes == 0) continue;
    GEMMA4_ASSIGN_OR_RETURN(scales_[i], context_.CreateBuffer(Text(tensor.name, ".scale"), tensor.scales_bytes,
                                                              gpu::BufferUsage::kStorage));
  }
  for (size_t i = 0; i < plan_.memory.slot_bytes.size(); ++i) {
    GEMMA4_ASSIGN_OR_RETURN(gpu::Buffer slot, context_.CreateBuffer(Text("activations ", i), plan_.memory.slot_bytes[i],
                                                                    gpu::BufferUsage::kStorage));
    slots_.push_back(std::move(slot));
  }
  for (size_t i = 0; i < scratch_.size(); ++i) {
    if (plan_.memory.scratch_bytes[i] == 0) continue;
    GEMMA4_ASSIGN_OR_RETURN(scratch_[i], context_.CreateBuffer(Text("scratch ", i), plan_.memory.scratch_bytes[i],
                                                               gpu::BufferUsage::kStorage));
  }
  return {};
}

Status Memory::AllocateRopeTables() {
  for (const ops::Op& op : plan_.graph.ops) {
    if (op.kind != schema::OpKind_Rope) continue;
    const ops::RopeKey key = ops::RopeKeyOf(op);
    const auto same = [&](const RopeTable& table) { return table.key == key; };
    if (std::any_of(rope_tables_.begin(), rope_tables_.end(), same)) continue;
    const std::vector<uint32_t> frequencies = ops::RopeFrequencies(key);
    const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(frequencies.data()), frequencies.size() * 4);
    GEMMA4_ASSIGN_OR_RETURN(gpu::Buffer buffer, context_.CreateBuffer(Text("rope frequencies ", rope_tables_.size()),
                                                                      bytes.size(), gpu::BufferUsage::kStorage));
    GEMMA4_RETURN_IF_ERROR(context_.WriteBuffer(buffer, 0, bytes));
    rope_tables_.push_back({key, std::move(buffer)});
  }
  return {};
}

const gpu::Buffer& Memory::Values(uint32_t tensor) const {
  const uint32_t slot = plan_.memory.slot[tensor];
  return slot == kNoSlot ? values_[tensor] : slots_[slot];
}

const gpu::Buffer& Memory::Resolve(const BindingRef& ref) const {
  switch (ref.kind) {
    case BindingRef::Kind::kValues:
      return Values(ref.index);
    case BindingRef::Kind::kScales:
      return scales_[ref.index];
    case BindingRef::Kind::kRopeTable: {
      const ops::RopeKey key = ops::RopeKeyOf(plan_.graph.ops[ref.index]);
      const auto table = std::find_if(rope_tables_.begin(), rope_tables_.end(),
                                      [&](const RopeTable& candidate) { return candidate.key == key; });
      assert(table != rope_tables_.end());
      return table->buffer;
    }
    case BindingRef::Kind::kScratch:
      return scratch_[ref.index];
    case BindingRef::Kind::kAbsent:
      break;
  }
  return absent_;
}

Status Memory::Open(const WeightSpan& span) {
  const gpu::Buffer& buffer = span.scales ? scales_[span.tensor] : values_[span.tensor];
  writer_.emplace(context_, buffer, span.to, span.bytes);
  return {};
}

Status Memory::Append(std::span<const uint8_t> slice) { return writer_->Append(slice); }

}  // namespace gemma4::program
