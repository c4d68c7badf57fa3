#include "gpu/buffer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "gpu/context.h"
#include "gpu/convert.h"

namespace gemma4::gpu {
namespace {

constexpr uint64_t kWord = 4;
constexpr uint64_t kVector = 16;  // kernels bind arrays of vec4: the last vector of a buffer has to be whole

constexpr uint64_t RoundUp(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

WGPUBufferUsage ToUsage(BufferUsage usage) {
  switch (usage) {
    case BufferUsage::kStorage: return WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst;
    case BufferUsage::kUniform: return WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst;
    case BufferUsage::kReadback: return WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst;
    case BufferUsage::kQueryResolve: return WGPUBufferUsage_QueryResolve | WGPUBufferUsage_CopySrc;
  }
  return WGPUBufferUsage_None;
}

}  // namespace

Buffer::Buffer(Buffer&& other) noexcept { *this = std::move(other); }

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this == &other) return *this;
  Free();
  handle_ = std::move(other.handle_);
  counter_ = other.counter_;
  label_ = std::move(other.label_);
  bytes_ = std::exchange(other.bytes_, 0);
  allocated_ = std::exchange(other.allocated_, 0);
  usage_ = other.usage_;
  return *this;
}

Buffer::~Buffer() { Free(); }

void Buffer::Free() {
  if (!handle_) return;
  counter_->buffer_bytes -= allocated_;
  wgpuBufferDestroy(handle_.get());  // memory goes back now, not when the browser collects the object
  handle_.Reset();
}

Result<Buffer> Context::CreateBuffer(std::string_view label, uint64_t bytes, BufferUsage usage) {
  const uint64_t allocated = RoundUp(bytes, kVector);
  if (bytes == 0) return Internal(Text("buffer ", label, " of zero bytes was asked for"));
  if (allocated > limits_.max_buffer_bytes) {
    return LimitExceeded(
        Text("buffer ", label, " needs ", allocated, " bytes; the adapter allows ", limits_.max_buffer_bytes, " a buffer"));
  }
  WGPUBufferDescriptor descriptor = {};
  descriptor.label = ToView(label);
  descriptor.usage = ToUsage(usage);
  descriptor.size = allocated;
  PushAllocationScope();
  WGPUBuffer raw = wgpuDeviceCreateBuffer(device_.get(), &descriptor);
  PopAllocationScope(Text("buffer ", label, " of ", allocated, " bytes"));
  if (raw == nullptr) return Status(Code::kOutOfMemory, Text("allocating buffer ", label, " of ", allocated, " bytes failed"));
  Buffer buffer;
  buffer.handle_ = {raw, counter_};
  buffer.counter_ = counter_;
  buffer.label_ = label;
  buffer.bytes_ = bytes;
  buffer.allocated_ = allocated;
  buffer.usage_ = usage;
  counter_->buffer_bytes += allocated;
  return buffer;
}

Status Context::WriteBuffer(const Buffer& buffer, uint64_t offset, std::span<const uint8_t> bytes) {
  if (!buffer) return Internal("a write to a buffer that does not exist");
  const uint64_t padded = RoundUp(bytes.size(), kWord);
  if (offset % kWord != 0 || offset > buffer.allocated_ || padded > buffer.allocated_ - offset) {
    return Internal(Text("a write of ", bytes.size(), " bytes at ", offset, " does not fit buffer ", buffer.label_, " of ",
                         buffer.bytes_, " bytes"));
  }
  const size_t whole = bytes.size() / kWord * kWord;
  if (whole > 0) wgpuQueueWriteBuffer(queue_.get(), buffer.raw(), offset, bytes.data(), whole);
  if (whole < bytes.size()) {
    uint8_t word[kWord] = {};
    std::memcpy(word, bytes.data() + whole, bytes.size() - whole);
    wgpuQueueWriteBuffer(queue_.get(), buffer.raw(), offset + whole, word, kWord);
  }
  return {};
}

Status StreamWriter::Append(std::span<const uint8_t> slice) {
  if (slice.size() > remaining_) {
    return InvalidArgument(Text("buffer ", buffer_->label(), " was given ", slice.size(), " more bytes, ", remaining_,
                                " were missing"));
  }
  remaining_ -= slice.size();
  if (carried_ > 0) {
    const size_t taken = std::min<size_t>(kWord - carried_, slice.size());
    std::memcpy(carry_ + carried_, slice.data(), taken);
    carried_ += static_cast<uint32_t>(taken);
    slice = slice.subspan(taken);
    if (carried_ < kWord && remaining_ > 0) return {};
    GEMMA4_RETURN_IF_ERROR(context_->WriteBuffer(*buffer_, offset_, {carry_, carried_}));
    offset_ += kWord;
    carried_ = 0;
  }
  const size_t now = remaining_ == 0 ? slice.size() : slice.size() / kWord * kWord;
  if (now > 0) GEMMA4_RETURN_IF_ERROR(context_->WriteBuffer(*buffer_, offset_, slice.first(now)));
  offset_ += now;
  slice = slice.subspan(now);
  std::memcpy(carry_, slice.data(), slice.size());
  carried_ = static_cast<uint32_t>(slice.size());
  return {};
}

}  // namespace gemma4::gpu
