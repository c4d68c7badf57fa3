// Errors as values. Owns Status (a code and a message) and Result<T> (a value or a Status). Never throws, never aborts:
// everything that comes from the device, a file, the network or JavaScript travels through these two types.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace gemma4 {

// The numbers are part of the C ABI: an ABI function returns 0 or one of the negative values.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = -1,  // the caller's input: prompt, id, name, length, digest
  kFailedState = -2,      // the call does not fit the present state
  kOutOfMemory = -3,      // a GPU or heap allocation failed
  kDeviceLost = -4,
  kGpuError = -5,         // validation or internal error reported by WebGPU
  kCorruptData = -6,      // program or shard bytes are not what they claim
  kLimitExceeded = -7,    // the adapter or the program's context is too small
  kBadOutput = -8,        // the GPU produced a NaN or an inconsistent round
  kCancelled = -9,
  kUnhealthy = -10,       // an earlier failure latched; only a successful load or reset clears it
  kUnsupported = -11,     // no WebGPU, no adapter, unknown method
  kInternal = -12,
};

// "invalid_argument", ...: the spelling used in JSON.
const char* CodeName(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

inline Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
inline Status FailedState(std::string message) { return {Code::kFailedState, std::move(message)}; }
inline Status CorruptData(std::string message) { return {Code::kCorruptData, std::move(message)}; }
inline Status LimitExceeded(std::string message) { return {Code::kLimitExceeded, std::move(message)}; }
inline Status BadOutput(std::string message) { return {Code::kBadOutput, std::move(message)}; }
inline Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}             // NOLINT: a value is a result
  Result(Status status) : status_(std::move(status)) {      // NOLINT: an error is a result
    if (status_.ok()) status_ = Internal("a Result without a value was made from an ok Status");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace gemma4

#define GEMMA4_RESULT_JOIN2(a, b) a##b
#define GEMMA4_RESULT_JOIN(a, b) GEMMA4_RESULT_JOIN2(a, b)

// Returns from the enclosing function (which returns Status or Result<T>) when `expr` is an error.
#define GEMMA4_RETURN_IF_ERROR(expr)                                                   \
  do {                                                                                 \
    if (::gemma4::Status gemma4_status = (expr); !gemma4_status.ok()) return gemma4_status; \
  } while (false)

// GEMMA4_ASSIGN_OR_RETURN(auto x, MakeX()): binds the value of a Result<T> or returns its error.
#define GEMMA4_ASSIGN_OR_RETURN(lhs, expr) \
  GEMMA4_ASSIGN_OR_RETURN_IMPL(GEMMA4_RESULT_JOIN(gemma4_result_, __LINE__), lhs, expr)
#define GEMMA4_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(tmp).value()
