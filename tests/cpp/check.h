// The test cases of the host tests and their checks. A case runs to its end: a failed check is printed with its place
// and both values and the case goes on. Owns the list of cases; the one place where registration at start-up is wanted.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/text.h"

namespace gemma4::test {

struct Case {
  const char* name;
  void (*body)();
};

std::vector<Case>& Cases();
void Failed(const char* file, int line, const std::string& what);

struct Register {
  Register(const char* name, void (*body)()) { Cases().push_back({name, body}); }
};

template <typename T>
std::string Show(const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::is_integral_v<T>) {
    return Text(value);
  } else if constexpr (std::is_enum_v<T>) {
    return Text(static_cast<int64_t>(value));
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    return Text("'", std::string_view(value), "'");
  } else {
    return "(a value)";
  }
}

template <typename A, typename B>
void Equal(const char* file, int line, const char* text, const A& found, const B& wanted) {
  if (!(found == wanted)) Failed(file, line, Text(text, " is ", Show(found), ", wanted ", Show(wanted)));
}

// The status is an error and its message has every part.
void Refused(const char* file, int line, const Status& status, std::vector<std::string> parts);

// Numbers without a pattern that are the same on every run (xorshift64*).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed | 1) {}
  uint64_t Next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 2685821657736338717ull;
  }
  uint64_t Below(uint64_t bound) { return Next() % bound; }

 private:
  uint64_t state_;
};

// Files below the folder that the runner was given.
std::vector<uint8_t> ReadFile(const std::string& path);
std::string DataPath(std::string_view name);
// Soak runs look at every byte, ordinary ones at every n-th.
bool Soak();

}  // namespace gemma4::test

#define GEMMA4_TEST(name)                                              \
  static void name();                                                  \
  static const ::gemma4::test::Register register_##name(#name, &name); \
  static void name()

#define CHECK(condition) \
  ((condition) ? void() : ::gemma4::test::Failed(__FILE__, __LINE__, #condition " does not hold"))
#define CHECK_EQ(found, wanted) ::gemma4::test::Equal(__FILE__, __LINE__, #found, found, wanted)
#define CHECK_OK(status)                                                                             \
  do {                                                                                               \
    const ::gemma4::Status checked = (status);                                                       \
    if (!checked.ok()) ::gemma4::test::Failed(__FILE__, __LINE__, #status ": " + checked.message()); \
  } while (false)
#define CHECK_REFUSED(status, ...) ::gemma4::test::Refused(__FILE__, __LINE__, status, {__VA_ARGS__})
