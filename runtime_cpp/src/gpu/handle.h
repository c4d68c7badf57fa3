// Ownership of WebGPU objects. Owns one reference to one object and its entry in the counter; never shares it. The
// counter is what proves that a teardown left nothing behind, so it outlives every Handle that names it.
#pragma once

#include <cstdint>
#include <utility>

namespace gemma4::gpu {

struct ObjectCounter {
  int32_t objects = 0;       // live WebGPU objects of every kind
  uint64_t buffer_bytes = 0; // bytes allocated in live buffers
};

template <typename T, void (*Release)(T)>
class Handle {
 public:
  Handle() = default;
  Handle(T raw, ObjectCounter* counter) : raw_(raw), counter_(counter) {
    if (raw_ != nullptr) ++counter_->objects;
  }
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)), counter_(other.counter_) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      Reset();
      raw_ = std::exchange(other.raw_, nullptr);
      counter_ = other.counter_;
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { Reset(); }

  void Reset() {
    if (raw_ == nullptr) return;
    --counter_->objects;
    Release(std::exchange(raw_, nullptr));
  }
  T get() const { return raw_; }
  explicit operator bool() const { return raw_ != nullptr; }

 private:
  T raw_ = nullptr;
  ObjectCounter* counter_ = nullptr;
};

}  // namespace gemma4::gpu
