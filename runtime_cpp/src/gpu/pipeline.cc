#include "gpu/pipeline.h"

#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "gpu/context_state.h"
#include "gpu/convert.h"
#include "kernels.h"

namespace gemma4::gpu {
namespace {

using kernels::BindingKind;
using kernels::Kernel;

WGPUBufferBindingType ToType(BindingKind kind) {
  switch (kind) {
    case BindingKind::kReadOnlyStorage: return WGPUBufferBindingType_ReadOnlyStorage;
    case BindingKind::kStorage: return WGPUBufferBindingType_Storage;
    case BindingKind::kUniform: return WGPUBufferBindingType_Uniform;
  }
  return WGPUBufferBindingType_Undefined;
}

Status TooSmall(const Kernel& kernel, std::string_view what, uint64_t needed, uint64_t allowed) {
  return LimitExceeded(Text("kernel ", kernel.name, " needs ", needed, " ", what, ", the device allows ", allowed));
}

}  // namespace

// One Build call: counts the pipelines still being made and remembers the first failure.
struct PipelineCache::Batch {
  size_t pending = 0;
  Status first;
  StatusCallback done;

  void Finished(Status status) {
    if (first.ok()) first = std::move(status);
    if (--pending == 0) std::exchange(done, nullptr)(std::move(first));
  }
};

Status CheckKernel(const Kernel& kernel, const Limits& limits) {
  if ((kernel.features & kernels::kNeedsSubgroups) != 0 && limits.subgroup_lanes < 2) {
    return Status(Code::kUnsupported, Text("kernel ", kernel.name, " needs subgroups, which the device does not have"));
  }
  if ((kernel.features & kernels::kNeedsShaderF16) != 0 && !limits.shader_f16) {
    return Status(Code::kUnsupported, Text("kernel ", kernel.name, " needs shader-f16, which the device does not have"));
  }
  if ((kernel.features & kernels::kNeedsPackedDot) != 0 && !limits.packed_dot) {
    return Status(Code::kUnsupported, Text("kernel ", kernel.name, " needs packed_4x8_integer_dot_product, which this ",
                                           "browser's WGSL does not have"));
  }
  if ((kernel.features & kernels::kNeedsBufferView) != 0 && !limits.buffer_view) {
    return Status(Code::kUnsupported, Text("kernel ", kernel.name, " needs buffer_view, which this browser's WGSL does not have"));
  }
  if ((kernel.features & kernels::kNeedsMatrixUnit) != 0 && !limits.matrix_unit) {
    return Status(Code::kUnsupported, Text("kernel ", kernel.name, " needs chromium-experimental-subgroup-matrix and subgroups of ",
                                           "32 lanes, which the device does not have"));
  }
  uint32_t storage = 0;
  for (uint32_t i = 0; i < kernel.binding_count; ++i) storage += kernel.bindings[i] != BindingKind::kUniform ? 1 : 0;
  const uint64_t invocations = uint64_t{kernel.workgroup[0]} * kernel.workgroup[1] * kernel.workgroup[2];
  if (storage > limits.max_storage_buffers_per_stage) {
    return TooSmall(kernel, "storage buffers", storage, limits.max_storage_buffers_per_stage);
  }
  if (invocations > limits.max_invocations_per_workgroup) {
    return TooSmall(kernel, "invocations a workgroup", invocations, limits.max_invocations_per_workgroup);
  }
  const uint32_t allowed[] = {limits.max_workgroup_size_x, limits.max_workgroup_size_y, limits.max_workgroup_size_z};
  for (int axis = 0; axis < 3; ++axis) {
    if (kernel.workgroup[axis] > allowed[axis]) {
      return TooSmall(kernel, "invocations along one axis", kernel.workgroup[axis], allowed[axis]);
    }
  }
  if (kernel.workgroup_bytes > limits.max_workgroup_storage_bytes) {
    return TooSmall(kernel, "bytes of workgroup memory", kernel.workgroup_bytes, limits.max_workgroup_storage_bytes);
  }
  return {};
}

void PipelineCache::Build(std::span<const Kernel* const> kernels, StatusCallback done) {
  std::vector<const Kernel*> missing;
  for (const Kernel* kernel : kernels) {
    auto [entry, fresh] = pipelines_.try_emplace(kernel->name);
    if (!fresh) continue;
    entry->second = std::make_unique<Pipeline>();
    entry->second->kernel_ = kernel;
    missing.push_back(kernel);
  }
  auto batch = std::make_shared<Batch>();
  batch->done = [this, alive = alive_, done = std::move(done)](Status status) {
    if (!*alive) return;
    if (!status.ok()) std::erase_if(pipelines_, [](const auto& entry) { return !entry.second->pipeline_; });
    done(std::move(status));
  };
  batch->pending = missing.size() + 1;  // one for the settling below
  for (const Kernel* kernel : missing) {
    if (Status status = CheckKernel(*kernel, context_.limits()); !status.ok()) {
      batch->Finished(std::move(status));
    } else {
      BuildOne(*pipelines_[kernel->name], batch);
    }
  }
  context_.Settle([batch](Status status) { batch->Finished(std::move(status)); });
}

void PipelineCache::BuildOne(Pipeline& pipeline, std::shared_ptr<Batch> batch) {
  struct Closure {
    std::shared_ptr<bool> alive;
    std::shared_ptr<Batch> batch;
    Pipeline* pipeline;  // valid while alive
    ObjectCounter* counter;
  };
  const Kernel& kernel = pipeline.kernel();
  const WGPUDevice device = context_.device_.get();
  ObjectCounter* counter = context_.counter_;
  const WGPUStringView label = ToView(kernel.name);

  std::vector<WGPUBindGroupLayoutEntry> entries(kernel.binding_count);
  for (uint32_t i = 0; i < kernel.binding_count; ++i) {
    entries[i] = {};
    entries[i].binding = i;
    entries[i].visibility = WGPUShaderStage_Compute;
    entries[i].buffer.type = ToType(kernel.bindings[i]);
  }
  WGPUBindGroupLayoutDescriptor group = {};
  group.label = label;
  group.entryCount = entries.size();
  group.entries = entries.data();
  pipeline.layout_ = {wgpuDeviceCreateBindGroupLayout(device, &group), counter};

  const WGPUBindGroupLayout groups[] = {pipeline.layout_.get()};
  WGPUPipelineLayoutDescriptor layout = {};
  layout.label = label;
  layout.bindGroupLayoutCount = 1;
  layout.bindGroupLayouts = groups;
  const Handle<WGPUPipelineLayout, &wgpuPipelineLayoutRelease> pipeline_layout(
      wgpuDeviceCreatePipelineLayout(device, &layout), counter);

  WGPUShaderSourceWGSL source = {};
  source.chain.sType = WGPUSType_ShaderSourceWGSL;
  source.code = ToView(kernel.wgsl);
  WGPUShaderModuleDescriptor module = {};
  module.label = label;
  module.nextInChain = &source.chain;
  const Handle<WGPUShaderModule, &wgpuShaderModuleRelease> shader(wgpuDeviceCreateShaderModule(device, &module), counter);

  WGPUComputePipelineDescriptor descriptor = {};
  descriptor.label = label;
  descriptor.layout = pipeline_layout.get();
  descriptor.compute.module = shader.get();
  descriptor.compute.entryPoint = ToView("main");
  WGPUCreateComputePipelineAsyncCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{alive_, std::move(batch), &pipeline, counter});
  info.callback = [](WGPUCreatePipelineAsyncStatus status, WGPUComputePipeline raw, WGPUStringView message, void* data,
                     void*) {
    Closure closure = Disarm<Closure>(data);
    if (!*closure.alive) {
      if (raw != nullptr) wgpuComputePipelineRelease(raw);
      return closure.batch->Finished(Status(Code::kCancelled, "the pipelines are no longer wanted"));
    }
    const Kernel& kernel = closure.pipeline->kernel();
    if (status != WGPUCreatePipelineAsyncStatus_Success || raw == nullptr) {
      return closure.batch->Finished({Code::kGpuError, Text("kernel ", kernel.name, " does not compile here: ", FromView(message))});
    }
    closure.pipeline->pipeline_ = {raw, closure.counter};
    closure.batch->Finished({});
  };
  wgpuDeviceCreateComputePipelineAsync(device, &descriptor, info);
}

Result<const Pipeline*> PipelineCache::Find(const Kernel& kernel) const {
  const auto found = pipelines_.find(kernel.name);
  if (found == pipelines_.end() || !found->second->pipeline_) {
    return Internal(Text("kernel ", kernel.name, " was used before its pipeline was built"));
  }
  return static_cast<const Pipeline*>(found->second.get());
}

Result<BindGroup> Context::CreateBindGroup(std::string_view label, const Pipeline& pipeline,
                                           std::span<const Binding> bindings) {
  const Kernel& kernel = pipeline.kernel();
  if (bindings.size() != kernel.binding_count) {
    return Internal(Text("kernel ", kernel.name, " has ", kernel.binding_count, " bindings, ", bindings.size(), " were given"));
  }
  std::vector<WGPUBindGroupEntry> entries(bindings.size());
  for (size_t i = 0; i < bindings.size(); ++i) {
    const Binding& binding = bindings[i];
    if (binding.buffer == nullptr || !*binding.buffer) {
      return Internal(Text("kernel ", kernel.name, ": binding ", i, " has no buffer"));
    }
    const Buffer& buffer = *binding.buffer;
    const bool uniform = kernel.bindings[i] == BindingKind::kUniform;
    const uint64_t alignment = uniform ? limits_.uniform_offset_alignment : limits_.storage_offset_alignment;
    const uint64_t limit = uniform ? limits_.max_uniform_binding_bytes : limits_.max_storage_binding_bytes;
    if (uniform != (buffer.usage() == BufferUsage::kUniform) || binding.offset % alignment != 0 ||
        binding.offset >= buffer.allocated_bytes() || binding.bytes > buffer.allocated_bytes() - binding.offset) {
      return Internal(Text("kernel ", kernel.name, ": binding ", i, " (", buffer.label(), ", offset ", binding.offset,
                           ", ", binding.bytes, " bytes) does not fit the buffer"));
    }
    const uint64_t bytes = binding.bytes == 0 ? buffer.allocated_bytes() - binding.offset : binding.bytes;
    if (bytes > limit) {
      return LimitExceeded(Text("kernel ", kernel.name, ": binding ", buffer.label(), " needs ", bytes,
                                " bytes, the adapter binds at most ", limit));
    }
    entries[i] = {};
    entries[i].binding = static_cast<uint32_t>(i);
    entries[i].buffer = buffer.raw();
    entries[i].offset = binding.offset;
    entries[i].size = bytes;
  }
  WGPUBindGroupDescriptor descriptor = {};
  descriptor.label = ToView(label);
  descriptor.layout = pipeline.layout_.get();
  descriptor.entryCount = entries.size();
  descriptor.entries = entries.data();
  BindGroup group;
  group.handle_ = {wgpuDeviceCreateBindGroup(device_.get(), &descriptor), counter_};
  return group;
}

}  // namespace gemma4::gpu
