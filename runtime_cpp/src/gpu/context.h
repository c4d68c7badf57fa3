// The WebGPU device and its state. Owns instance, adapter, device and queue, and the first error that the device
// reported (uncaptured, out of memory, lost); makes buffers, pipelines' layouts and bind groups. Never blocks: whatever
// takes time ends in a callback, which WebGPU invokes from the event loop (AllowSpontaneous); an error found at once may
// arrive in the callback before the call returns.
// Errors of calls that WebGPU reports later are stored; a request asks status() or Settle() before it claims success.
#pragma once

#include <webgpu/webgpu.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "gpu/buffer.h"
#include "gpu/handle.h"

namespace gemma4::gpu {

class Pipeline;
class BindGroup;
class QueryPool;

using StatusCallback = std::function<void(Status)>;

// Limits and optional features of the device (what was granted, not what the adapter could do).
struct Limits {
  uint64_t max_buffer_bytes = 0;
  uint64_t max_storage_binding_bytes = 0;
  uint64_t max_uniform_binding_bytes = 0;
  uint32_t max_storage_buffers_per_stage = 0;
  uint32_t max_workgroup_size_x = 0;
  uint32_t max_workgroup_size_y = 0;
  uint32_t max_workgroup_size_z = 0;
  uint32_t max_invocations_per_workgroup = 0;
  uint32_t max_workgroup_storage_bytes = 0;
  uint32_t max_workgroups_per_dimension = 65535;
  uint32_t uniform_offset_alignment = 256;
  uint32_t storage_offset_alignment = 256;
  uint32_t subgroup_lanes = 1;  // the fewest that a subgroup of this adapter has; 1: it has no subgroups
  bool shader_f16 = false;
  bool packed_dot = false;   // WGSL has packed_4x8_integer_dot_product
  bool buffer_view = false;  // WGSL has buffer_view
  bool matrix_unit = false;  // chromium-experimental-subgroup-matrix, and every subgroup has 32 lanes
};

struct AdapterInfo {
  std::string vendor;
  std::string architecture;
  std::string device;
  std::string description;
  bool software = false;              // a CPU implementation: its timings say nothing about GPUs
  std::vector<std::string> features;  // WebGPU names of the features the device was granted
};

class Context {
 public:
  // `counter` outlives the Context and everything made by it.
  static Result<std::unique_ptr<Context>> Create(ObjectCounter& counter);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Requests adapter and device; once. Everything below needs a successful Open.
  void Open(StatusCallback done);

  const Limits& limits() const { return limits_; }
  const AdapterInfo& adapter() const { return adapter_info_; }
  bool timestamps() const { return timestamps_; }

  // Ok, or the first error that the device reported since the last ClearError. A lost device stays lost.
  Status status() const;
  bool lost() const;
  void ClearError();
  // Called once when the device is lost for any other reason than the Context's own end.
  void OnLost(std::function<void(std::string reason, std::string message)> listener);

  // Checks against limits at once (kLimitExceeded names the label and both numbers); an out-of-memory answer arrives
  // later as status(), naming the label and the bytes.
  Result<Buffer> CreateBuffer(std::string_view label, uint64_t bytes, BufferUsage usage);
  // `bytes` starts at a multiple of 4; a length that is no multiple of 4 is padded with zero bytes, which must still lie
  // inside the allocation.
  Status WriteBuffer(const Buffer& buffer, uint64_t offset, std::span<const uint8_t> bytes);
  // Bindings in the kernel's order (params last). Checks count, alignment, range, limits and usage.
  Result<BindGroup> CreateBindGroup(std::string_view label, const Pipeline& pipeline, std::span<const Binding> bindings);

  // Calls done when all work submitted so far has ended, with status(). Not called when the Context is destroyed first;
  // neither are Settle, Open and the reads.
  void WhenDone(StatusCallback done);
  // Likewise, when also what the work reports (error scopes, timestamps) has arrived.
  void Settle(StatusCallback done);

 private:
  friend class PipelineCache;
  friend class CommandRecorder;
  friend class Readback;
  friend class QueryPool;
  friend class Timing;
  struct State;

  explicit Context(ObjectCounter& counter);
  void RequestDevice(StatusCallback done);
  Status AdoptDevice(WGPUDevice device);
  void PushAllocationScope();
  void PopAllocationScope(std::string what);

  ObjectCounter* counter_;
  std::shared_ptr<State> state_;  // shared with callbacks in flight, which may outlive the Context
  Handle<WGPUInstance, &wgpuInstanceRelease> instance_;
  Handle<WGPUAdapter, &wgpuAdapterRelease> wgpu_adapter_;
  Handle<WGPUDevice, &wgpuDeviceRelease> device_;
  Handle<WGPUQueue, &wgpuQueueRelease> queue_;
  Limits limits_;
  AdapterInfo adapter_info_;
  uint32_t subgroup_lanes_ = 1;  // of the adapter, the fewest
  uint32_t widest_subgroup_ = 1;
  bool timestamps_ = false;
#if GEMMA4_PROFILE
  std::unique_ptr<QueryPool> queries_;

 public:
  QueryPool* queries() { return queries_.get(); }  // null where the adapter has no timestamps
#endif
};

}  // namespace gemma4::gpu
