// Bytes from GPU to CPU. A Readback owns one mappable buffer that is filled by a copy in a command buffer and mapped
// afterwards; ReadBuffer is the one-shot form. Never blocks: data arrives in the callback, or an error does.
#pragma once

#include <webgpu/webgpu.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/context.h"

namespace gemma4::gpu {

class Readback {
 public:
  using MapCallback = std::function<void(Result<std::span<const uint8_t>>)>;

  static Result<std::unique_ptr<Readback>> Create(Context& context, std::string_view label, uint64_t bytes);
  ~Readback();
  Readback(const Readback&) = delete;
  Readback& operator=(const Readback&) = delete;

  const Buffer& buffer() const { return buffer_; }  // the copy destination
  // After the submit whose copies are wanted. The bytes are valid inside the callback only; it may destroy the Readback.
  // One Map at a time. Not called when the Readback is destroyed first.
  void Map(uint64_t bytes, MapCallback done);

 private:
  Readback(Context& context, Buffer buffer);
  Context& context_;
  Buffer buffer_;
  std::shared_ptr<bool> alive_;
};

// Copies [offset, offset + bytes) of a buffer and calls done with the bytes. The Context outlives the callback.
void ReadBuffer(Context& context, const Buffer& source, uint64_t offset, uint64_t bytes,
                std::function<void(Result<std::vector<uint8_t>>)> done);

}  // namespace gemma4::gpu
