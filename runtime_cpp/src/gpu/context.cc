#include "gpu/context.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "gpu/context_state.h"
#include "gpu/convert.h"
#include "gpu/pipeline.h"
#if GEMMA4_PROFILE
#include "gpu/query_pool.h"
#endif

namespace gemma4::gpu {
namespace {

// What is asked for, where the adapter has it. Buffers and bindings: weights are bound whole, so as much as 32-bit word
// indices in the kernels can reach. Storage buffers: the accept kernel binds 8. The workgroup limits are WebGPU's
// defaults, which every generic kernel fits.
constexpr uint64_t kWantedBufferBytes = uint64_t{4} << 30;
constexpr uint64_t kWantedBindingBytes = (uint64_t{4} << 30) - 4;
constexpr uint32_t kNeededStorageBuffers = 8;
constexpr uint32_t kWantedStorageBuffers = 10;  // of the largest fused kernels
constexpr uint32_t kWorkgroupSizeXY = 256;
constexpr uint32_t kWorkgroupSizeZ = 64;
constexpr uint32_t kWorkgroupInvocations = 256;
constexpr uint32_t kWorkgroupStorageBytes = 36864;  // of the largest tiles
// Of a later webgpu.h than those of some providers. None of them takes a number that it does not know for a feature.
constexpr auto kBufferView = static_cast<WGPUWGSLLanguageFeatureName>(12);
#ifdef WEBGPU_SUBGROUP_MATRIX_FEATURE  // by a provider that can ask for it
constexpr auto kSubgroupMatrix = static_cast<WGPUFeatureName>(WEBGPU_SUBGROUP_MATRIX_FEATURE);
#endif

struct NamedFeature {
  WGPUFeatureName feature;
  const char* name;
};
// Asked for where the adapter has them: routes use them all but the timestamps of profiles.
constexpr NamedFeature kWantedFeatures[] = {
    {WGPUFeatureName_ShaderF16, "shader-f16"},
    {WGPUFeatureName_Subgroups, "subgroups"},
#ifdef WEBGPU_SUBGROUP_MATRIX_FEATURE
    {kSubgroupMatrix, "chromium-experimental-subgroup-matrix"},
#endif
#if GEMMA4_PROFILE
    {WGPUFeatureName_TimestampQuery, "timestamp-query"},
#endif
};

Limits ToLimits(const WGPULimits& wgpu) {
  Limits limits;
  limits.max_buffer_bytes = wgpu.maxBufferSize;
  limits.max_storage_binding_bytes = wgpu.maxStorageBufferBindingSize;
  limits.max_uniform_binding_bytes = wgpu.maxUniformBufferBindingSize;
  limits.max_storage_buffers_per_stage = wgpu.maxStorageBuffersPerShaderStage;
  limits.max_workgroup_size_x = wgpu.maxComputeWorkgroupSizeX;
  limits.max_workgroup_size_y = wgpu.maxComputeWorkgroupSizeY;
  limits.max_workgroup_size_z = wgpu.maxComputeWorkgroupSizeZ;
  limits.max_invocations_per_workgroup = wgpu.maxComputeInvocationsPerWorkgroup;
  limits.max_workgroup_storage_bytes = wgpu.maxComputeWorkgroupStorageSize;
  limits.max_workgroups_per_dimension = wgpu.maxComputeWorkgroupsPerDimension;
  limits.uniform_offset_alignment = wgpu.minUniformBufferOffsetAlignment;
  limits.storage_offset_alignment = wgpu.minStorageBufferOffsetAlignment;
  return limits;
}

WGPULimits WantedLimits(const WGPULimits& adapter) {
  WGPULimits wanted = WGPU_LIMITS_INIT;
  wanted.maxBufferSize = std::min(kWantedBufferBytes, adapter.maxBufferSize);
  wanted.maxStorageBufferBindingSize = std::min(kWantedBindingBytes, adapter.maxStorageBufferBindingSize);
  wanted.maxStorageBuffersPerShaderStage = std::min(kWantedStorageBuffers, adapter.maxStorageBuffersPerShaderStage);
  wanted.maxComputeWorkgroupSizeX = std::min(kWorkgroupSizeXY, adapter.maxComputeWorkgroupSizeX);
  wanted.maxComputeWorkgroupSizeY = std::min(kWorkgroupSizeXY, adapter.maxComputeWorkgroupSizeY);
  wanted.maxComputeWorkgroupSizeZ = std::min(kWorkgroupSizeZ, adapter.maxComputeWorkgroupSizeZ);
  wanted.maxComputeInvocationsPerWorkgroup = std::min(kWorkgroupInvocations, adapter.maxComputeInvocationsPerWorkgroup);
  wanted.maxComputeWorkgroupStorageSize = std::min(kWorkgroupStorageBytes, adapter.maxComputeWorkgroupStorageSize);
  return wanted;
}

bool Contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

AdapterInfo ReadInfo(WGPUAdapter adapter, uint32_t* subgroup_lanes, uint32_t* widest_subgroup) {
  AdapterInfo info;
  WGPUAdapterInfo wgpu = {};
  if (wgpuAdapterGetInfo(adapter, &wgpu) != WGPUStatus_Success) return info;
  info.vendor = FromView(wgpu.vendor);
  info.architecture = FromView(wgpu.architecture);
  info.device = FromView(wgpu.device);
  info.description = FromView(wgpu.description);
  // Browsers hide the adapter type, so the CPU implementations are also known by name.
  info.software = wgpu.adapterType == WGPUAdapterType_CPU || Contains(info.architecture, "swiftshader") ||
                  Contains(info.description, "SwiftShader") || Contains(info.description, "llvmpipe");
  // No adapter's subgroups have fewer than four lanes; one that does not say how many is taken to have none.
  *subgroup_lanes = wgpu.subgroupMinSize >= 4 ? wgpu.subgroupMinSize : 1;
  *widest_subgroup = wgpu.subgroupMaxSize;
  wgpuAdapterInfoFreeMembers(wgpu);
  return info;
}

const char* ErrorKind(WGPUErrorType type) {
  switch (type) {
    case WGPUErrorType_Validation: return "validation error";
    case WGPUErrorType_OutOfMemory: return "out of memory";
    case WGPUErrorType_Internal: return "internal error";
    default: return "unknown error";
  }
}

Status FromGpuError(WGPUErrorType type, WGPUStringView message) {
  const Code code = type == WGPUErrorType_OutOfMemory ? Code::kOutOfMemory : Code::kGpuError;
  return {code, Text("WebGPU ", ErrorKind(type), ": ", FromView(message))};
}

}  // namespace

Context::Context(ObjectCounter& counter) : counter_(&counter), state_(std::make_shared<State>()) {}

Result<std::unique_ptr<Context>> Context::Create(ObjectCounter& counter) {
  std::unique_ptr<Context> context(new Context(counter));
  context->instance_ = {wgpuCreateInstance(nullptr), &counter};
  if (!context->instance_) return Status(Code::kUnsupported, "WebGPU could not be started: there is no instance");
  return context;
}

Context::~Context() {
  state_->closing = true;
  state_->on_lost = nullptr;
#if GEMMA4_PROFILE
  queries_.reset();
#endif
  queue_.Reset();
  if (device_) wgpuDeviceDestroy(device_.get());
  device_.Reset();
  wgpu_adapter_.Reset();
  instance_.Reset();
}

void Context::Open(StatusCallback done) {
  struct Closure {
    Context* context;
    std::shared_ptr<State> state;
    StatusCallback done;
  };
  WGPURequestAdapterOptions options = {};
  options.featureLevel = WGPUFeatureLevel_Core;
  options.powerPreference = WGPUPowerPreference_HighPerformance;
  WGPURequestAdapterCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{this, state_, std::move(done)});
  info.callback = [](WGPURequestAdapterStatus status, WGPUAdapter adapter, WGPUStringView message, void* data, void*) {
    Closure closure = Disarm<Closure>(data);
    if (closure.state->closing) {
      if (adapter != nullptr) wgpuAdapterRelease(adapter);
      return;
    }
    if (status != WGPURequestAdapterStatus_Success || adapter == nullptr) {
      return closure.done(Status(Code::kUnsupported, Text("this browser offers no WebGPU adapter: ", FromView(message),
                                                          " (enable hardware acceleration, or use another browser)")));
    }
    closure.context->wgpu_adapter_ = {adapter, closure.context->counter_};
    closure.context->RequestDevice(std::move(closure.done));
  };
  wgpuInstanceRequestAdapter(instance_.get(), &options, info);
}

void Context::RequestDevice(StatusCallback done) {
  struct Closure {
    Context* context;
    std::shared_ptr<State> state;
    StatusCallback done;
  };
  WGPULimits adapter_limits = WGPU_LIMITS_INIT;
  if (wgpuAdapterGetLimits(wgpu_adapter_.get(), &adapter_limits) != WGPUStatus_Success) {
    return done(Status(Code::kUnsupported, "the WebGPU adapter does not report its limits"));
  }
  if (adapter_limits.maxStorageBuffersPerShaderStage < kNeededStorageBuffers) {
    return done(LimitExceeded(Text("the WebGPU adapter allows ", adapter_limits.maxStorageBuffersPerShaderStage,
                                   " storage buffers a shader stage, ", kNeededStorageBuffers, " are needed")));
  }
  adapter_info_ = ReadInfo(wgpu_adapter_.get(), &subgroup_lanes_, &widest_subgroup_);
  const WGPULimits wanted = WantedLimits(adapter_limits);

  WGPUDeviceDescriptor descriptor = {};
  descriptor.label = ToView("gemma4 device");
  descriptor.defaultQueue.label = ToView("gemma4 queue");
  descriptor.requiredLimits = &wanted;
  std::vector<WGPUFeatureName> features;
  for (const NamedFeature& named : kWantedFeatures) {
    if (wgpuAdapterHasFeature(wgpu_adapter_.get(), named.feature)) features.push_back(named.feature);
  }
  descriptor.requiredFeatures = features.data();
  descriptor.requiredFeatureCount = features.size();
  descriptor.deviceLostCallbackInfo.mode = WGPUCallbackMode_AllowSpontaneous;
  descriptor.deviceLostCallbackInfo.userdata1 = Arm(state_);
  descriptor.deviceLostCallbackInfo.callback = [](WGPUDevice const*, WGPUDeviceLostReason reason,
                                                  WGPUStringView message, void* data, void*) {
    const auto state = Disarm<std::shared_ptr<State>>(data);
    if (state->closing || state->lost || reason == WGPUDeviceLostReason_FailedCreation) return;
    state->lost = true;
    const std::string text = FromView(message);
    state->error = Status(Code::kDeviceLost, Text("the WebGPU device was lost: ", text, " (unload and load again, or reload the page)"));
    const char* why = reason == WGPUDeviceLostReason_Destroyed ? "destroyed" : "unknown";
    if (auto listener = std::exchange(state->on_lost, nullptr)) listener(why, text);
  };
  descriptor.uncapturedErrorCallbackInfo.userdata1 = state_.get();  // never called after the device's release
  descriptor.uncapturedErrorCallbackInfo.callback = [](WGPUDevice const*, WGPUErrorType type, WGPUStringView message,
                                                       void* data, void*) {
    static_cast<State*>(data)->Store(FromGpuError(type, message));
  };

  WGPURequestDeviceCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{this, state_, std::move(done)});
  info.callback = [](WGPURequestDeviceStatus status, WGPUDevice device, WGPUStringView message, void* data, void*) {
    Closure closure = Disarm<Closure>(data);
    if (closure.state->closing) {
      if (device != nullptr) wgpuDeviceRelease(device);
      return;
    }
    if (status != WGPURequestDeviceStatus_Success || device == nullptr) {
      return closure.done(Status(Code::kUnsupported, Text("the WebGPU adapter gave no device: ", FromView(message))));
    }
    closure.done(closure.context->AdoptDevice(device));
  };
  wgpuAdapterRequestDevice(wgpu_adapter_.get(), &descriptor, info);
}

Status Context::AdoptDevice(WGPUDevice device) {
  device_ = {device, counter_};
  queue_ = {wgpuDeviceGetQueue(device), counter_};
  WGPULimits granted = WGPU_LIMITS_INIT;
  if (wgpuDeviceGetLimits(device, &granted) != WGPUStatus_Success) {
    return Status(Code::kUnsupported, "the WebGPU device does not report its limits");
  }
  limits_ = ToLimits(granted);
  for (const NamedFeature& named : kWantedFeatures) {
    if (wgpuDeviceHasFeature(device, named.feature)) adapter_info_.features.emplace_back(named.name);
  }
  limits_.packed_dot =
      wgpuInstanceHasWGSLLanguageFeature(instance_.get(), WGPUWGSLLanguageFeatureName_Packed4x8IntegerDotProduct);
  limits_.shader_f16 = wgpuDeviceHasFeature(device, WGPUFeatureName_ShaderF16);
  if (wgpuDeviceHasFeature(device, WGPUFeatureName_Subgroups)) limits_.subgroup_lanes = subgroup_lanes_;
  limits_.buffer_view = wgpuInstanceHasWGSLLanguageFeature(instance_.get(), kBufferView);
#ifdef WEBGPU_SUBGROUP_MATRIX_FEATURE
  limits_.matrix_unit = wgpuDeviceHasFeature(device, kSubgroupMatrix) && subgroup_lanes_ == 32 && widest_subgroup_ == 32;
#endif
#if GEMMA4_PROFILE
  timestamps_ = wgpuDeviceHasFeature(device, WGPUFeatureName_TimestampQuery);
  if (timestamps_) queries_ = std::make_unique<QueryPool>(*this);
#endif
  return status();
}

Status Context::status() const { return state_->error; }
bool Context::lost() const { return state_->lost; }

void Context::ClearError() {
  if (!state_->lost) state_->error = Status();
}

void Context::OnLost(std::function<void(std::string, std::string)> listener) { state_->on_lost = std::move(listener); }

void Context::PushAllocationScope() { wgpuDevicePushErrorScope(device_.get(), WGPUErrorFilter_OutOfMemory); }

void Context::PopAllocationScope(std::string what) {
  struct Closure {
    std::shared_ptr<State> state;
    std::string what;
  };
  ++state_->unanswered;
  WGPUPopErrorScopeCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{state_, std::move(what)});
  info.callback = [](WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message, void* data, void*) {
    const Closure closure = Disarm<Closure>(data);
    // A failed pop means a lost device, which its own callback reports.
    if (status == WGPUPopErrorScopeStatus_Success && type != WGPUErrorType_NoError) {
      closure.state->Store({Code::kOutOfMemory, Text("allocating ", closure.what, " failed: ", FromView(message))});
    }
    closure.state->Answered();
  };
  wgpuDevicePopErrorScope(device_.get(), info);
}

void Context::WhenDone(StatusCallback done) {
  struct Closure {
    std::shared_ptr<State> state;
    StatusCallback done;
  };
  WGPUQueueWorkDoneCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{state_, std::move(done)});
  info.callback = [](WGPUQueueWorkDoneStatus status, WGPUStringView message, void* data, void*) {
    Closure closure = Disarm<Closure>(data);
    State& state = *closure.state;
    if (state.closing) return;
    if (status != WGPUQueueWorkDoneStatus_Success) {
      state.Store({Code::kGpuError, Text("waiting for the GPU failed: ", FromView(message))});
    }
    closure.done(state.error);
  };
  wgpuQueueOnSubmittedWorkDone(queue_.get(), info);
}

void Context::Settle(StatusCallback done) {
  WhenDone([state = state_, done = std::move(done)](Status status) {
    if (state->unanswered == 0) return done(std::move(status));
    state->on_answered.push_back([state, done]() {
      if (!state->closing) done(state->error);
    });
  });
}

}  // namespace gemma4::gpu
