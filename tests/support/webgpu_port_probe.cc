// The machinery of the probe: opening and closing a bench, and the steps that several cases take.
#include "webgpu_port_probe.h"

#include <emscripten/em_js.h>

#include <cstring>

// clang-format off
EM_JS(void, probe_report, (const char* name, int passed, const char* detail), {
  Module['onReport'](UTF8ToString(name), !!passed, UTF8ToString(detail));
});
// clang-format on

namespace probe {

WGPUStringView View(const char* text) { return {text, WGPU_STRLEN}; }

std::string Text(WGPUStringView view) {
  if (view.data == nullptr) return "";
  return std::string(view.data, view.length == WGPU_STRLEN ? std::strlen(view.data) : view.length);
}

void Report(const char* name, bool passed, const std::string& detail) { probe_report(name, passed, detail.c_str()); }

namespace {

Bench* Of(void* userdata) { return static_cast<Bench*>(userdata); }

void OnLost(WGPUDevice const* device, WGPUDeviceLostReason reason, WGPUStringView, void* userdata, void*) {
  Bench* bench = Of(userdata);
  ++bench->lost_count;
  bench->lost_reason = reason;
  bench->lost_had_device = device != nullptr && *device != nullptr;
  if (bench->on_lost != nullptr) bench->on_lost(bench);
}

void OnUncaptured(WGPUDevice const*, WGPUErrorType type, WGPUStringView message, void* userdata, void*) {
  Bench* bench = Of(userdata);
  ++bench->uncaptured_count;
  bench->uncaptured_type = type;
  bench->uncaptured_message = Text(message);
}

void OnDevice(WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message, void* userdata, void*) {
  Bench* bench = Of(userdata);
  bench->device_status = status;
  bench->device_message = Text(message);
  if (status == WGPURequestDeviceStatus_Success) {
    bench->device = device;
    bench->queue = wgpuDeviceGetQueue(device);
  } else if (!bench->refusal_expected) {
    return Close(bench, false, "no device: " + bench->device_message);
  }
  bench->start(bench);
}

void OnAdapter(WGPURequestAdapterStatus status, WGPUAdapter adapter, WGPUStringView message, void* userdata, void*) {
  Bench* bench = Of(userdata);
  if (status != WGPURequestAdapterStatus_Success) {
    const char* kind = status == WGPURequestAdapterStatus_Unavailable ? "unavailable: " : "error: ";
    return Close(bench, false, kind + Text(message));
  }
  bench->adapter = adapter;
  WGPUDeviceDescriptor descriptor = {};
  descriptor.label = View("probe device");
  descriptor.requiredFeatureCount = bench->features.size();
  descriptor.requiredFeatures = bench->features.data();
  descriptor.requiredLimits = &bench->limits;
  descriptor.defaultQueue.label = View("probe queue");
  descriptor.deviceLostCallbackInfo.mode = WGPUCallbackMode_AllowSpontaneous;
  descriptor.deviceLostCallbackInfo.callback = OnLost;
  descriptor.deviceLostCallbackInfo.userdata1 = bench;
  descriptor.uncapturedErrorCallbackInfo.callback = OnUncaptured;
  descriptor.uncapturedErrorCallbackInfo.userdata1 = bench;
  wgpuAdapterRequestDevice(adapter, &descriptor,
                           {nullptr, WGPUCallbackMode_AllowSpontaneous, OnDevice, bench, nullptr});
}

}  // namespace

void Open(Bench* bench) {
  bench->instance = wgpuCreateInstance(nullptr);
  WGPURequestAdapterOptions options = {};
  options.powerPreference = WGPUPowerPreference_HighPerformance;
  options.featureLevel = WGPUFeatureLevel_Core;
  wgpuInstanceRequestAdapter(bench->instance, &options,
                             {nullptr, WGPUCallbackMode_AllowSpontaneous, OnAdapter, bench, nullptr});
}

void Close(Bench* bench, bool passed, const std::string& detail) {
  Report(bench->name, passed, detail);
  if (bench->pipeline != nullptr) wgpuComputePipelineRelease(bench->pipeline);
  if (bench->queries != nullptr) wgpuQuerySetRelease(bench->queries);
  for (WGPUBuffer buffer : {bench->buffer, bench->readback}) {
    if (buffer == nullptr) continue;
    wgpuBufferDestroy(buffer);
    wgpuBufferRelease(buffer);
  }
  if (bench->queue != nullptr) wgpuQueueRelease(bench->queue);
  if (bench->adapter != nullptr) wgpuAdapterRelease(bench->adapter);
  wgpuInstanceRelease(bench->instance);
  // A refused device may still owe its loss callback, which needs the bench: that one stays.
  if (bench->device == nullptr) return;
  const bool lost_already = bench->lost_count > 0;
  bench->on_lost = [](Bench* lost) { delete lost; };
  wgpuDeviceRelease(bench->device);
  if (lost_already) delete bench;
}

WGPUBuffer MakeBuffer(Bench* bench, const char* label, uint64_t bytes, WGPUBufferUsage usage, bool mapped) {
  WGPUBufferDescriptor descriptor = {};
  descriptor.label = View(label);
  descriptor.size = bytes;
  descriptor.usage = usage;
  descriptor.mappedAtCreation = mapped;
  return wgpuDeviceCreateBuffer(bench->device, &descriptor);
}

WGPUShaderModule MakeModule(Bench* bench, const char* code) {
  WGPUShaderSourceWGSL source = {};
  source.chain.sType = WGPUSType_ShaderSourceWGSL;
  source.code = {code, std::strlen(code)};
  WGPUShaderModuleDescriptor descriptor = {};
  descriptor.label = View("probe module");
  descriptor.nextInChain = &source.chain;
  return wgpuDeviceCreateShaderModule(bench->device, &descriptor);
}

void MakePipeline(Bench* bench, WGPUShaderModule module, WGPUPipelineLayout layout, void (*done)(Bench*)) {
  WGPUComputePipelineDescriptor descriptor = {};
  descriptor.label = View("probe pipeline");
  descriptor.layout = layout;
  descriptor.compute.module = module;
  descriptor.compute.entryPoint = {"main, cut by its length", 4};
  WGPUCreateComputePipelineAsyncCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.callback = [](WGPUCreatePipelineAsyncStatus status, WGPUComputePipeline pipeline, WGPUStringView message,
                     void* userdata1, void* userdata2) {
    Bench* owner = Of(userdata1);
    owner->pipeline = pipeline;
    owner->step = static_cast<int>(status);
    owner->log = Text(message);
    reinterpret_cast<void (*)(Bench*)>(userdata2)(owner);
  };
  info.userdata1 = bench;
  info.userdata2 = reinterpret_cast<void*>(done);
  wgpuDeviceCreateComputePipelineAsync(bench->device, &descriptor, info);
}

void MapForReading(Bench* bench, WGPUBuffer buffer, size_t bytes, void (*done)(Bench*, bool)) {
  WGPUBufferMapCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.callback = [](WGPUMapAsyncStatus status, WGPUStringView message, void* userdata1, void* userdata2) {
    Bench* owner = Of(userdata1);
    owner->step = static_cast<int>(status);
    owner->log = Text(message);
    reinterpret_cast<void (*)(Bench*, bool)>(userdata2)(owner, status == WGPUMapAsyncStatus_Success);
  };
  info.userdata1 = bench;
  info.userdata2 = reinterpret_cast<void*>(done);
  wgpuBufferMapAsync(buffer, WGPUMapMode_Read, 0, bytes, info);
}

void CopyAndSubmit(Bench* bench, WGPUBuffer source, WGPUBuffer destination, uint64_t bytes) {
  WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(bench->device, nullptr);
  wgpuCommandEncoderCopyBufferToBuffer(encoder, source, 0, destination, 0, bytes);
  WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
  wgpuQueueSubmit(bench->queue, 1, &commands);
  wgpuCommandBufferRelease(commands);
  wgpuCommandEncoderRelease(encoder);
}

}  // namespace probe
