// The seam between the two halves of the port. The C++ half (this folder) reads the structs of <webgpu/webgpu.h> and hands
// over scalars and flat arrays; the JavaScript half (library_webgpu_port.js) owns the browser's objects. A WGPU handle is
// the number of an entry in the JavaScript object table and never the address of anything.
//
// Conventions: a text is a pointer and its length in bytes; sizes and offsets of 64 bits travel as doubles, which are
// exact up to 2^53 (the largest number that the browser API accepts), with kWhole for "up to the end"; an absent limit is
// kWhole too. Functions of the C API whose arguments are scalars already (wgpuBufferUnmap, wgpu*Release, ...) have no C++
// part: the library defines them itself.
#ifndef WEBGPU_PORT_IMPORTS_H_
#define WEBGPU_PORT_IMPORTS_H_

#include <webgpu/webgpu.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

static_assert(sizeof(void*) == 4, "the port passes handles and pointers as 32-bit numbers");

namespace webgpu_port {

inline constexpr double kWhole = -1.0;

// What a callback is for: the first argument of webgpu_port_call_back, the same numbers in library_webgpu_port.js.
enum class CallbackKind : uint32_t {
  kRequestAdapter = 0,
  kRequestDevice = 1,
  kDeviceLost = 2,
  kUncapturedError = 3,
  kPopErrorScope = 4,
  kCreateComputePipeline = 5,
  kMapBuffer = 6,
  kWorkDone = 7,
};

// A WGPUStringView with its length known; the null view has no bytes and a null pointer.
struct Text {
  const char* data;
  size_t bytes;
};

inline Text ToText(WGPUStringView view) {
  if (view.data == nullptr) return {nullptr, 0};
  return {view.data, view.length == WGPU_STRLEN ? std::strlen(view.data) : view.length};
}

inline double ToDouble(uint64_t value) { return value == UINT64_MAX ? kWhole : static_cast<double>(value); }

// No future can be waited for here (wgpuInstanceWaitAny does not link), so the number only has to be unlike the null
// future's and unlike the others'.
WGPUFuture NextFuture();

// Stops the module when a caller asks for a completion that the port cannot give: only spontaneous callbacks exist in a
// browser without suspending the module.
void RequireSpontaneous(WGPUCallbackMode mode, const char* function);

}  // namespace webgpu_port

extern "C" {

// Stops the module: `function` was asked for something outside the subset.
[[noreturn]] void webgpu_port_abort(const char* function, const char* reason);

WGPUInstance webgpu_port_create_instance();
void webgpu_port_request_adapter(uint32_t power_preference, uint32_t feature_level, uint32_t force_fallback,
                                 WGPURequestAdapterCallback callback, void* userdata1, void* userdata2);

// Returns a malloc'ed block of four NUL-terminated texts (vendor, architecture, device, description), or null when memory
// is out; numbers receives {is fallback adapter, smallest subgroup, largest subgroup}.
char* webgpu_port_adapter_info(WGPUAdapter adapter, uint32_t* numbers);
// Limits in the order of kLimits in adapter.cc; a limit that the browser does not know reads kWhole.
void webgpu_port_adapter_limits(WGPUAdapter adapter, double* limits);
void webgpu_port_device_limits(WGPUDevice device, double* limits);

// callbacks: {callback, userdata1, userdata2} three times: of the request, of the device loss, of uncaptured errors.
void webgpu_port_request_device(WGPUAdapter adapter, const char* label, size_t label_bytes, const char* queue_label,
                                size_t queue_label_bytes, const WGPUFeatureName* features, size_t feature_count,
                                const double* limits, const uintptr_t* callbacks);
void webgpu_port_pop_error_scope(WGPUDevice device, WGPUPopErrorScopeCallback callback, void* userdata1, void* userdata2);

WGPUBuffer webgpu_port_create_buffer(WGPUDevice device, const char* label, size_t label_bytes, uint32_t usage, double size,
                                     uint32_t mapped_at_creation);
void webgpu_port_map_buffer(WGPUBuffer buffer, uint32_t mode, size_t offset, size_t size, WGPUBufferMapCallback callback,
                            void* userdata1, void* userdata2);
WGPUShaderModule webgpu_port_create_shader_module(WGPUDevice device, const char* label, size_t label_bytes, const char* code,
                                                  size_t code_bytes);
// entries: {binding, visibility, buffer binding type, has dynamic offset, smallest binding size} each.
WGPUBindGroupLayout webgpu_port_create_bind_group_layout(WGPUDevice device, const char* label, size_t label_bytes,
                                                         const double* entries, size_t entry_count);
// entries: {binding, buffer, offset, size} each.
WGPUBindGroup webgpu_port_create_bind_group(WGPUDevice device, const char* label, size_t label_bytes,
                                            WGPUBindGroupLayout layout, const double* entries, size_t entry_count);
WGPUPipelineLayout webgpu_port_create_pipeline_layout(WGPUDevice device, const char* label, size_t label_bytes,
                                                      const WGPUBindGroupLayout* layouts, size_t layout_count);
// A null layout asks for the automatic one, a null entry_point for the module's only one.
void webgpu_port_create_compute_pipeline(WGPUDevice device, const char* label, size_t label_bytes, WGPUPipelineLayout layout,
                                         WGPUShaderModule module, const char* entry_point, size_t entry_point_bytes,
                                         WGPUCreateComputePipelineAsyncCallback callback, void* userdata1, void* userdata2);
WGPUQuerySet webgpu_port_create_query_set(WGPUDevice device, const char* label, size_t label_bytes, uint32_t type,
                                          uint32_t count);

WGPUCommandEncoder webgpu_port_create_command_encoder(WGPUDevice device, const char* label, size_t label_bytes);
// A null query_set means no timestamps; an index of WGPU_QUERY_SET_INDEX_UNDEFINED none at that end of the pass.
WGPUComputePassEncoder webgpu_port_begin_compute_pass(WGPUCommandEncoder encoder, const char* label, size_t label_bytes,
                                                      WGPUQuerySet query_set, uint32_t begin_index, uint32_t end_index);
void webgpu_port_copy_buffer(WGPUCommandEncoder encoder, WGPUBuffer source, double source_offset, WGPUBuffer destination,
                             double destination_offset, double size);
void webgpu_port_resolve_query_set(WGPUCommandEncoder encoder, WGPUQuerySet query_set, uint32_t first, uint32_t count,
                                   WGPUBuffer destination, double destination_offset);
WGPUCommandBuffer webgpu_port_finish(WGPUCommandEncoder encoder, const char* label, size_t label_bytes);

void webgpu_port_write_buffer(WGPUQueue queue, WGPUBuffer buffer, double offset, const void* data, size_t bytes);
void webgpu_port_work_done(WGPUQueue queue, WGPUQueueWorkDoneCallback callback, void* userdata1, void* userdata2);

}  // extern "C"

#endif  // WEBGPU_PORT_IMPORTS_H_
