#include "ops/check.h"

#include <cmath>

namespace gemma4::ops {

const char* DtypeName(schema::Dtype dtype) {
  switch (dtype) {
    case schema::Dtype_F32:
      return "f32";
    case schema::Dtype_I32:
      return "i32";
    case schema::Dtype_Q4:
      return "q4";
    default:
      return "unknown dtype";
  }
}

namespace {

const char* StorageName(schema::Storage storage) {
  switch (storage) {
    case schema::Storage_Weight:
      return "a weight";
    case schema::Storage_Activation:
      return "an activation";
    case schema::Storage_Cache:
      return "a cache";
    case schema::Storage_Input:
      return "an input";
    case schema::Storage_Output:
      return "an output";
    case schema::Storage_View:
      return "a donor view";
    default:
      return "of unknown storage";
  }
}

const char* RowsName(schema::Rows rows) {
  return rows == schema::Rows_Pass ? "Pass<=" : rows == schema::Rows_Tail ? "Tail<=" : "";
}

std::string RowText(const RowCount& rows) { return Text(RowsName(rows.kind), rows.max); }

}  // namespace

std::string DimsText(const Tensor& tensor) {
  std::string text = Text("[", RowsName(tensor.rows));
  for (size_t i = 0; i < tensor.dims.size(); ++i) text += Text(i == 0 ? "" : ",", tensor.dims[i]);
  return text + "]";
}

std::string FloatText(float value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-infinity" : "infinity";
  if (value == 0) return "0";
  // d.dddddddde+x: nine digits identify every f32.
  double magnitude = std::fabs(static_cast<double>(value));
  int exponent = static_cast<int>(std::floor(std::log10(magnitude)));
  uint64_t digits = static_cast<uint64_t>(std::llround(magnitude * std::pow(10.0, 8 - exponent)));
  if (digits >= 1'000'000'000) digits = (digits + 5) / 10, ++exponent;
  std::string text = ToText(digits);
  text.insert(1, ".");
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  if (exponent != 0) text += Text("e", exponent);
  return value < 0 ? "-" + text : text;
}

void Check::Fail(const std::string& what) {
  if (status_.ok()) status_ = site_.Error(what);
}

Check& Check::That(bool condition, std::string_view complaint) {
  if (!condition) Fail(std::string(complaint));
  return *this;
}

Check& Check::Dtype(const Tensor& tensor, schema::Dtype wanted) {
  if (tensor.dtype != wanted) {
    Fail(Text("tensor ", tensor.name, " is ", DtypeName(tensor.dtype), ", wanted ", DtypeName(wanted)));
  }
  return NoView(tensor);
}

Check& Check::Stored(const Tensor& tensor, schema::Storage wanted) {
  if (tensor.storage != wanted) {
    Fail(Text("tensor ", tensor.name, " is ", StorageName(tensor.storage), ", wanted ", StorageName(wanted)));
  }
  return *this;
}

Check& Check::Weight(const Tensor& tensor) {
  if (tensor.dtype == schema::Dtype_I32) Fail(Text("tensor ", tensor.name, " is i32, wanted f32 or q4"));
  if (tensor.dims.size() != 2) Fail(Text("weight ", tensor.name, " has dims ", DimsText(tensor), ", wanted [out,in]"));
  return Stored(tensor, schema::Storage_Weight);
}

Check& Check::NoView(const Tensor& tensor) {
  if (tensor.storage == schema::Storage_View) {
    Fail(Text("tensor ", tensor.name, " is a donor view, which only attention may read"));
  }
  return *this;
}

Check& Check::Dims(const Tensor& tensor, std::initializer_list<uint64_t> wanted) {
  bool equal = tensor.dims.size() == wanted.size() && tensor.rows == schema::Rows_Fixed;
  std::string text;
  size_t i = 0;
  for (const uint64_t value : wanted) {
    equal = equal && tensor.dims[i] == value;
    text += Text(i == 0 ? "" : ",", value);
    ++i;
  }
  if (!equal) Fail(Text("tensor ", tensor.name, " has dims ", DimsText(tensor), ", wanted [", text, "]"));
  return *this;
}

Check& Check::SameShape(const Tensor& tensor, const Tensor& like) {
  if (tensor.dims != like.dims || tensor.rows != like.rows) {
    Fail(Text("tensor ", tensor.name, " has dims ", DimsText(tensor), ", wanted ", DimsText(like), " as ", like.name));
  }
  return *this;
}

Check& Check::Elements(const Tensor& tensor, uint64_t wanted) {
  if (tensor.elements != wanted || tensor.rows != schema::Rows_Fixed) {
    Fail(Text("tensor ", tensor.name, " has dims ", DimsText(tensor), ", wanted ", wanted, " elements"));
  }
  return *this;
}

Check& Check::Width(const Tensor& tensor, uint64_t wanted) {
  if (tensor.dims.size() < 2 || MatrixWidth(tensor) != wanted) {
    Fail(Text("tensor ", tensor.name, " has dims ", DimsText(tensor), ", wanted width ", wanted));
  }
  return *this;
}

Check& Check::Rows(const Tensor& tensor, const RowCount& wanted) {
  if (const RowCount found = MatrixRows(tensor); found != wanted) {
    Fail(Text("tensor ", tensor.name, " has ", RowText(found), " rows, wanted ", RowText(wanted)));
  }
  return *this;
}

Check& Check::Indexes(const Tensor& vector, const RowCount& rows) {
  I32(vector);
  const RowCount found = VectorRows(vector);
  const bool is_input = vector.storage == schema::Storage_Input && vector.dims.size() == 2;
  const bool feeds_first = is_input && vector.dims[1] == site_.graph().prefill_rows &&
                           rows.kind == schema::Rows_Fixed && rows.max <= vector.dims[1];
  if (found != rows && !feeds_first) {
    Fail(Text("tensor ", vector.name, " has ", RowText(found), " entries, wanted ", RowText(rows)));
  }
  return *this;
}

Check& Check::Equal(std::string_view what, uint64_t found, uint64_t wanted) {
  if (found != wanted) Fail(Text(what, " is ", found, ", wanted ", wanted));
  return *this;
}

Check& Check::Divides(std::string_view what, uint64_t divisor, uint64_t value) {
  if (divisor == 0 || value % divisor != 0) Fail(Text(what, " is ", divisor, ", which does not divide ", value));
  return *this;
}

Check& Check::AtMost(std::string_view what, uint64_t found, uint64_t limit) {
  if (found > limit) Fail(Text(what, " is ", found, ", wanted at most ", limit));
  return *this;
}

Check& Check::Positive(std::string_view what, float value) {
  if (!std::isfinite(value) || !(value > 0)) Fail(Text(what, " is ", FloatText(value), ", wanted finite and above 0"));
  return *this;
}

Check& Check::Finite(std::string_view what, float value) {
  if (!std::isfinite(value)) Fail(Text(what, " is ", FloatText(value), ", wanted a finite number"));
  return *this;
}

}  // namespace gemma4::ops
