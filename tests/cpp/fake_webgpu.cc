#include "fake_webgpu.h"

#include <webgpu/webgpu.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>

#include "check.h"

using gemma4::Text;
using gemma4::test::Fake;
using gemma4::test::FakeBuffer;
using gemma4::test::FakeDispatch;

namespace {

// The fake's state is process-wide, as WebGPU's own entry points are.
std::deque<std::function<void()>> pending;
std::vector<std::vector<std::string>> scopes;  // open error scopes with the errors they caught

void Invalid(const std::string& what) { Fake().validation_errors.push_back(what); }
WGPUStringView View(const std::string& text) { return {text.data(), text.size()}; }
std::string From(WGPUStringView view) { return view.data == nullptr ? std::string() : std::string(view.data, view.length); }

// Every handle counts as one live object until it is released.
template <typename T>
T* Make() {
  ++Fake().live_objects;
  return new T();
}
template <typename T>
void Drop(T* object) {
  --Fake().live_objects;
  delete object;
}

WGPUFuture Later(std::function<void()> callback) {
  pending.push_back(std::move(callback));
  return {};
}

}  // namespace

struct WGPUInstanceImpl {};
struct WGPUAdapterImpl {};
struct WGPUQueueImpl {};
struct WGPUDeviceImpl {
  WGPUDeviceLostCallbackInfo lost = {};
};
struct WGPUBufferImpl {
  std::shared_ptr<FakeBuffer> buffer;
};
struct WGPUShaderModuleImpl {};
struct WGPUBindGroupLayoutImpl {
  std::vector<WGPUBufferBindingType> types;
};
struct WGPUPipelineLayoutImpl {};
struct WGPUComputePipelineImpl {
  std::string label;
};
struct WGPUBindGroupImpl {
  std::vector<std::shared_ptr<FakeBuffer>> buffers;
  std::vector<uint64_t> offsets;
};
struct WGPUCommandBufferImpl {
  std::vector<std::function<void()>> commands;
};
struct WGPUCommandEncoderImpl {
  std::vector<std::function<void()>> commands;
};
struct WGPUComputePassEncoderImpl {
  WGPUCommandEncoder encoder = nullptr;
  FakeDispatch dispatch;
};

namespace gemma4::test {

uint64_t FakeGpu::LiveBytes() const {
  uint64_t bytes = 0;
  for (const auto& buffer : buffers) bytes += buffer->destroyed ? 0 : buffer->bytes.size();
  return bytes;
}

std::shared_ptr<FakeBuffer> FakeGpu::Find(const std::string& label) const {
  for (auto buffer = buffers.rbegin(); buffer != buffers.rend(); ++buffer) {
    if ((*buffer)->label == label && !(*buffer)->destroyed) return *buffer;
  }
  return nullptr;
}

FakeGpu& Fake() {
  static FakeGpu fake;
  return fake;
}

void ResetFake() {
  Fake() = FakeGpu();
  pending.clear();
  scopes.clear();
}

void Pump() {
  while (!pending.empty()) {
    const auto callback = std::move(pending.front());
    pending.pop_front();
    callback();
  }
}

std::unique_ptr<gpu::Context> OpenFake(gpu::ObjectCounter& counter) {
  std::unique_ptr<gpu::Context> context = std::move(gpu::Context::Create(counter)).value();
  Status opened = Internal("the fake device never answered");
  context->Open([&](Status status) { opened = std::move(status); });
  Pump();
  CHECK_OK(opened);
  return context;
}

}  // namespace gemma4::test

extern "C" {

WGPUInstance wgpuCreateInstance(const WGPUInstanceDescriptor*) { return Make<WGPUInstanceImpl>(); }
void wgpuInstanceRelease(WGPUInstance instance) { Drop(instance); }

WGPUBool wgpuInstanceHasWGSLLanguageFeature(WGPUInstance, WGPUWGSLLanguageFeatureName) { return 0; }

WGPUFuture wgpuInstanceRequestAdapter(WGPUInstance, const WGPURequestAdapterOptions*, WGPURequestAdapterCallbackInfo info) {
  return Later([info] {
    info.callback(WGPURequestAdapterStatus_Success, Make<WGPUAdapterImpl>(), {}, info.userdata1, info.userdata2);
  });
}

static void FillLimits(WGPULimits* limits) {
  limits->maxBufferSize = Fake().max_buffer_bytes;
  limits->maxStorageBufferBindingSize = Fake().max_binding_bytes;
  limits->maxUniformBufferBindingSize = 65536;
  limits->maxStorageBuffersPerShaderStage = 8;
  limits->maxComputeWorkgroupSizeX = 256;
  limits->maxComputeWorkgroupSizeY = 256;
  limits->maxComputeWorkgroupSizeZ = 64;
  limits->maxComputeInvocationsPerWorkgroup = 256;
  limits->maxComputeWorkgroupStorageSize = 16384;
  limits->maxComputeWorkgroupsPerDimension = 65535;
  limits->minUniformBufferOffsetAlignment = 256;
  limits->minStorageBufferOffsetAlignment = 256;
}

WGPUStatus wgpuAdapterGetLimits(WGPUAdapter, WGPULimits* limits) {
  FillLimits(limits);
  return WGPUStatus_Success;
}
WGPUStatus wgpuAdapterGetInfo(WGPUAdapter, WGPUAdapterInfo* info) {
  *info = {};
  info->adapterType = Fake().software ? WGPUAdapterType_CPU : WGPUAdapterType_DiscreteGPU;
  return WGPUStatus_Success;
}
void wgpuAdapterInfoFreeMembers(WGPUAdapterInfo) {}
WGPUBool wgpuAdapterHasFeature(WGPUAdapter, WGPUFeatureName) { return 0; }
void wgpuAdapterRelease(WGPUAdapter adapter) { Drop(adapter); }

WGPUFuture wgpuAdapterRequestDevice(WGPUAdapter, const WGPUDeviceDescriptor* descriptor, WGPURequestDeviceCallbackInfo info) {
  const WGPUDeviceLostCallbackInfo lost = descriptor->deviceLostCallbackInfo;
  return Later([info, lost] {
    auto* device = Make<WGPUDeviceImpl>();
    device->lost = lost;
    info.callback(WGPURequestDeviceStatus_Success, device, {}, info.userdata1, info.userdata2);
  });
}

WGPUStatus wgpuDeviceGetLimits(WGPUDevice, WGPULimits* limits) {
  FillLimits(limits);
  return WGPUStatus_Success;
}
WGPUBool wgpuDeviceHasFeature(WGPUDevice, WGPUFeatureName) { return 0; }
WGPUQueue wgpuDeviceGetQueue(WGPUDevice) { return Make<WGPUQueueImpl>(); }

void wgpuDeviceDestroy(WGPUDevice device) {
  const WGPUDeviceLostCallbackInfo lost = device->lost;
  Later([lost] { lost.callback(nullptr, WGPUDeviceLostReason_Destroyed, {}, lost.userdata1, lost.userdata2); });
}
void wgpuDeviceRelease(WGPUDevice device) { Drop(device); }

WGPUBuffer wgpuDeviceCreateBuffer(WGPUDevice, const WGPUBufferDescriptor* descriptor) {
  auto* raw = Make<WGPUBufferImpl>();
  raw->buffer = std::make_shared<FakeBuffer>();
  raw->buffer->label = From(descriptor->label);
  raw->buffer->usage = descriptor->usage;
  if (descriptor->size % 4 != 0) Invalid(Text("buffer ", raw->buffer->label, " has ", descriptor->size, " bytes"));
  const bool fails = Fake().fail_buffer == 0;
  if (Fake().fail_buffer >= 0) --Fake().fail_buffer;
  if (fails) {
    if (scopes.empty()) {
      Invalid("out of memory outside an error scope");
    } else {
      scopes.back().push_back("no memory left");
    }
    raw->buffer->destroyed = true;  // an error buffer: it exists and has no memory
  } else {
    raw->buffer->bytes.assign(static_cast<size_t>(descriptor->size), 0);
  }
  Fake().buffers.push_back(raw->buffer);
  return raw;
}
void wgpuBufferDestroy(WGPUBuffer raw) {
  raw->buffer->destroyed = true;
  raw->buffer->bytes.clear();
}
void wgpuBufferRelease(WGPUBuffer raw) { Drop(raw); }

WGPUFuture wgpuBufferMapAsync(WGPUBuffer, WGPUMapMode, size_t, size_t, WGPUBufferMapCallbackInfo info) {
  return Later([info] { info.callback(WGPUMapAsyncStatus_Success, {}, info.userdata1, info.userdata2); });
}
const void* wgpuBufferGetConstMappedRange(WGPUBuffer raw, size_t offset, size_t) { return raw->buffer->bytes.data() + offset; }
void wgpuBufferUnmap(WGPUBuffer) {}

WGPUShaderModule wgpuDeviceCreateShaderModule(WGPUDevice, const WGPUShaderModuleDescriptor*) {
  return Make<WGPUShaderModuleImpl>();
}
void wgpuShaderModuleRelease(WGPUShaderModule module) { Drop(module); }

WGPUBindGroupLayout wgpuDeviceCreateBindGroupLayout(WGPUDevice, const WGPUBindGroupLayoutDescriptor* descriptor) {
  auto* layout = Make<WGPUBindGroupLayoutImpl>();
  for (size_t i = 0; i < descriptor->entryCount; ++i) layout->types.push_back(descriptor->entries[i].buffer.type);
  return layout;
}
void wgpuBindGroupLayoutRelease(WGPUBindGroupLayout layout) { Drop(layout); }
WGPUPipelineLayout wgpuDeviceCreatePipelineLayout(WGPUDevice, const WGPUPipelineLayoutDescriptor*) {
  return Make<WGPUPipelineLayoutImpl>();
}
void wgpuPipelineLayoutRelease(WGPUPipelineLayout layout) { Drop(layout); }

WGPUFuture wgpuDeviceCreateComputePipelineAsync(WGPUDevice, const WGPUComputePipelineDescriptor* descriptor,
                                                WGPUCreateComputePipelineAsyncCallbackInfo info) {
  const std::string label = From(descriptor->label);
  return Later([info, label] {
    if (label == Fake().fail_pipeline) {
      static const std::string reason = "the shader is refused";
      info.callback(WGPUCreatePipelineAsyncStatus_ValidationError, nullptr, View(reason), info.userdata1, info.userdata2);
      return;
    }
    auto* pipeline = Make<WGPUComputePipelineImpl>();
    pipeline->label = label;
    info.callback(WGPUCreatePipelineAsyncStatus_Success, pipeline, {}, info.userdata1, info.userdata2);
  });
}
void wgpuComputePipelineRelease(WGPUComputePipeline pipeline) { Drop(pipeline); }

WGPUBindGroup wgpuDeviceCreateBindGroup(WGPUDevice, const WGPUBindGroupDescriptor* descriptor) {
  auto* group = Make<WGPUBindGroupImpl>();
  const std::string label = From(descriptor->label);
  const auto& types = descriptor->layout->types;
  if (types.size() != descriptor->entryCount) Invalid(Text("bind group of ", label, " has a wrong number of entries"));
  for (size_t i = 0; i < descriptor->entryCount; ++i) {
    const WGPUBindGroupEntry& entry = descriptor->entries[i];
    const std::shared_ptr<FakeBuffer>& buffer = entry.buffer->buffer;
    if (entry.offset % 256 != 0 || entry.size == 0 || entry.offset + entry.size > buffer->bytes.size()) {
      Invalid(Text(label, ": binding ", i, " (", buffer->label, ") is out of range"));
    }
    if (types[i] != WGPUBufferBindingType_Uniform && entry.size > Fake().max_binding_bytes) {
      Invalid(Text(label, ": binding ", i, " (", buffer->label, ") has ", entry.size, " bytes"));
    }
    // Writable bindings alias nothing else of the group.
    for (size_t j = 0; j < i; ++j) {
      const bool writes = types[i] == WGPUBufferBindingType_Storage || types[j] == WGPUBufferBindingType_Storage;
      if (writes && group->buffers[j] == buffer) Invalid(Text(label, ": bindings ", j, " and ", i, " alias"));
    }
    group->buffers.push_back(buffer);
    group->offsets.push_back(entry.offset);
  }
  return group;
}
void wgpuBindGroupRelease(WGPUBindGroup group) { Drop(group); }

WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice, const WGPUCommandEncoderDescriptor*) {
  return Make<WGPUCommandEncoderImpl>();
}
WGPUComputePassEncoder wgpuCommandEncoderBeginComputePass(WGPUCommandEncoder encoder, const WGPUComputePassDescriptor*) {
  auto* pass = Make<WGPUComputePassEncoderImpl>();
  pass->encoder = encoder;
  pass->dispatch.pass = ++Fake().passes;
  if (++Fake().open_passes > 1) Invalid("a compute pass is begun inside another one");
  return pass;
}
void wgpuComputePassEncoderSetPipeline(WGPUComputePassEncoder pass, WGPUComputePipeline pipeline) {
  pass->dispatch.kernel = pipeline->label;
}
void wgpuComputePassEncoderSetBindGroup(WGPUComputePassEncoder pass, uint32_t, WGPUBindGroup group, size_t, const uint32_t*) {
  pass->dispatch.buffers = group->buffers;
  pass->dispatch.offsets = group->offsets;
}
void wgpuComputePassEncoderDispatchWorkgroups(WGPUComputePassEncoder pass, uint32_t x, uint32_t y, uint32_t z) {
  if (x == 0 || y == 0 || z == 0 || std::max({x, y, z}) > 65535) Invalid(pass->dispatch.kernel + " has a bad grid");
  pass->dispatch.x = x;
  pass->dispatch.y = y;
  pass->dispatch.z = z;
  pass->encoder->commands.push_back([dispatch = pass->dispatch] {
    for (const auto& buffer : dispatch.buffers) {
      if (buffer->destroyed) Invalid(Text(dispatch.kernel, " uses destroyed buffer ", buffer->label));
    }
    Fake().dispatches.push_back(dispatch);
    if (Fake().on_dispatch) Fake().on_dispatch(dispatch);
  });
}
void wgpuComputePassEncoderEnd(WGPUComputePassEncoder) { --Fake().open_passes; }
void wgpuComputePassEncoderRelease(WGPUComputePassEncoder pass) { Drop(pass); }

void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder encoder, WGPUBuffer source, uint64_t source_offset,
                                          WGPUBuffer destination, uint64_t destination_offset, uint64_t size) {
  if (Fake().open_passes != 0) Invalid("a copy inside a compute pass");
  const auto from = source->buffer, to = destination->buffer;
  if (source_offset % 4 != 0 || destination_offset % 4 != 0 || size % 4 != 0 || source_offset + size > from->bytes.size() ||
      destination_offset + size > to->bytes.size()) {
    return Invalid(Text("copy from ", from->label, " to ", to->label, " is out of range"));
  }
  encoder->commands.push_back([=] {
    if (from->destroyed || to->destroyed) return Invalid("copy with a destroyed buffer");
    std::memcpy(to->bytes.data() + destination_offset, from->bytes.data() + source_offset, static_cast<size_t>(size));
  });
}
WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder encoder, const WGPUCommandBufferDescriptor*) {
  if (Fake().open_passes != 0) Invalid("an encoder is finished inside a compute pass");
  auto* commands = Make<WGPUCommandBufferImpl>();
  commands->commands = std::move(encoder->commands);
  return commands;
}
void wgpuCommandEncoderRelease(WGPUCommandEncoder encoder) { Drop(encoder); }
void wgpuCommandBufferRelease(WGPUCommandBuffer commands) { Drop(commands); }

void wgpuQueueWriteBuffer(WGPUQueue, WGPUBuffer raw, uint64_t offset, const void* data, size_t size) {
  FakeBuffer& buffer = *raw->buffer;
  if (offset % 4 != 0 || size % 4 != 0 || offset + size > buffer.bytes.size()) {
    return Invalid(Text("write of ", size, " bytes at ", offset, " of ", buffer.label, " (", buffer.bytes.size(), " bytes)"));
  }
  std::memcpy(buffer.bytes.data() + offset, data, size);
}
void wgpuQueueSubmit(WGPUQueue, size_t count, const WGPUCommandBuffer* buffers) {
  for (size_t i = 0; i < count; ++i) {
    for (const auto& command : buffers[i]->commands) command();
  }
}
WGPUFuture wgpuQueueOnSubmittedWorkDone(WGPUQueue, WGPUQueueWorkDoneCallbackInfo info) {
  return Later([info] {
    const auto status = Fake().fail_work ? WGPUQueueWorkDoneStatus_Error : WGPUQueueWorkDoneStatus_Success;
    info.callback(status, {}, info.userdata1, info.userdata2);
  });
}
void wgpuQueueRelease(WGPUQueue queue) { Drop(queue); }

void wgpuDevicePushErrorScope(WGPUDevice, WGPUErrorFilter) { scopes.emplace_back(); }
WGPUFuture wgpuDevicePopErrorScope(WGPUDevice, WGPUPopErrorScopeCallbackInfo info) {
  if (scopes.empty()) {
    Invalid("an error scope is popped that was not pushed");
    return {};
  }
  const std::vector<std::string> caught = std::move(scopes.back());
  scopes.pop_back();
  return Later([info, caught] {
    const WGPUErrorType type = caught.empty() ? WGPUErrorType_NoError : WGPUErrorType_OutOfMemory;
    info.callback(WGPUPopErrorScopeStatus_Success, type, caught.empty() ? WGPUStringView{} : View(caught.front()),
                  info.userdata1, info.userdata2);
  });
}

}  // extern "C"
