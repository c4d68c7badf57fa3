// What the cases of the WebGPU provider probe share: one device with its events, and the report to the page.
#ifndef TESTS_SUPPORT_WEBGPU_PORT_PROBE_H_
#define TESTS_SUPPORT_WEBGPU_PORT_PROBE_H_

#include <webgpu/webgpu.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace probe {

WGPUStringView View(const char* text);
std::string Text(WGPUStringView view);

// A case that has come to an end reports its name, its verdict and what it saw, once.
void Report(const char* name, bool passed, const std::string& detail);

// Adapter, device and queue of one case, and what happened to the device. Lives until Close; its own address is the
// userdata of every callback.
struct Bench {
  const char* name = nullptr;
  void (*start)(Bench*) = nullptr;
  std::vector<WGPUFeatureName> features;
  WGPULimits limits = WGPU_LIMITS_INIT;

  WGPUInstance instance = nullptr;
  WGPUAdapter adapter = nullptr;
  WGPUDevice device = nullptr;
  WGPUQueue queue = nullptr;

  int lost_count = 0;
  WGPUDeviceLostReason lost_reason = {};
  bool lost_had_device = false;
  void (*on_lost)(Bench*) = nullptr;
  int uncaptured_count = 0;
  WGPUErrorType uncaptured_type = {};
  std::string uncaptured_message;

  WGPURequestDeviceStatus device_status = {};
  std::string device_message;
  // Set for cases that expect the device request to fail; `start` is called all the same.
  bool refusal_expected = false;

  // Scratch of the case that runs.
  WGPUBuffer buffer = nullptr;
  WGPUBuffer readback = nullptr;
  WGPUQuerySet queries = nullptr;
  WGPUComputePipeline pipeline = nullptr;
  std::vector<uint32_t> words;
  int round = 0;
  int step = 0;
  std::string log;
};

// Requests adapter and device as the fields say and then calls `start`.
void Open(Bench* bench);
// Reports, destroys and releases everything, and deletes the bench.
void Close(Bench* bench, bool passed, const std::string& detail);

WGPUBuffer MakeBuffer(Bench* bench, const char* label, uint64_t bytes, WGPUBufferUsage usage, bool mapped = false);
WGPUShaderModule MakeModule(Bench* bench, const char* code);
// Compiles `code` (entry point main) with the automatic or the given layout; `done` finds bench->pipeline.
void MakePipeline(Bench* bench, WGPUShaderModule module, WGPUPipelineLayout layout, void (*done)(Bench*));
// Maps `buffer` for reading and calls `done`.
void MapForReading(Bench* bench, WGPUBuffer buffer, size_t bytes, void (*done)(Bench*, bool));
void CopyAndSubmit(Bench* bench, WGPUBuffer source, WGPUBuffer destination, uint64_t bytes);

}  // namespace probe

#endif  // TESTS_SUPPORT_WEBGPU_PORT_PROBE_H_
