// Small conversions between WebGPU's C types and ours, and one-shot callbacks. Owns nothing.
#pragma once

#include <webgpu/webgpu.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace gemma4::gpu {

inline WGPUStringView ToView(std::string_view text) { return {text.data(), text.size()}; }

inline std::string FromView(WGPUStringView view) {
  if (view.data == nullptr) return {};
  return view.length == WGPU_STRLEN ? std::string(view.data) : std::string(view.data, view.length);
}

// The closure of a callback that WebGPU calls exactly once: Arm moves it to the heap, Fire brings it back and frees it.
template <typename Closure>
void* Arm(Closure closure) {
  return new Closure(std::move(closure));
}
template <typename Closure>
Closure Disarm(void* userdata) {
  auto* stored = static_cast<Closure*>(userdata);
  Closure closure = std::move(*stored);
  delete stored;
  return closure;
}

}  // namespace gemma4::gpu
