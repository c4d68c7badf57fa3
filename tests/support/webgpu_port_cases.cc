// The cases of the WebGPU provider probe: a compute program over <webgpu/webgpu.h> alone, built with each provider. The
// page calls probe_run with a case's name; the case reports once through Module.onReport.
#include <emscripten/emscripten.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "webgpu_port_probe.h"

using probe::Bench;
using probe::Close;
using probe::CopyAndSubmit;
using probe::MakeBuffer;
using probe::MakeModule;
using probe::MakePipeline;
using probe::MapForReading;
using probe::View;

namespace {

constexpr uint32_t kCount = 1000;  // not a multiple of the workgroup size
constexpr uint64_t kBytes = kCount * 4;

constexpr const char* kAdd = R"(
struct Params { count: u32, scale: f32, pad0: u32, pad1: u32 }
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> sum: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3u) {
  if (id.x < params.count) { sum[id.x] = a[id.x] + params.scale * b[id.x]; }
}
)";

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.17g", value);
  return text;
}

// add: explicit layouts, writeBuffer, a dispatch with a tail, work-done, readback by mapping.

WGPUBindGroupLayout AddLayout(Bench* bench) {
  WGPUBindGroupLayoutEntry entries[4] = {};
  const WGPUBufferBindingType types[4] = {WGPUBufferBindingType_ReadOnlyStorage, WGPUBufferBindingType_ReadOnlyStorage,
                                          WGPUBufferBindingType_Storage, WGPUBufferBindingType_Uniform};
  for (uint32_t i = 0; i < 4; ++i) {
    entries[i].binding = i;
    entries[i].visibility = WGPUShaderStage_Compute;
    entries[i].buffer.type = types[i];
  }
  WGPUBindGroupLayoutDescriptor descriptor = {};
  descriptor.label = View("add layout");
  descriptor.entryCount = 4;
  descriptor.entries = entries;
  return wgpuDeviceCreateBindGroupLayout(bench->device, &descriptor);
}

WGPUPipelineLayout PipelineLayoutOf(Bench* bench, WGPUBindGroupLayout layout) {
  WGPUPipelineLayoutDescriptor descriptor = {};
  descriptor.bindGroupLayoutCount = 1;
  descriptor.bindGroupLayouts = &layout;
  return wgpuDeviceCreatePipelineLayout(bench->device, &descriptor);
}

// Binds a (offset 256 into its buffer), b, bench->buffer and the parameters, and dispatches once.
void RecordAdd(Bench* bench, WGPUBindGroupLayout layout, WGPUQuerySet queries) {
  const WGPUBufferUsage input = WGPUBufferUsage_Storage | WGPUBufferUsage_CopyDst;
  WGPUBuffer buffers[4] = {MakeBuffer(bench, "a", kBytes + 256, input), MakeBuffer(bench, "b", kBytes, input),
                           bench->buffer, MakeBuffer(bench, "params", 16, WGPUBufferUsage_Uniform | WGPUBufferUsage_CopyDst)};
  std::vector<float> a(kCount), b(kCount);
  for (uint32_t i = 0; i < kCount; ++i) {
    a[i] = static_cast<float>(i);
    b[i] = 0.25F * static_cast<float>(i % 7);
  }
  struct {
    uint32_t count = kCount;
    float scale = 2.0F;
    uint32_t pad[2] = {};
  } params;
  wgpuQueueWriteBuffer(bench->queue, buffers[0], 256, a.data(), kBytes);
  wgpuQueueWriteBuffer(bench->queue, buffers[1], 0, b.data(), kBytes);
  wgpuQueueWriteBuffer(bench->queue, buffers[3], 0, &params, sizeof(params));

  WGPUBindGroupEntry entries[4] = {};
  for (uint32_t i = 0; i < 4; ++i) {
    entries[i].binding = i;
    entries[i].buffer = buffers[i];
    entries[i].size = i == 1 ? WGPU_WHOLE_SIZE : i == 3 ? 16 : kBytes;
  }
  entries[0].offset = 256;
  WGPUBindGroupDescriptor group_descriptor = {};
  group_descriptor.label = View("add group");
  group_descriptor.layout = layout;
  group_descriptor.entryCount = 4;
  group_descriptor.entries = entries;
  WGPUBindGroup group = wgpuDeviceCreateBindGroup(bench->device, &group_descriptor);

  WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(bench->device, nullptr);
  WGPUPassTimestampWrites writes = {};
  writes.querySet = queries;
  writes.beginningOfPassWriteIndex = 0;
  writes.endOfPassWriteIndex = 1;
  WGPUComputePassDescriptor pass_descriptor = {};
  pass_descriptor.label = View("add pass");
  pass_descriptor.timestampWrites = queries == nullptr ? nullptr : &writes;
  WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder, &pass_descriptor);
  wgpuComputePassEncoderSetPipeline(pass, bench->pipeline);
  wgpuComputePassEncoderSetBindGroup(pass, 0, group, 0, nullptr);
  wgpuComputePassEncoderDispatchWorkgroups(pass, (kCount + 63) / 64, 1, 1);
  wgpuComputePassEncoderEnd(pass);
  WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
  wgpuQueueSubmit(bench->queue, 1, &commands);
  wgpuCommandBufferRelease(commands);
  wgpuComputePassEncoderRelease(pass);
  wgpuCommandEncoderRelease(encoder);
  wgpuBindGroupRelease(group);
  for (int i : {0, 1, 3}) wgpuBufferRelease(buffers[i]);
}

void StartAdd(Bench* bench) {
  bench->buffer = MakeBuffer(bench, "sum", kBytes, WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc);
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  WGPUBindGroupLayout layout = AddLayout(bench);
  WGPUPipelineLayout pipeline_layout = PipelineLayoutOf(bench, layout);
  WGPUShaderModule module = MakeModule(bench, kAdd);
  MakePipeline(bench, module, pipeline_layout, [](Bench* ready) {
    if (ready->pipeline == nullptr) return Close(ready, false, "pipeline: " + ready->log);
    // A layout made a second time is the same to WebGPU, so the first needs not be kept.
    WGPUBindGroupLayout same = AddLayout(ready);
    RecordAdd(ready, same, nullptr);
    wgpuBindGroupLayoutRelease(same);
    CopyAndSubmit(ready, ready->buffer, ready->readback, kBytes);
    WGPUQueueWorkDoneCallbackInfo info = {};
    info.mode = WGPUCallbackMode_AllowSpontaneous;
    info.userdata1 = ready;
    info.callback = [](WGPUQueueWorkDoneStatus status, WGPUStringView, void* userdata, void*) {
      Bench* done = static_cast<Bench*>(userdata);
      if (status != WGPUQueueWorkDoneStatus_Success) return Close(done, false, "the work-done callback failed");
      MapForReading(done, done->readback, kBytes, [](Bench* mapped, bool ok) {
        if (!ok) return Close(mapped, false, "map: " + mapped->log);
        const float* sums = static_cast<const float*>(wgpuBufferGetConstMappedRange(mapped->readback, 0, kBytes));
        uint32_t wrong = 0;
        for (uint32_t i = 0; i < kCount; ++i) wrong += sums[i] != static_cast<float>(i) + 0.5F * static_cast<float>(i % 7);
        const float* tail = static_cast<const float*>(wgpuBufferGetConstMappedRange(mapped->readback, 8, 8));
        const bool overlap_refused = tail == nullptr;
        wgpuBufferUnmap(mapped->readback);
        Close(mapped, wrong == 0 && overlap_refused && mapped->uncaptured_count == 0,
              std::to_string(wrong) + " wrong sums " + mapped->uncaptured_message);
      });
    };
    wgpuQueueOnSubmittedWorkDone(ready->queue, info);
  });
  wgpuShaderModuleRelease(module);
  wgpuPipelineLayoutRelease(pipeline_layout);
  wgpuBindGroupLayoutRelease(layout);
}

// scopes: what each kind of error scope answers.

void Pop(Bench* bench, void (*next)(Bench*, WGPUPopErrorScopeStatus, WGPUErrorType, const std::string&)) {
  WGPUPopErrorScopeCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = bench;
  info.userdata2 = reinterpret_cast<void*>(next);
  info.callback = [](WGPUPopErrorScopeStatus status, WGPUErrorType type, WGPUStringView message, void* userdata1,
                     void* userdata2) {
    reinterpret_cast<void (*)(Bench*, WGPUPopErrorScopeStatus, WGPUErrorType, const std::string&)>(userdata2)(
        static_cast<Bench*>(userdata1), status, type, probe::Text(message));
  };
  wgpuDevicePopErrorScope(bench->device, info);
}

void StartScopes(Bench* bench) {
  wgpuDevicePushErrorScope(bench->device, WGPUErrorFilter_OutOfMemory);
  wgpuDevicePushErrorScope(bench->device, WGPUErrorFilter_Validation);
  WGPUShaderModule module = MakeModule(bench, "fn main( { not wgsl }");
  wgpuShaderModuleRelease(module);
  Pop(bench, [](Bench* b, WGPUPopErrorScopeStatus status, WGPUErrorType type, const std::string& message) {
    if (status != WGPUPopErrorScopeStatus_Success || type != WGPUErrorType_Validation || message.empty()) {
      return Close(b, false, "bad WGSL: type " + std::to_string(type) + " " + message);
    }
    Pop(b, [](Bench* b2, WGPUPopErrorScopeStatus status2, WGPUErrorType type2, const std::string&) {
      if (status2 != WGPUPopErrorScopeStatus_Success || type2 != WGPUErrorType_NoError) {
        return Close(b2, false, "clean scope: type " + std::to_string(type2));
      }
      // The header says Error; emdawnwebgpu says Success with an error type. Neither may look like a clean scope.
      Pop(b2, [](Bench* b3, WGPUPopErrorScopeStatus status3, WGPUErrorType type3, const std::string&) {
        const bool clean = status3 == WGPUPopErrorScopeStatus_Success && type3 == WGPUErrorType_NoError;
        Close(b3, !clean && b3->uncaptured_count == 0, "empty stack: status " + std::to_string(status3) + " " +
                                                           b3->uncaptured_message);
      });
    });
  });
}

// pipeline_error: an asynchronous pipeline of a bad module ends in ValidationError with a message.

void StartPipelineError(Bench* bench) {
  WGPUShaderModule module = MakeModule(bench, "@compute @workgroup_size(1) fn other() {}");
  MakePipeline(bench, module, nullptr, [](Bench* b) {
    Close(b, b->step == WGPUCreatePipelineAsyncStatus_ValidationError && b->pipeline == nullptr && !b->log.empty(),
          "status " + std::to_string(b->step) + " " + b->log);
  });
  wgpuShaderModuleRelease(module);
}

// lost: destroying the device aborts a pending map and calls the loss callback once.

void StartLost(Bench* bench) {
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  bench->step = 0;
  const auto settled = [](Bench* b) {
    if (++b->round < 2) return;
    Close(b, b->step == WGPUMapAsyncStatus_Aborted && b->lost_count == 1 && b->lost_had_device &&
                 b->lost_reason == WGPUDeviceLostReason_Destroyed,
          "map status " + std::to_string(b->step) + ", losses " + std::to_string(b->lost_count));
  };
  bench->on_lost = settled;
  MapForReading(bench, bench->readback, kBytes, [](Bench* b, bool) { b->on_lost(b); });
  wgpuDeviceDestroy(bench->device);
}

// released: the last release destroys the device; its loss callback comes without the device.

void StartReleased(Bench* bench) {
  bench->on_lost = [](Bench* b) {
    b->device = nullptr;
    Close(b, b->lost_reason == WGPUDeviceLostReason_Destroyed && !b->lost_had_device, "reason and device of the loss");
  };
  wgpuDeviceAddRef(bench->device);
  wgpuDeviceRelease(bench->device);
  wgpuDeviceRelease(bench->device);
}

// crash: the GPU process dies under the device. The loss has another reason than destruction, and a map that is asked for
// afterwards still settles.

void StartCrash(Bench* bench) {
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  bench->on_lost = [](Bench* b) {
    MapForReading(b, b->readback, kBytes, [](Bench* settled, bool ok) {
      Close(settled, !ok && settled->lost_count == 1 && settled->lost_reason == WGPUDeviceLostReason_Unknown,
            "reason " + std::to_string(settled->lost_reason) + ", map status " + std::to_string(settled->step));
    });
  };
}

// timestamps: a pass with its own pair of queries, resolved and read.

void StartTimestamps(Bench* bench) {
  if (!wgpuDeviceHasFeature(bench->device, WGPUFeatureName_TimestampQuery) ||
      !wgpuAdapterHasFeature(bench->adapter, WGPUFeatureName_TimestampQuery)) {
    return Close(bench, false, "the device was made with timestamp-query but does not say so");
  }
  bench->buffer = MakeBuffer(bench, "sum", kBytes, WGPUBufferUsage_Storage | WGPUBufferUsage_CopySrc);
  bench->readback = MakeBuffer(bench, "readback", 16, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  WGPUQuerySetDescriptor descriptor = {};
  descriptor.type = WGPUQueryType_Timestamp;
  descriptor.count = 2;
  bench->queries = wgpuDeviceCreateQuerySet(bench->device, &descriptor);
  WGPUShaderModule module = MakeModule(bench, kAdd);
  WGPUBindGroupLayout layout = AddLayout(bench);
  WGPUPipelineLayout pipeline_layout = PipelineLayoutOf(bench, layout);
  MakePipeline(bench, module, pipeline_layout, [](Bench* b) {
    WGPUBindGroupLayout same = AddLayout(b);
    RecordAdd(b, same, b->queries);
    wgpuBindGroupLayoutRelease(same);
    WGPUBuffer resolved = MakeBuffer(b, "resolved", 512, WGPUBufferUsage_QueryResolve | WGPUBufferUsage_CopySrc);
    WGPUCommandEncoder encoder = wgpuDeviceCreateCommandEncoder(b->device, nullptr);
    wgpuCommandEncoderResolveQuerySet(encoder, b->queries, 0, 2, resolved, 256);
    wgpuCommandEncoderCopyBufferToBuffer(encoder, resolved, 256, b->readback, 0, 16);
    WGPUCommandBuffer commands = wgpuCommandEncoderFinish(encoder, nullptr);
    wgpuQueueSubmit(b->queue, 1, &commands);
    wgpuCommandBufferRelease(commands);
    wgpuCommandEncoderRelease(encoder);
    wgpuBufferRelease(resolved);
    MapForReading(b, b->readback, 16, [](Bench* m, bool ok) {
      if (!ok) return Close(m, false, "map: " + m->log);
      const uint64_t* ticks = static_cast<const uint64_t*>(wgpuBufferGetConstMappedRange(m->readback, 0, 16));
      const bool good = ticks != nullptr && ticks[0] > 0 && ticks[1] >= ticks[0];
      wgpuQuerySetDestroy(m->queries);
      Close(m, good && m->uncaptured_count == 0, "two ordered timestamps " + m->uncaptured_message);
    });
  });
  wgpuShaderModuleRelease(module);
  wgpuPipelineLayoutRelease(pipeline_layout);
  wgpuBindGroupLayoutRelease(layout);
}

// growth: memory grows between every step that hands memory to the browser or takes it back.

// Takes a block that the heap cannot hold yet, and keeps it until the next call. Returns whether memory did grow.
bool Grow() {
  static void* kept = nullptr;
  std::free(kept);
  const size_t before = __builtin_wasm_memory_size(0);
  kept = std::malloc(before * 65536 + 65536);
  return kept != nullptr && __builtin_wasm_memory_size(0) > before;
}

void GrowthRound(Bench* bench);

void GrowthMapped(Bench* bench, bool ok) {
  if (!ok) return Close(bench, false, "map: " + bench->log);
  const uint32_t* mapped = static_cast<const uint32_t*>(wgpuBufferGetConstMappedRange(bench->readback, 0, kBytes));
  const bool grown = Grow();
  const bool equal = mapped != nullptr && std::memcmp(mapped, bench->words.data(), kBytes) == 0;
  wgpuBufferUnmap(bench->readback);
  if (!grown || !equal) {
    return Close(bench, false, std::string(grown ? "other words than written" : "no growth") + " in round " +
                                   std::to_string(bench->round));
  }
  if (++bench->round == 3) return Close(bench, true, "memory grew six times");
  GrowthRound(bench);
}

void GrowthRound(Bench* bench) {
  std::vector<uint32_t> words(kCount);
  for (uint32_t i = 0; i < kCount; ++i) words[i] = i * 2654435761U + static_cast<uint32_t>(bench->round);
  if (!Grow()) return Close(bench, false, "no growth before round " + std::to_string(bench->round));
  wgpuQueueWriteBuffer(bench->queue, bench->buffer, 0, words.data(), kBytes);
  bench->words = words;
  std::memset(words.data(), 0, kBytes);  // writeBuffer has taken its copy
  CopyAndSubmit(bench, bench->buffer, bench->readback, kBytes);
  MapForReading(bench, bench->readback, kBytes, GrowthMapped);
}

void StartGrowth(Bench* bench) {
  bench->buffer = MakeBuffer(bench, "words", kBytes, WGPUBufferUsage_CopySrc | WGPUBufferUsage_CopyDst);
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  GrowthRound(bench);
}

// mapped_write: a buffer mapped at creation takes what is written through its range.

void StartMappedWrite(Bench* bench) {
  bench->buffer = MakeBuffer(bench, "mapped", kBytes, WGPUBufferUsage_CopySrc, true);
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  uint32_t* words = static_cast<uint32_t*>(wgpuBufferGetMappedRange(bench->buffer, 0, WGPU_WHOLE_MAP_SIZE));
  if (words == nullptr) return Close(bench, false, "no mapped range");
  for (uint32_t i = 0; i < kCount; ++i) words[i] = ~i;
  wgpuBufferUnmap(bench->buffer);
  CopyAndSubmit(bench, bench->buffer, bench->readback, kBytes);
  MapForReading(bench, bench->readback, kBytes, [](Bench* b, bool ok) {
    if (!ok) return Close(b, false, "map: " + b->log);
    const uint32_t* read = static_cast<const uint32_t*>(wgpuBufferGetConstMappedRange(b->readback, 0, kBytes));
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < kCount; ++i) wrong += read[i] != ~i;
    wgpuBufferUnmap(b->readback);
    Close(b, wrong == 0, std::to_string(wrong) + " wrong words");
  });
}

// unmapped: taking the map back, and destroying the buffer, end a pending map as aborted.

void StartUnmapped(Bench* bench) {
  bench->readback = MakeBuffer(bench, "readback", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  MapForReading(bench, bench->readback, kBytes, [](Bench* b, bool) {
    if (b->step != WGPUMapAsyncStatus_Aborted) return Close(b, false, "unmap: status " + std::to_string(b->step));
    MapForReading(b, b->readback, kBytes, [](Bench* b2, bool) {
      const int status = b2->step;
      wgpuBufferRelease(b2->readback);
      b2->readback = MakeBuffer(b2, "again", kBytes, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
      MapForReading(b2, b2->readback, kBytes, [](Bench* b3, bool) {
        b3->readback = nullptr;
        Close(b3, b3->round == WGPUMapAsyncStatus_Aborted && b3->step == WGPUMapAsyncStatus_Aborted,
              "destroy: status " + std::to_string(b3->round) + ", release: status " + std::to_string(b3->step));
      });
      b2->round = status;
      wgpuBufferRelease(b2->readback);
    });
    wgpuBufferDestroy(b->readback);
  });
  wgpuBufferUnmap(bench->readback);
}

// uncaptured: an error outside of scopes reaches the device's callback with its type; sizes of 64 bits arrive whole.

void StartUncaptured(Bench* bench) {
  wgpuBufferRelease(MakeBuffer(bench, "bad usage", 16, WGPUBufferUsage_MapRead | WGPUBufferUsage_Storage));
  wgpuDevicePushErrorScope(bench->device, WGPUErrorFilter_Validation);
  wgpuBufferRelease(MakeBuffer(bench, "beyond 32 bits", (uint64_t{1} << 33) + 4, WGPUBufferUsage_Storage));
  Pop(bench, [](Bench* b, WGPUPopErrorScopeStatus, WGPUErrorType type, const std::string& message) {
    if (type != WGPUErrorType_Validation || message.find("8589934596") == std::string::npos) {
      return Close(b, false, "large buffer: type " + std::to_string(type) + " " + message);
    }
    Close(b, b->uncaptured_count == 1 && b->uncaptured_type == WGPUErrorType_Validation && !b->uncaptured_message.empty(),
          std::to_string(b->uncaptured_count) + " uncaptured errors " + b->uncaptured_message);
  });
}

// refused and unknown_feature: the device request fails with a message, and the loss callback says why there is none.

void StartRefused(Bench* bench) {
  if (bench->device_status != WGPURequestDeviceStatus_Error || bench->device_message.empty()) {
    return Close(bench, false, "status " + std::to_string(bench->device_status) + " " + bench->device_message);
  }
  bench->on_lost = [](Bench* b) {
    Close(b, b->lost_reason == WGPUDeviceLostReason_FailedCreation && !b->lost_had_device, b->device_message);
  };
  if (bench->lost_count > 0) bench->on_lost(bench);
}

// describe: what the adapter and the device say about themselves, as JSON for the page to compare.

void StartDescribe(Bench* bench) {
  WGPUAdapterInfo info = {};
  WGPULimits adapter = {};
  WGPULimits device = {};
  if (wgpuAdapterGetInfo(bench->adapter, &info) != WGPUStatus_Success ||
      wgpuAdapterGetLimits(bench->adapter, &adapter) != WGPUStatus_Success ||
      wgpuDeviceGetLimits(bench->device, &device) != WGPUStatus_Success) {
    return Close(bench, false, "a query failed");
  }
  std::string json = "{\"vendor\":\"" + probe::Text(info.vendor) + "\",\"architecture\":\"" +
                     probe::Text(info.architecture) + "\",\"cpu\":" +
                     std::to_string(info.adapterType == WGPUAdapterType_CPU) + ",\"subgroupMinSize\":" +
                     std::to_string(info.subgroupMinSize) + ",\"timestamp-query\":" +
                     std::to_string(wgpuAdapterHasFeature(bench->adapter, WGPUFeatureName_TimestampQuery)) +
                     ",\"shader-f16\":" +
                     std::to_string(wgpuAdapterHasFeature(bench->adapter, WGPUFeatureName_ShaderF16)) +
                     ",\"subgroups\":" + std::to_string(wgpuAdapterHasFeature(bench->adapter, WGPUFeatureName_Subgroups)) +
                     ",\"packed_4x8_integer_dot_product\":" +
                     std::to_string(wgpuInstanceHasWGSLLanguageFeature(
                         bench->instance, WGPUWGSLLanguageFeatureName_Packed4x8IntegerDotProduct));
  const auto add = [&json](const char* name, double of_adapter, double of_device) {
    json += ",\"" + std::string(name) + "\":[" + Number(of_adapter) + "," + Number(of_device) + "]";
  };
#define LIMIT(name) add(#name, static_cast<double>(adapter.name), static_cast<double>(device.name))
  LIMIT(maxTextureDimension1D);
  LIMIT(maxBindGroups);
  LIMIT(maxBindingsPerBindGroup);
  LIMIT(maxStorageBuffersPerShaderStage);
  LIMIT(maxUniformBufferBindingSize);
  LIMIT(maxStorageBufferBindingSize);
  LIMIT(minUniformBufferOffsetAlignment);
  LIMIT(minStorageBufferOffsetAlignment);
  LIMIT(maxVertexBuffers);
  LIMIT(maxBufferSize);
  LIMIT(maxColorAttachments);
  LIMIT(maxComputeWorkgroupStorageSize);
  LIMIT(maxComputeInvocationsPerWorkgroup);
  LIMIT(maxComputeWorkgroupSizeX);
  LIMIT(maxComputeWorkgroupSizeY);
  LIMIT(maxComputeWorkgroupSizeZ);
  LIMIT(maxComputeWorkgroupsPerDimension);
#undef LIMIT
  wgpuAdapterInfoFreeMembers(info);
  Close(bench, true, json + "}");
}

// write_refused: what the browser refuses by throwing arrives as a validation error of the device.

void StartWriteRefused(Bench* bench) {
  bench->buffer = MakeBuffer(bench, "words", 16, WGPUBufferUsage_CopyDst);
  const uint8_t bytes[3] = {1, 2, 3};
  wgpuQueueWriteBuffer(bench->queue, bench->buffer, 0, bytes, sizeof(bytes));
  WGPUQueueWorkDoneCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = bench;
  info.callback = [](WGPUQueueWorkDoneStatus, WGPUStringView, void* userdata, void*) {
    Bench* b = static_cast<Bench*>(userdata);
    Close(b, b->uncaptured_count == 1 && b->uncaptured_type == WGPUErrorType_Validation && !b->uncaptured_message.empty(),
          b->uncaptured_message);
  };
  wgpuQueueOnSubmittedWorkDone(bench->queue, info);
}

// The misuses that stop the module with a message.

void StartWrongMode(Bench* bench) {
  bench->readback = MakeBuffer(bench, "readback", 16, WGPUBufferUsage_MapRead | WGPUBufferUsage_CopyDst);
  WGPUBufferMapCallbackInfo info = {};
  info.mode = WGPUCallbackMode_WaitAnyOnly;
  wgpuBufferMapAsync(bench->readback, WGPUMapMode_Read, 0, 16, info);
  Close(bench, false, "a wait-any callback was accepted");
}

void StartReleasedHandle(Bench* bench) {
  WGPUBuffer buffer = MakeBuffer(bench, "gone", 16, WGPUBufferUsage_CopyDst);
  wgpuBufferRelease(buffer);
  wgpuBufferDestroy(buffer);
  Close(bench, false, "a released handle was accepted");
}

struct Case {
  const char* name;
  void (*start)(Bench*);
  void (*prepare)(Bench*);
};

constexpr Case kCases[] = {
    {"add", StartAdd, nullptr},
    {"scopes", StartScopes, nullptr},
    {"pipeline_error", StartPipelineError, nullptr},
    {"lost", StartLost, nullptr},
    {"released", StartReleased, nullptr},
    {"crash", StartCrash, nullptr},
    {"timestamps", StartTimestamps, [](Bench* b) { b->features.push_back(WGPUFeatureName_TimestampQuery); }},
    {"growth", StartGrowth, nullptr},
    {"mapped_write", StartMappedWrite, nullptr},
    {"unmapped", StartUnmapped, nullptr},
    {"uncaptured", StartUncaptured, nullptr},
    {"refused", StartRefused,
     [](Bench* b) {
       b->refusal_expected = true;
       b->limits.maxStorageBufferBindingSize = uint64_t{1} << 50;
     }},
    {"unknown_feature", StartRefused,
     [](Bench* b) {
       b->refusal_expected = true;
       b->features.push_back(static_cast<WGPUFeatureName>(0x7000));
     }},
    {"describe", StartDescribe,
     [](Bench* b) {
       b->limits.maxStorageBuffersPerShaderStage = 10;
       b->limits.maxBufferSize = uint64_t{300} << 20;
     }},
    {"write_refused", StartWriteRefused, nullptr},
    {"wrong_mode", StartWrongMode, nullptr},
    {"released_handle", StartReleasedHandle, nullptr},
};

}  // namespace

extern "C" EMSCRIPTEN_KEEPALIVE int probe_run(const char* name) {
  for (const Case& known : kCases) {
    if (std::strcmp(known.name, name) != 0) continue;
    Bench* bench = new Bench;
    bench->name = known.name;
    bench->start = known.start;
    if (known.prepare != nullptr) known.prepare(bench);
    probe::Open(bench);
    return 1;
  }
  return 0;
}
