// Recording and submitting work: command encoders, compute passes and the queue.
#include "imports.h"

using webgpu_port::Text;
using webgpu_port::ToDouble;
using webgpu_port::ToText;

namespace {

// The label of an optional descriptor of which nothing else is read.
template <typename Descriptor>
Text LabelOf(const Descriptor* descriptor) {
  return descriptor == nullptr ? Text{nullptr, 0} : ToText(descriptor->label);
}

}  // namespace

extern "C" {

WGPUCommandEncoder wgpuDeviceCreateCommandEncoder(WGPUDevice device, WGPUCommandEncoderDescriptor const* descriptor) {
  const Text label = LabelOf(descriptor);
  return webgpu_port_create_command_encoder(device, label.data, label.bytes);
}

WGPUComputePassEncoder wgpuCommandEncoderBeginComputePass(WGPUCommandEncoder encoder,
                                                          WGPUComputePassDescriptor const* descriptor) {
  const Text label = LabelOf(descriptor);
  const WGPUPassTimestampWrites* writes = descriptor == nullptr ? nullptr : descriptor->timestampWrites;
  if (writes == nullptr) return webgpu_port_begin_compute_pass(encoder, label.data, label.bytes, nullptr, 0, 0);
  return webgpu_port_begin_compute_pass(encoder, label.data, label.bytes, writes->querySet,
                                        writes->beginningOfPassWriteIndex, writes->endOfPassWriteIndex);
}

void wgpuCommandEncoderCopyBufferToBuffer(WGPUCommandEncoder encoder, WGPUBuffer source, uint64_t source_offset,
                                          WGPUBuffer destination, uint64_t destination_offset, uint64_t size) {
  webgpu_port_copy_buffer(encoder, source, static_cast<double>(source_offset), destination,
                          static_cast<double>(destination_offset), ToDouble(size));
}

void wgpuCommandEncoderResolveQuerySet(WGPUCommandEncoder encoder, WGPUQuerySet query_set, uint32_t first, uint32_t count,
                                       WGPUBuffer destination, uint64_t destination_offset) {
  webgpu_port_resolve_query_set(encoder, query_set, first, count, destination, static_cast<double>(destination_offset));
}

WGPUCommandBuffer wgpuCommandEncoderFinish(WGPUCommandEncoder encoder, WGPUCommandBufferDescriptor const* descriptor) {
  const Text label = LabelOf(descriptor);
  return webgpu_port_finish(encoder, label.data, label.bytes);
}

void wgpuQueueWriteBuffer(WGPUQueue queue, WGPUBuffer buffer, uint64_t offset, void const* data, size_t bytes) {
  webgpu_port_write_buffer(queue, buffer, static_cast<double>(offset), data, bytes);
}

WGPUFuture wgpuQueueOnSubmittedWorkDone(WGPUQueue queue, WGPUQueueWorkDoneCallbackInfo info) {
  webgpu_port::RequireSpontaneous(info.mode, "wgpuQueueOnSubmittedWorkDone");
  webgpu_port_work_done(queue, info.callback, info.userdata1, info.userdata2);
  return webgpu_port::NextFuture();
}

}  // extern "C"
