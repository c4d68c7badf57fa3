#include "gpu/readback.h"

#include <utility>

#include "base/text.h"
#include "gpu/context_state.h"
#include "gpu/convert.h"
#include "gpu/pass.h"

namespace gemma4::gpu {

Readback::Readback(Context& context, Buffer buffer)
    : context_(context), buffer_(std::move(buffer)), alive_(std::make_shared<bool>(true)) {}

Readback::~Readback() { *alive_ = false; }  // first: freeing the buffer settles a pending map

Result<std::unique_ptr<Readback>> Readback::Create(Context& context, std::string_view label, uint64_t bytes) {
  GEMMA4_ASSIGN_OR_RETURN(Buffer buffer, context.CreateBuffer(label, bytes, BufferUsage::kReadback));
  return std::unique_ptr<Readback>(new Readback(context, std::move(buffer)));
}

void Readback::Map(uint64_t bytes, MapCallback done) {
  struct Closure {
    Readback* readback;
    std::shared_ptr<bool> alive;
    std::shared_ptr<Context::State> state;
    uint64_t bytes;
    MapCallback done;
  };
  const uint64_t mapped = (bytes + 3) / 4 * 4;
  WGPUBufferMapCallbackInfo info = {};
  info.mode = WGPUCallbackMode_AllowSpontaneous;
  info.userdata1 = Arm(Closure{this, alive_, context_.state_, bytes, std::move(done)});
  info.callback = [](WGPUMapAsyncStatus status, WGPUStringView message, void* data, void*) {
    const Closure closure = Disarm<Closure>(data);
    if (!*closure.alive || closure.state->closing) return;
    Readback& readback = *closure.readback;
    // What the device reported explains a failed map better than the map's own message.
    if (Status stored = closure.state->error; !stored.ok()) {
      if (status == WGPUMapAsyncStatus_Success) wgpuBufferUnmap(readback.buffer_.raw());
      return closure.done(std::move(stored));
    }
    if (status != WGPUMapAsyncStatus_Success) {
      return closure.done(Status(Code::kGpuError, Text("reading ", readback.buffer_.label(), " failed: ", FromView(message))));
    }
    const uint64_t size = (closure.bytes + 3) / 4 * 4;
    const void* bytes = wgpuBufferGetConstMappedRange(readback.buffer_.raw(), 0, size);
    if (bytes == nullptr) {
      wgpuBufferUnmap(readback.buffer_.raw());
      return closure.done(Status(Code::kOutOfMemory, Text("there is no room for ", size, " bytes read from the GPU")));
    }
    // Copied, so that the buffer is free for the next copy when the callback runs.
    const auto* first = static_cast<const uint8_t*>(bytes);
    const std::vector<uint8_t> copy(first, first + closure.bytes);
    wgpuBufferUnmap(readback.buffer_.raw());
    closure.done(std::span<const uint8_t>(copy));
  };
  wgpuBufferMapAsync(buffer_.raw(), WGPUMapMode_Read, 0, mapped, info);
}

void ReadBuffer(Context& context, const Buffer& source, uint64_t offset, uint64_t bytes,
                std::function<void(Result<std::vector<uint8_t>>)> done) {
  Result<std::unique_ptr<Readback>> made = Readback::Create(context, Text("readback of ", source.label()), bytes);
  if (!made.ok()) return done(made.status());
  std::shared_ptr<Readback> readback = std::move(made).value();
  CommandRecorder recorder(context, "readback");
  Status status = recorder.CopyBuffer(source, offset, readback->buffer(), 0, bytes);
  if (status.ok()) status = recorder.Submit();
  if (!status.ok()) return done(std::move(status));
  // The closure keeps the Readback alive until the bytes are there.
  readback->Map(bytes, [readback, done = std::move(done)](Result<std::span<const uint8_t>> mapped) {
    if (!mapped.ok()) return done(mapped.status());
    done(std::vector<uint8_t>(mapped->begin(), mapped->end()));
  });
}

}  // namespace gemma4::gpu
