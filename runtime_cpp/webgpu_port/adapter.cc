// Instance, adapter and device: their descriptors, limits and information, and the callbacks of a device's whole life.
#include "imports.h"

#include <cstdlib>

using webgpu_port::kWhole;
using webgpu_port::Text;
using webgpu_port::ToText;

namespace {

// Where a limit stands in WGPULimits. The order is that of `limitNames` in library_webgpu_port.js.
struct LimitField {
  uint32_t WGPULimits::* narrow;
  uint64_t WGPULimits::* wide;
};

constexpr LimitField Narrow(uint32_t WGPULimits::* field) { return {field, nullptr}; }
constexpr LimitField Wide(uint64_t WGPULimits::* field) { return {nullptr, field}; }

constexpr LimitField kLimits[] = {
    Narrow(&WGPULimits::maxTextureDimension1D),
    Narrow(&WGPULimits::maxTextureDimension2D),
    Narrow(&WGPULimits::maxTextureDimension3D),
    Narrow(&WGPULimits::maxTextureArrayLayers),
    Narrow(&WGPULimits::maxBindGroups),
    Narrow(&WGPULimits::maxBindGroupsPlusVertexBuffers),
    Narrow(&WGPULimits::maxBindingsPerBindGroup),
    Narrow(&WGPULimits::maxDynamicUniformBuffersPerPipelineLayout),
    Narrow(&WGPULimits::maxDynamicStorageBuffersPerPipelineLayout),
    Narrow(&WGPULimits::maxSampledTexturesPerShaderStage),
    Narrow(&WGPULimits::maxSamplersPerShaderStage),
    Narrow(&WGPULimits::maxStorageBuffersPerShaderStage),
    Narrow(&WGPULimits::maxStorageTexturesPerShaderStage),
    Narrow(&WGPULimits::maxUniformBuffersPerShaderStage),
    Wide(&WGPULimits::maxUniformBufferBindingSize),
    Wide(&WGPULimits::maxStorageBufferBindingSize),
    Narrow(&WGPULimits::minUniformBufferOffsetAlignment),
    Narrow(&WGPULimits::minStorageBufferOffsetAlignment),
    Narrow(&WGPULimits::maxVertexBuffers),
    Wide(&WGPULimits::maxBufferSize),
    Narrow(&WGPULimits::maxVertexAttributes),
    Narrow(&WGPULimits::maxVertexBufferArrayStride),
    Narrow(&WGPULimits::maxInterStageShaderVariables),
    Narrow(&WGPULimits::maxColorAttachments),
    Narrow(&WGPULimits::maxColorAttachmentBytesPerSample),
    Narrow(&WGPULimits::maxComputeWorkgroupStorageSize),
    Narrow(&WGPULimits::maxComputeInvocationsPerWorkgroup),
    Narrow(&WGPULimits::maxComputeWorkgroupSizeX),
    Narrow(&WGPULimits::maxComputeWorkgroupSizeY),
    Narrow(&WGPULimits::maxComputeWorkgroupSizeZ),
    Narrow(&WGPULimits::maxComputeWorkgroupsPerDimension),
    Narrow(&WGPULimits::maxImmediateSize),
};
constexpr size_t kLimitCount = sizeof(kLimits) / sizeof(kLimits[0]);

void StoreLimits(const double* values, WGPULimits* limits) {
  for (size_t i = 0; i < kLimitCount; ++i) {
    const LimitField& field = kLimits[i];
    const bool known = values[i] != kWhole;
    if (field.wide != nullptr) {
      limits->*field.wide = known ? static_cast<uint64_t>(values[i]) : WGPU_LIMIT_U64_UNDEFINED;
    } else {
      limits->*field.narrow = known ? static_cast<uint32_t>(values[i]) : WGPU_LIMIT_U32_UNDEFINED;
    }
  }
}

void FlattenLimits(const WGPULimits& limits, double* values) {
  if (limits.nextInChain != nullptr) webgpu_port_abort("WGPULimits", "chained structs are not covered");
  for (size_t i = 0; i < kLimitCount; ++i) {
    const LimitField& field = kLimits[i];
    if (field.wide != nullptr) {
      const uint64_t value = limits.*field.wide;
      values[i] = value == WGPU_LIMIT_U64_UNDEFINED ? kWhole : static_cast<double>(value);
    } else {
      const uint32_t value = limits.*field.narrow;
      values[i] = value == WGPU_LIMIT_U32_UNDEFINED ? kWhole : static_cast<double>(value);
    }
  }
}

// Takes the next NUL-terminated text of a block and moves on behind it.
WGPUStringView NextText(const char** block) {
  const WGPUStringView view = {*block, std::strlen(*block)};
  *block += view.length + 1;
  return view;
}

template <typename Callback>
void StoreCallback(uintptr_t* words, Callback callback, void* userdata1, void* userdata2) {
  words[0] = reinterpret_cast<uintptr_t>(callback);
  words[1] = reinterpret_cast<uintptr_t>(userdata1);
  words[2] = reinterpret_cast<uintptr_t>(userdata2);
}

}  // namespace

extern "C" {

WGPUInstance wgpuCreateInstance(WGPUInstanceDescriptor const* descriptor) {
  // The only instance features concern waiting, which a browser cannot do here: no instance with them exists.
  if (descriptor != nullptr && (descriptor->requiredFeatureCount != 0 || descriptor->nextInChain != nullptr)) return nullptr;
  return webgpu_port_create_instance();
}

WGPUFuture wgpuInstanceRequestAdapter(WGPUInstance, WGPURequestAdapterOptions const* options,
                                      WGPURequestAdapterCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuInstanceRequestAdapter");
  WGPURequestAdapterOptions chosen = {};
  if (options != nullptr) chosen = *options;
  if (chosen.nextInChain != nullptr || chosen.compatibleSurface != nullptr) {
    webgpu_port_abort("wgpuInstanceRequestAdapter", "surfaces and chained structs are not covered");
  }
  webgpu_port_request_adapter(chosen.powerPreference, chosen.featureLevel, chosen.forceFallbackAdapter, info.callback,
                              info.userdata1, info.userdata2);
  return webgpu_port::NextFuture();
}

WGPUStatus wgpuAdapterGetInfo(WGPUAdapter adapter, WGPUAdapterInfo* info) {
  uint32_t numbers[3] = {};
  const char* block = webgpu_port_adapter_info(adapter, numbers);
  if (block == nullptr || info->nextInChain != nullptr) {
    std::free(const_cast<char*>(block));
    return WGPUStatus_Error;
  }
  info->vendor = NextText(&block);
  info->architecture = NextText(&block);
  info->device = NextText(&block);
  info->description = NextText(&block);
  info->backendType = WGPUBackendType_WebGPU;
  info->adapterType = numbers[0] != 0 ? WGPUAdapterType_CPU : WGPUAdapterType_Unknown;
  info->vendorID = 0;
  info->deviceID = 0;
  info->subgroupMinSize = numbers[1];
  info->subgroupMaxSize = numbers[2];
  return WGPUStatus_Success;
}

void wgpuAdapterInfoFreeMembers(WGPUAdapterInfo info) {
  std::free(const_cast<char*>(info.vendor.data));  // the first text of the one block that holds all four
}

WGPUStatus wgpuAdapterGetLimits(WGPUAdapter adapter, WGPULimits* limits) {
  if (limits->nextInChain != nullptr) return WGPUStatus_Error;
  double values[kLimitCount];
  webgpu_port_adapter_limits(adapter, values);
  StoreLimits(values, limits);
  return WGPUStatus_Success;
}

WGPUStatus wgpuDeviceGetLimits(WGPUDevice device, WGPULimits* limits) {
  if (limits->nextInChain != nullptr) return WGPUStatus_Error;
  double values[kLimitCount];
  webgpu_port_device_limits(device, values);
  StoreLimits(values, limits);
  return WGPUStatus_Success;
}

WGPUFuture wgpuAdapterRequestDevice(WGPUAdapter adapter, WGPUDeviceDescriptor const* descriptor,
                                    WGPURequestDeviceCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuAdapterRequestDevice");
  WGPUDeviceDescriptor chosen = {};
  if (descriptor != nullptr) chosen = *descriptor;
  if (chosen.nextInChain != nullptr) webgpu_port_abort("WGPUDeviceDescriptor", "chained structs are not covered");
  const WGPUDeviceLostCallbackInfo& lost = chosen.deviceLostCallbackInfo;
  if (lost.callback != nullptr) webgpu_port::RequireSpontaneous(lost.mode, "WGPUDeviceLostCallbackInfo");
  const WGPUUncapturedErrorCallbackInfo& uncaptured = chosen.uncapturedErrorCallbackInfo;

  double limits[kLimitCount];
  if (chosen.requiredLimits != nullptr) FlattenLimits(*chosen.requiredLimits, limits);
  uintptr_t callbacks[9];
  StoreCallback(callbacks, info.callback, info.userdata1, info.userdata2);
  StoreCallback(callbacks + 3, lost.callback, lost.userdata1, lost.userdata2);
  StoreCallback(callbacks + 6, uncaptured.callback, uncaptured.userdata1, uncaptured.userdata2);
  const Text label = ToText(chosen.label);
  const Text queue_label = ToText(chosen.defaultQueue.label);
  webgpu_port_request_device(adapter, label.data, label.bytes, queue_label.data, queue_label.bytes, chosen.requiredFeatures,
                             chosen.requiredFeatureCount, chosen.requiredLimits != nullptr ? limits : nullptr, callbacks);
  return webgpu_port::NextFuture();
}

WGPUFuture wgpuDevicePopErrorScope(WGPUDevice device, WGPUPopErrorScopeCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuDevicePopErrorScope");
  webgpu_port_pop_error_scope(device, info.callback, info.userdata1, info.userdata2);
  return webgpu_port::NextFuture();
}

}  // extern "C"
