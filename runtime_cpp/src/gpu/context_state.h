// What callbacks may touch of a Context: it lives until the last of them has fired, whether or not the Context still
// does. Private to gpu/.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "gpu/context.h"

namespace gemma4::gpu {

struct Context::State {
  Status error;                 // the first since the last ClearError
  bool lost = false;
  bool closing = false;         // the Context is being destroyed: a loss is its own doing
  int unanswered = 0;           // popped error scopes and timestamp readbacks that have not arrived
  std::vector<std::function<void()>> on_answered;
  std::function<void(std::string, std::string)> on_lost;

  void Store(Status status) {
    if (error.ok()) error = std::move(status);
  }
  void Answered() {
    if (--unanswered > 0) return;
    for (auto& waiter : std::exchange(on_answered, {})) waiter();
  }
};

}  // namespace gemma4::gpu
