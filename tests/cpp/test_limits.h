// Device limits for tests that have no device.
#pragma once

#include "gpu/context.h"

namespace gemma4::test {

// What a large adapter grants.
inline gpu::Limits LargeLimits() {
  gpu::Limits limits;
  limits.max_buffer_bytes = uint64_t{4} << 30;
  limits.max_storage_binding_bytes = (uint64_t{4} << 30) - 4;
  limits.max_uniform_binding_bytes = 65536;
  limits.max_storage_buffers_per_stage = 10;
  limits.max_workgroup_size_x = 256;
  limits.max_workgroup_size_y = 256;
  limits.max_workgroup_size_z = 64;
  limits.max_invocations_per_workgroup = 256;
  limits.max_workgroup_storage_bytes = 16384;
  return limits;
}

}  // namespace gemma4::test
