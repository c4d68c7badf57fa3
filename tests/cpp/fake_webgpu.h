// A WebGPU device without a GPU, for host tests of everything above webgpu.h. Keeps buffer contents, checks what a real
// device would validate of writes, copies, bind groups and dispatches, counts live objects, and can be told to fail. Runs
// no shader, but a test may put code in place of one. Callbacks fire in Pump(), never inside the call that registered them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu/context.h"

namespace gemma4::test {

struct FakeBuffer {
  std::string label;
  uint64_t usage = 0;
  std::vector<uint8_t> bytes;
  bool destroyed = false;
};

// One dispatch as it was submitted.
struct FakeDispatch {
  std::string kernel;
  std::vector<std::shared_ptr<FakeBuffer>> buffers;
  std::vector<uint64_t> offsets;
  uint32_t x = 0, y = 0, z = 0;
  uint32_t pass = 0;  // number of its compute pass, of all that were begun
};

// The one fake device of a test; ResetFake makes a new one.
struct FakeGpu {
  int32_t live_objects = 0;                              // handed out and not released
  std::vector<std::shared_ptr<FakeBuffer>> buffers;      // every buffer ever made
  std::vector<FakeDispatch> dispatches;                  // every dispatch submitted
  uint32_t passes = 0;                                   // compute passes begun
  uint32_t open_passes = 0;                              // begun and not ended
  std::vector<std::string> validation_errors;            // what a device would have refused
  int32_t fail_buffer = -1;                              // this many buffers succeed, the next is out of memory
  bool fail_work = false;                                // waiting for submitted work fails
  bool software = false;                                 // the adapter is a CPU
  std::string fail_pipeline;                             // the kernel that does not compile
  std::function<void(const FakeDispatch&)> on_dispatch;  // stands in for the shader, when the commands are submitted
  uint64_t max_buffer_bytes = uint64_t{1} << 30;
  uint64_t max_binding_bytes = (uint64_t{1} << 30) - 4;

  uint64_t LiveBytes() const;
  std::shared_ptr<FakeBuffer> Find(const std::string& label) const;  // the latest that is not destroyed; null if none
};

FakeGpu& Fake();
void ResetFake();
// Fires callbacks until none is pending.
void Pump();

// A context on the fake device, opened.
std::unique_ptr<gpu::Context> OpenFake(gpu::ObjectCounter& counter);

}  // namespace gemma4::test
