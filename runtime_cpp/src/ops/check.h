// Shape checks of one op. Owns the first failure, which names the op, the tensor and both values; later checks of the
// same op are then without effect. Never looks at attributes' meaning: each op's own file does.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "ops/site.h"

namespace gemma4::ops {

class Check {
 public:
  explicit Check(const Site& site) : site_(site) {}

  Check& F32(const Tensor& tensor) { return Dtype(tensor, schema::Dtype_F32); }
  Check& I32(const Tensor& tensor) { return Dtype(tensor, schema::Dtype_I32); }
  Check& Stored(const Tensor& tensor, schema::Storage wanted);
  Check& Weight(const Tensor& tensor);  // F32 or 4-bit, [out, in], a weight
  Check& NoView(const Tensor& tensor);
  // All dimensions equal those listed.
  Check& Dims(const Tensor& tensor, std::initializer_list<uint64_t> wanted);
  Check& SameShape(const Tensor& tensor, const Tensor& like);  // dims and row kind
  Check& Elements(const Tensor& tensor, uint64_t wanted);
  Check& Width(const Tensor& tensor, uint64_t wanted);        // the last dimension
  Check& Rows(const Tensor& tensor, const RowCount& wanted);  // as a matrix
  // An index vector has one entry a row of `rows`. A program input may also feed its first entries to a fixed count.
  Check& Indexes(const Tensor& vector, const RowCount& rows);
  Check& Equal(std::string_view what, uint64_t found, uint64_t wanted);
  Check& Divides(std::string_view what, uint64_t divisor, uint64_t value);
  Check& AtMost(std::string_view what, uint64_t found, uint64_t limit);
  Check& Positive(std::string_view what, float value);  // finite and above zero
  Check& Finite(std::string_view what, float value);
  Check& That(bool condition, std::string_view complaint);

  Status Take() { return std::move(status_); }

 private:
  Check& Dtype(const Tensor& tensor, schema::Dtype wanted);
  void Fail(const std::string& what);
  const Site& site_;
  Status status_;
};

const char* DtypeName(schema::Dtype dtype);
std::string DimsText(const Tensor& tensor);  // "[Pass<=512,1536]"
std::string FloatText(float value);          // enough digits to tell two near values apart; "NaN", "infinity"

}  // namespace gemma4::ops
