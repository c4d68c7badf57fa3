// What a device creates and keeps: buffers, shader modules, layouts, bind groups, pipelines and query sets.
#include "imports.h"

#include <memory>

using webgpu_port::Text;
using webgpu_port::ToDouble;
using webgpu_port::ToText;

extern "C" {

WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice device, WGPUBufferDescriptor const* descriptor) {
  if (descriptor->nextInChain != nullptr) webgpu_port_abort("WGPUBufferDescriptor", "chained structs are not covered");
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_buffer(device, label.data, label.bytes, static_cast<uint32_t>(descriptor->usage),
                                   static_cast<double>(descriptor->size), descriptor->mappedAtCreation);
}

WGPUFuture wgpuBufferMapAsync(WGPUBuffer buffer, WGPUMapMode mode, size_t offset, size_t size,
                              WGPUBufferMapCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuBufferMapAsync");
  webgpu_port_map_buffer(buffer, static_cast<uint32_t>(mode), offset, size, info.callback, info.userdata1, info.userdata2);
  return webgpu_port::NextFuture();
}

WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice device, WGPUShaderModuleDescriptor const* descriptor) {
  const WGPUChainedStruct* source = descriptor->nextInChain;
  if (source == nullptr || source->sType != WGPUSType_ShaderSourceWGSL || source->next != nullptr) {
    webgpu_port_abort("wgpuDeviceCreateShaderModule", "a module is made of one WGPUShaderSourceWGSL");
  }
  const Text code = ToText(reinterpret_cast<const WGPUShaderSourceWGSL*>(source)->code);
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_shader_module(device, label.data, label.bytes, code.data, code.bytes);
}

WGPUBindGroupLayout wgpuDeviceCreateBindGroupLayout(WGPUDevice device, WGPUBindGroupLayoutDescriptor const* descriptor) {
  constexpr size_t kWords = 5;
  const size_t count = descriptor->entryCount;
  const auto flat = std::make_unique<double[]>(kWords * count);
  for (size_t i = 0; i < count; ++i) {
    const WGPUBindGroupLayoutEntry& entry = descriptor->entries[i];
    if (entry.buffer.type == WGPUBufferBindingType_BindingNotUsed || entry.nextInChain != nullptr ||
        entry.bindingArraySize > 1) {
      webgpu_port_abort("wgpuDeviceCreateBindGroupLayout", "only single buffers are covered");
    }
    double* words = flat.get() + kWords * i;
    words[0] = entry.binding;
    words[1] = static_cast<double>(entry.visibility);
    words[2] = entry.buffer.type;
    words[3] = entry.buffer.hasDynamicOffset;
    words[4] = static_cast<double>(entry.buffer.minBindingSize);
  }
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_bind_group_layout(device, label.data, label.bytes, flat.get(), count);
}

WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice device, WGPUBindGroupDescriptor const* descriptor) {
  constexpr size_t kWords = 4;
  const size_t count = descriptor->entryCount;
  const auto flat = std::make_unique<double[]>(kWords * count);
  for (size_t i = 0; i < count; ++i) {
    const WGPUBindGroupEntry& entry = descriptor->entries[i];
    if (entry.buffer == nullptr || entry.nextInChain != nullptr) {
      webgpu_port_abort("wgpuDeviceCreateBindGroup", "only buffers are covered");
    }
    double* words = flat.get() + kWords * i;
    words[0] = entry.binding;
    words[1] = reinterpret_cast<uintptr_t>(entry.buffer);
    words[2] = static_cast<double>(entry.offset);
    words[3] = ToDouble(entry.size);
  }
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_bind_group(device, label.data, label.bytes, descriptor->layout, flat.get(), count);
}

WGPUPipelineLayout wgpuDeviceCreatePipelineLayout(WGPUDevice device, WGPUPipelineLayoutDescriptor const* descriptor) {
  if (descriptor->nextInChain != nullptr || descriptor->immediateSize != 0) {
    webgpu_port_abort("wgpuDeviceCreatePipelineLayout", "immediates and chained structs are not covered");
  }
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_pipeline_layout(device, label.data, label.bytes, descriptor->bindGroupLayouts,
                                            descriptor->bindGroupLayoutCount);
}

WGPUFuture wgpuDeviceCreateComputePipelineAsync(WGPUDevice device, WGPUComputePipelineDescriptor const* descriptor,
                                                WGPUCreateComputePipelineAsyncCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuDeviceCreateComputePipelineAsync");
  const WGPUComputeState& compute = descriptor->compute;
  if (compute.constantCount != 0 || compute.nextInChain != nullptr || descriptor->nextInChain != nullptr) {
    webgpu_port_abort("wgpuDeviceCreateComputePipelineAsync", "constants and chained structs are not covered");
  }
  const Text label = ToText(descriptor->label);
  const Text entry_point = ToText(compute.entryPoint);
  webgpu_port_create_compute_pipeline(device, label.data, label.bytes, descriptor->layout, compute.module, entry_point.data,
                                      entry_point.bytes, info.callback, info.userdata1, info.userdata2);
  return webgpu_port::NextFuture();
}

WGPUQuerySet wgpuDeviceCreateQuerySet(WGPUDevice device, WGPUQuerySetDescriptor const* descriptor) {
  const Text label = ToText(descriptor->label);
  return webgpu_port_create_query_set(device, label.data, label.bytes, descriptor->type, descriptor->count);
}

}  // extern "C"
