#include "base/result.h"

namespace gemma4 {

const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid_argument";
    case Code::kFailedState: return "failed_state";
    case Code::kOutOfMemory: return "out_of_memory";
    case Code::kDeviceLost: return "device_lost";
    case Code::kGpuError: return "gpu_error";
    case Code::kCorruptData: return "corrupt_data";
    case Code::kLimitExceeded: return "limit_exceeded";
    case Code::kBadOutput: return "bad_output";
    case Code::kCancelled: return "cancelled";
    case Code::kUnhealthy: return "unhealthy";
    case Code::kUnsupported: return "unsupported";
    case Code::kInternal: return "internal";
  }
  return "unknown";
}

}  // namespace gemma4
