// Text for messages and JSON. Owns string joining and a small JSON writer; no streams and no printf (both are large in a
// WASM module), no parsing. JSON output is one line, keys in the order they were written, strings escaped per RFC 8259.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace gemma4 {

std::string ToText(int64_t value);
std::string ToText(uint64_t value);

namespace text_internal {
inline void Append(std::string& out, std::string_view piece) { out.append(piece); }
template <typename T>
  requires std::is_integral_v<T>
void Append(std::string& out, T value) {
  if constexpr (std::is_signed_v<T>) {
    out += ToText(static_cast<int64_t>(value));
  } else {
    out += ToText(static_cast<uint64_t>(value));
  }
}
}  // namespace text_internal

// Text("tensor ", name, ": found ", n, " bytes, wanted ", m)
template <typename... Pieces>
std::string Text(const Pieces&... pieces) {
  std::string out;
  (text_internal::Append(out, pieces), ...);
  return out;
}

// JsonWriter w; w.BeginObject(); w.Key("n").Number(3); w.EndObject(); w.Take();
class JsonWriter {
 public:
  JsonWriter& BeginObject();
  JsonWriter& EndObject();
  JsonWriter& BeginArray();
  JsonWriter& EndArray();
  JsonWriter& Key(std::string_view key);
  JsonWriter& String(std::string_view value);  // invalid UTF-8 becomes U+FFFD
  JsonWriter& Number(int64_t value);
  JsonWriter& Number(uint64_t value);
  JsonWriter& Number(int32_t value) { return Number(static_cast<int64_t>(value)); }
  JsonWriter& Number(uint32_t value) { return Number(static_cast<uint64_t>(value)); }
  JsonWriter& Bool(bool value);
  std::string Take() { return std::move(out_); }

 private:
  void Separate();
  std::string out_;
  bool after_value_ = false;
};

}  // namespace gemma4
