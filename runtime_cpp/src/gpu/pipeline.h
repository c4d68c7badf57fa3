// Compute pipelines and bind groups. PipelineCache owns one pipeline a kernel, built asynchronously from the kernel's
// own binding list (explicit layout, so a binding that the shader ignores is still bound). Never patches shader text.
#pragma once

#include <webgpu/webgpu.h>

#include <map>
#include <memory>
#include <span>
#include <string_view>

#include "base/result.h"
#include "gpu/context.h"
#include "gpu/handle.h"

namespace gemma4::kernels {
struct Kernel;  // generated, "kernels.h"
}

namespace gemma4::gpu {

class Pipeline {
 public:
  const kernels::Kernel& kernel() const { return *kernel_; }

 private:
  friend class Context;
  friend class CommandRecorder;
  friend class PipelineCache;
  const kernels::Kernel* kernel_ = nullptr;
  Handle<WGPUBindGroupLayout, &wgpuBindGroupLayoutRelease> layout_;
  Handle<WGPUComputePipeline, &wgpuComputePipelineRelease> pipeline_;
};

class BindGroup {
 public:
  BindGroup() = default;
  explicit operator bool() const { return static_cast<bool>(handle_); }

 private:
  friend class Context;
  friend class CommandRecorder;
  Handle<WGPUBindGroup, &wgpuBindGroupRelease> handle_;
};

// Whether a device with these limits and features can run the kernel; the error says what is missing.
Status CheckKernel(const kernels::Kernel& kernel, const Limits& limits);

class PipelineCache {
 public:
  explicit PipelineCache(Context& context) : context_(context), alive_(std::make_shared<bool>(true)) {}
  ~PipelineCache() { *alive_ = false; }
  PipelineCache(const PipelineCache&) = delete;
  PipelineCache& operator=(const PipelineCache&) = delete;

  // Builds what is missing and calls done once, with the first failure (naming the kernel) if any. Kernels may repeat.
  // Not called when the cache is destroyed first.
  void Build(std::span<const kernels::Kernel* const> kernels, StatusCallback done);
  // An error when Build did not cover the kernel.
  Result<const Pipeline*> Find(const kernels::Kernel& kernel) const;

 private:
  struct Batch;
  void BuildOne(Pipeline& pipeline, std::shared_ptr<Batch> batch);

  Context& context_;
  std::map<std::string_view, std::unique_ptr<Pipeline>> pipelines_;  // by kernel name; some still being built
  std::shared_ptr<bool> alive_;
};

}  // namespace gemma4::gpu
