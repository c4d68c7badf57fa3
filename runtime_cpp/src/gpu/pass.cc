#include "gpu/pass.h"

#include "base/text.h"
#include "gpu/convert.h"
#include "kernels.h"
#if GEMMA4_PROFILE
#include "gpu/query_pool.h"
#endif

namespace gemma4::gpu {

CommandRecorder::CommandRecorder(Context& context, std::string_view label) : context_(context), label_(label) {
  WGPUCommandEncoderDescriptor descriptor = {};
  descriptor.label = ToView(label_);
  encoder_ = {wgpuDeviceCreateCommandEncoder(context.device_.get(), &descriptor), context.counter_};
#if GEMMA4_PROFILE
  if (context.queries() != nullptr) timing_ = context.queries()->Begin();
#endif
}

CommandRecorder::~CommandRecorder() = default;

void CommandRecorder::Run(const Recording& recording) {
  for (const Dispatch& dispatch : recording.dispatches()) {
    if (recording.shares_one_pass()) {
      Encode(SharedPass(), dispatch);
    } else {
      Run(dispatch);
    }
  }
}

WGPUComputePassEncoder CommandRecorder::SharedPass() {
  if (!shared_pass_) {
    WGPUComputePassDescriptor descriptor = {};
    descriptor.label = ToView(label_);
    shared_pass_ = {wgpuCommandEncoderBeginComputePass(encoder_.get(), &descriptor), context_.counter_};
  }
  return shared_pass_.get();
}

void CommandRecorder::EndSharedPass() {
  if (!shared_pass_) return;
  wgpuComputePassEncoderEnd(shared_pass_.get());
  shared_pass_.Reset();
}

void CommandRecorder::Encode(WGPUComputePassEncoder pass, const Dispatch& dispatch) {
  wgpuComputePassEncoderSetPipeline(pass, dispatch.pipeline->pipeline_.get());
  wgpuComputePassEncoderSetBindGroup(pass, 0, dispatch.bind_group.handle_.get(), 0, nullptr);
  wgpuComputePassEncoderDispatchWorkgroups(pass, dispatch.grid.x, dispatch.grid.y, dispatch.grid.z);
}

void CommandRecorder::Run(const Dispatch& dispatch) {
  EndSharedPass();
  WGPUComputePassDescriptor descriptor = {};
  descriptor.label = ToView(dispatch.pipeline->kernel().name);
#if GEMMA4_PROFILE
  WGPUPassTimestampWrites writes = {};
  if (timing_ != nullptr && timing_->Next(dispatch.pipeline->kernel().name, writes)) descriptor.timestampWrites = &writes;
#endif
  const WGPUComputePassEncoder pass = wgpuCommandEncoderBeginComputePass(encoder_.get(), &descriptor);
  Encode(pass, dispatch);
  wgpuComputePassEncoderEnd(pass);
  wgpuComputePassEncoderRelease(pass);
}

Status CommandRecorder::CopyBuffer(const Buffer& source, uint64_t source_offset, const Buffer& destination,
                                   uint64_t destination_offset, uint64_t bytes) {
  const uint64_t words = (bytes + 3) / 4 * 4;
  if (source_offset % 4 != 0 || destination_offset % 4 != 0 || source_offset > source.allocated_ ||
      words > source.allocated_ - source_offset || destination_offset > destination.allocated_ ||
      words > destination.allocated_ - destination_offset) {
    return Internal(Text("a copy of ", bytes, " bytes from ", source.label(), " at ", source_offset, " to ",
                         destination.label(), " at ", destination_offset, " does not fit"));
  }
  EndSharedPass();
  wgpuCommandEncoderCopyBufferToBuffer(encoder_.get(), source.raw(), source_offset, destination.raw(), destination_offset,
                                       words);
  return {};
}

Status CommandRecorder::Submit() {
  if (!encoder_) return Internal(Text("command buffer ", label_, " was submitted twice"));
  EndSharedPass();
#if GEMMA4_PROFILE
  if (timing_ != nullptr) timing_->Resolve(encoder_.get());
#endif
  const Handle<WGPUCommandBuffer, &wgpuCommandBufferRelease> commands(wgpuCommandEncoderFinish(encoder_.get(), nullptr),
                                                                      context_.counter_);
  encoder_.Reset();
  const WGPUCommandBuffer raw = commands.get();
  wgpuQueueSubmit(context_.queue_.get(), 1, &raw);
#if GEMMA4_PROFILE
  if (timing_ != nullptr) timing_->Collect();
#endif
  return context_.status();
}

}  // namespace gemma4::gpu
