// Encodes and submits one command buffer. Owns the encoder until Submit. Every dispatch gets a compute pass of its own,
// labelled with the kernel's name (and its own timestamp pair in profile builds), but for recordings that share one pass:
// those that are run one right after the other are all in it. Never waits.
#pragma once

#include <webgpu/webgpu.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/context.h"
#include "gpu/recording.h"

namespace gemma4::gpu {

class Timing;

class CommandRecorder {
 public:
  CommandRecorder(Context& context, std::string_view label);
  ~CommandRecorder();
  CommandRecorder(const CommandRecorder&) = delete;
  CommandRecorder& operator=(const CommandRecorder&) = delete;

  void Run(const Recording& recording);
  void Run(const Dispatch& dispatch);
  // Offsets and bytes are multiples of 4 (bytes is rounded up inside the allocations).
  Status CopyBuffer(const Buffer& source, uint64_t source_offset, const Buffer& destination, uint64_t destination_offset,
                    uint64_t bytes);
  // Once; the recorder is spent afterwards. Errors of the commands themselves arrive as Context::status().
  Status Submit();

 private:
  void Encode(WGPUComputePassEncoder pass, const Dispatch& dispatch);
  WGPUComputePassEncoder SharedPass();
  void EndSharedPass();

  Context& context_;
  std::string label_;
  Handle<WGPUCommandEncoder, &wgpuCommandEncoderRelease> encoder_;
  Handle<WGPUComputePassEncoder, &wgpuComputePassEncoderRelease> shared_pass_;  // open, if any
#if GEMMA4_PROFILE
  std::unique_ptr<Timing> timing_;  // null where the adapter has no timestamps
#endif
};

}  // namespace gemma4::gpu
