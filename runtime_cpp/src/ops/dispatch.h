// One dispatch as data: kernel, what is bound, params, number of workgroups. Owns the params' bytes. Names tensors by
// index and never a GPU object, so that ops can be tested without a GPU; program/recorder.h binds buffers to it.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels.h"
#include "ops/graph.h"

namespace gemma4::ops {

// What a storage binding refers to.
struct BindingRef {
  enum class Kind : uint8_t {
    kValues,     // tensor `index`: its values
    kScales,     // tensor `index`: the scales of a 4-bit weight
    kRopeTable,  // frequencies of the rope op `index`
    kScratch,    // scratch buffer `index` of kScratchBuffers: what one op's dispatches hand to each other
    kAbsent,     // an optional input that is not there: any 16 bytes
  };
  Kind kind = Kind::kAbsent;
  uint32_t index = 0;
  // A range of it: an offset that the device can bind at, and a multiple of 4; 0 bytes: all of it.
  uint64_t offset = 0;
  uint64_t bytes = 0;
  friend bool operator==(const BindingRef&, const BindingRef&) = default;
};

constexpr uint32_t kMaxParamsBytes = 48;

// Scratch buffers that all ops share. Their contents do not outlast the op.
constexpr uint32_t kScratchBuffers = 3;
using ScratchBytes = std::array<uint64_t, kScratchBuffers>;

struct DispatchSpec {
  const kernels::Kernel* kernel = nullptr;
  std::vector<BindingRef> bindings;  // storage bindings in the kernel's order; params follow
  std::array<uint8_t, kMaxParamsBytes> params{};
  uint32_t params_bytes = 0;  // a multiple of 16
  uint64_t groups = 0;        // before folding
  // What it needs of each scratch buffer that it binds. Of more rows on the same route never less: memory is planned for
  // the most rows of each.
  ScratchBytes scratch{};
};

template <typename Params>
DispatchSpec MakeDispatch(const kernels::Kernel& kernel, std::vector<BindingRef> bindings, const Params& params,
                          uint64_t groups) {
  static_assert(std::is_trivially_copyable_v<Params> && sizeof(Params) % 16 == 0);
  static_assert(sizeof(Params) <= kMaxParamsBytes);
  DispatchSpec spec;
  spec.kernel = &kernel;
  spec.bindings = std::move(bindings);
  std::memcpy(spec.params.data(), &params, sizeof(Params));
  spec.params_bytes = sizeof(Params);
  spec.groups = groups;
  return spec;
}

// Workgroups of a kernel that gives every element one thread.
inline uint64_t ElementGroups(const kernels::Kernel& kernel, uint64_t elements) {
  return (elements + kernel.workgroup[0] - 1) / kernel.workgroup[0];
}

}  // namespace gemma4::ops
