// A GPU buffer and the ways bytes get in. Owns its WGPUBuffer; the memory is destroyed with it. Made by
// Context::CreateBuffer. Never maps for writing: writes go through the queue, reads through Readback (gpu/readback.h).
#pragma once

#include <webgpu/webgpu.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/handle.h"

namespace gemma4::gpu {

class Context;

enum class BufferUsage : uint8_t {
  kStorage,       // storage, copy source and destination: weights, caches, activations, inputs, outputs
  kUniform,       // uniform, copy destination: params
  kReadback,      // map-read, copy destination
  kQueryResolve,  // query-resolve, copy source (profile builds)
};

class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();

  const std::string& label() const { return label_; }
  uint64_t bytes() const { return bytes_; }                  // as asked for
  uint64_t allocated_bytes() const { return allocated_; }    // bytes rounded up to a multiple of 16
  BufferUsage usage() const { return usage_; }
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  friend class Context;
  friend class CommandRecorder;
  friend class Readback;
  friend class QueryPool;
  friend class Timing;
  WGPUBuffer raw() const { return handle_.get(); }
  void Free();

  Handle<WGPUBuffer, &wgpuBufferRelease> handle_;
  ObjectCounter* counter_ = nullptr;
  std::string label_;
  uint64_t bytes_ = 0;
  uint64_t allocated_ = 0;
  BufferUsage usage_ = BufferUsage::kStorage;
};

// One entry of a bind group: `bytes` 0 means from offset to the end of the buffer's allocation. Offsets are multiples of
// 256 (the default storage and uniform alignment).
struct Binding {
  const Buffer* buffer = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// Writes a byte stream of arbitrary slice lengths into [offset, offset + bytes) of a buffer: WebGPU takes only whole
// 4-byte words at 4-byte offsets, so up to 3 bytes are carried from one slice to the next.
class StreamWriter {
 public:
  StreamWriter(Context& context, const Buffer& buffer, uint64_t offset, uint64_t bytes)
      : context_(&context), buffer_(&buffer), offset_(offset), remaining_(bytes) {}

  // Consumes all of `slice`; an error when it is longer than what remains. The last Append (remaining() == 0) pads the
  // final word with zero bytes.
  Status Append(std::span<const uint8_t> slice);
  uint64_t remaining() const { return remaining_; }

 private:
  Context* context_;
  const Buffer* buffer_;
  uint64_t offset_;     // of the next word to be written; a multiple of 4
  uint64_t remaining_;  // bytes not yet appended
  uint8_t carry_[4] = {};
  uint32_t carried_ = 0;
};

}  // namespace gemma4::gpu
