#include "gpu/recording.h"

#include <algorithm>

#include "base/text.h"
#include "kernels.h"

namespace gemma4::gpu {
namespace {

constexpr size_t kPageBytes = 16384;  // 64 params at the default alignment of 256

}  // namespace

Result<Binding> UniformArena::AddBytes(std::span<const uint8_t> bytes) {
  const size_t alignment = context_->limits().uniform_offset_alignment;
  if (bytes.empty() || bytes.size() > kPageBytes) return Internal(Text("params of ", bytes.size(), " bytes"));
  if (pages_.empty() || (pages_.back()->bytes.size() + alignment - 1) / alignment * alignment + bytes.size() > kPageBytes) {
    auto page = std::make_unique<Page>();
    GEMMA4_ASSIGN_OR_RETURN(page->buffer, context_->CreateBuffer("params", kPageBytes, BufferUsage::kUniform));
    pages_.push_back(std::move(page));
  }
  Page& page = *pages_.back();
  const size_t offset = (page.bytes.size() + alignment - 1) / alignment * alignment;
  page.bytes.resize(offset);
  page.bytes.insert(page.bytes.end(), bytes.begin(), bytes.end());
  return Binding{&page.buffer, offset, bytes.size()};
}

Status UniformArena::Flush() {
  for (const auto& page : pages_) {
    if (page->flushed == page->bytes.size()) continue;
    GEMMA4_RETURN_IF_ERROR(context_->WriteBuffer(page->buffer, 0, page->bytes));
    page->flushed = page->bytes.size();
  }
  return {};
}

Status Recording::AddBound(const Pipeline& pipeline, std::span<const Binding> storage, const Binding& params, Grid grid) {
  const kernels::Kernel& kernel = pipeline.kernel();
  if (params.bytes < kernel.params_bytes) {
    return Internal(Text("kernel ", kernel.name, " takes ", kernel.params_bytes, " bytes of params, ", params.bytes,
                         " were given"));
  }
  std::vector<Binding> bindings(storage.begin(), storage.end());
  bindings.push_back(params);
  GEMMA4_ASSIGN_OR_RETURN(BindGroup group, context_->CreateBindGroup(kernel.name, pipeline, bindings));
  dispatches_.push_back({&pipeline, std::move(group), grid});
  return {};
}

}  // namespace gemma4::gpu
