// The way back from the JavaScript half: one function that turns scalars into the call of a C callback, and the rules for
// callbacks that every request shares.
#include "imports.h"

namespace webgpu_port {

WGPUFuture NextFuture() {
  static uint64_t last_id = 0;  // numbers of futures are unique in a module; nothing else is kept about them
  return {++last_id};
}

void RequireSpontaneous(WGPUCallbackMode mode, const char* function) {
  if (mode != WGPUCallbackMode_AllowSpontaneous) {
    webgpu_port_abort(function, "only callbacks of mode WGPUCallbackMode_AllowSpontaneous are covered");
  }
}

namespace {

template <typename Callback>
Callback As(void (*callback)()) {
  return reinterpret_cast<Callback>(callback);
}

template <typename Object>
Object Handle(uint32_t value) {
  return reinterpret_cast<Object>(static_cast<uintptr_t>(value));
}

}  // namespace

// Calls `callback` as the type that belongs to `kind`. `status` is the first enum of its signature (the reason of a device
// loss, the type of an uncaptured error); `value` is the handle that it delivers or is about, or a popped scope's error
// type. `message` is UTF-8, may be null, and lives until this returns.
extern "C" void webgpu_port_call_back(CallbackKind kind, void (*callback)(), void* userdata1, void* userdata2,
                                      uint32_t status, uint32_t value, const char* message) {
  if (callback == nullptr) return;
  const WGPUStringView text = {message, message == nullptr ? 0 : std::strlen(message)};
  switch (kind) {
    case CallbackKind::kRequestAdapter:
      As<WGPURequestAdapterCallback>(callback)(static_cast<WGPURequestAdapterStatus>(status), Handle<WGPUAdapter>(value),
                                               text, userdata1, userdata2);
      return;
    case CallbackKind::kRequestDevice:
      As<WGPURequestDeviceCallback>(callback)(static_cast<WGPURequestDeviceStatus>(status), Handle<WGPUDevice>(value), text,
                                              userdata1, userdata2);
      return;
    case CallbackKind::kDeviceLost: {
      const WGPUDevice device = Handle<WGPUDevice>(value);
      As<WGPUDeviceLostCallback>(callback)(&device, static_cast<WGPUDeviceLostReason>(status), text, userdata1, userdata2);
      return;
    }
    case CallbackKind::kUncapturedError: {
      const WGPUDevice device = Handle<WGPUDevice>(value);
      As<WGPUUncapturedErrorCallback>(callback)(&device, static_cast<WGPUErrorType>(status), text, userdata1, userdata2);
      return;
    }
    case CallbackKind::kPopErrorScope:
      As<WGPUPopErrorScopeCallback>(callback)(static_cast<WGPUPopErrorScopeStatus>(status),
                                              static_cast<WGPUErrorType>(value), text, userdata1, userdata2);
      return;
    case CallbackKind::kCreateComputePipeline:
      As<WGPUCreateComputePipelineAsyncCallback>(callback)(static_cast<WGPUCreatePipelineAsyncStatus>(status),
                                                           Handle<WGPUComputePipeline>(value), text, userdata1, userdata2);
      return;
    case CallbackKind::kMapBuffer:
      As<WGPUBufferMapCallback>(callback)(static_cast<WGPUMapAsyncStatus>(status), text, userdata1, userdata2);
      return;
    case CallbackKind::kWorkDone:
      As<WGPUQueueWorkDoneCallback>(callback)(static_cast<WGPUQueueWorkDoneStatus>(status), text, userdata1, userdata2);
      return;
  }
}

}  // namespace webgpu_port

// The numbers of library_webgpu_port.js, checked against the header that is in use.
static_assert(WGPURequestAdapterStatus_Success == 1 && WGPURequestAdapterStatus_Unavailable == 3 &&
              WGPURequestAdapterStatus_Error == 4);
static_assert(WGPURequestDeviceStatus_Success == 1 && WGPURequestDeviceStatus_Error == 3);
static_assert(WGPUDeviceLostReason_Unknown == 1 && WGPUDeviceLostReason_Destroyed == 2 &&
              WGPUDeviceLostReason_FailedCreation == 4);
static_assert(WGPUErrorType_NoError == 1 && WGPUErrorType_Validation == 2 && WGPUErrorType_OutOfMemory == 3 &&
              WGPUErrorType_Internal == 4 && WGPUErrorType_Unknown == 5);
static_assert(WGPUErrorFilter_Validation == 1 && WGPUErrorFilter_OutOfMemory == 2 && WGPUErrorFilter_Internal == 3);
static_assert(WGPUPopErrorScopeStatus_Success == 1 && WGPUPopErrorScopeStatus_Error == 3);
static_assert(WGPUCreatePipelineAsyncStatus_Success == 1 && WGPUCreatePipelineAsyncStatus_ValidationError == 3 &&
              WGPUCreatePipelineAsyncStatus_InternalError == 4);
static_assert(WGPUMapAsyncStatus_Success == 1 && WGPUMapAsyncStatus_Error == 3 && WGPUMapAsyncStatus_Aborted == 4);
static_assert(WGPUQueueWorkDoneStatus_Success == 1 && WGPUQueueWorkDoneStatus_Error == 3);
static_assert(WGPUMapMode_Read == 1 && WGPUMapMode_Write == 2);
static_assert(WGPUBufferUsage_MapRead == 0x1 && WGPUBufferUsage_MapWrite == 0x2 && WGPUBufferUsage_CopySrc == 0x4 &&
              WGPUBufferUsage_CopyDst == 0x8 && WGPUBufferUsage_Uniform == 0x40 && WGPUBufferUsage_Storage == 0x80 &&
              WGPUBufferUsage_Indirect == 0x100 && WGPUBufferUsage_QueryResolve == 0x200);
static_assert(WGPUShaderStage_Compute == 4);
static_assert(WGPUBufferBindingType_Undefined == 1 && WGPUBufferBindingType_Uniform == 2 &&
              WGPUBufferBindingType_Storage == 3 && WGPUBufferBindingType_ReadOnlyStorage == 4);
static_assert(WGPUQueryType_Occlusion == 1 && WGPUQueryType_Timestamp == 2);
static_assert(WGPUPowerPreference_LowPower == 1 && WGPUPowerPreference_HighPerformance == 2);
static_assert(WGPUFeatureLevel_Compatibility == 1 && WGPUFeatureLevel_Core == 2);
static_assert(WGPUFeatureName_CoreFeaturesAndLimits == 1 && WGPUFeatureName_TimestampQuery == 9 &&
              WGPUFeatureName_ShaderF16 == 11 && WGPUFeatureName_Subgroups == 18 &&
              WGPUFeatureName_TextureComponentSwizzle == 22);
