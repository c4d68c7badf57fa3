//! include: include/q4_grouped.wgsl

// Products of packed codes with activations that to_digits has made into digits: whole numbers, four products an
// instruction. The kernel's own `digits` and `powers`, by its own `params`.

struct Codes {
  even: vec4u,
  odd: vec4u,
}

// 16 * (code - 8) of 8 columns of x for each of 4 columns of weights.
fn codes_of(a: u32, b: u32, c: u32, d: u32) -> Codes {
  let words = vec4u(a, b, c, d);
  return Codes(((words << vec4u(4u)) & vec4u(0xf0f0f0f0u)) ^ vec4u(0x80808080u),
               (words & vec4u(0xf0f0f0f0u)) ^ vec4u(0x80808080u));
}

fn dots(codes: Codes, even: u32, odd: u32, sum: vec4i) -> vec4i {
  return vec4i(dot4I8Packed(codes.even.x, even) + (dot4I8Packed(codes.odd.x, odd) + sum.x),
               dot4I8Packed(codes.even.y, even) + (dot4I8Packed(codes.odd.y, odd) + sum.y),
               dot4I8Packed(codes.even.z, even) + (dot4I8Packed(codes.odd.z, odd) + sum.z),
               dot4I8Packed(codes.even.w, even) + (dot4I8Packed(codes.odd.w, odd) + sum.w));
}

// Sums of the three digits of a row, for 4 columns of weights.
struct Digits {
  low: vec4i,
  middle: vec4i,
  high: vec4i,
}

struct Parts {
  row_0: Digits,
  row_1: Digits,
  row_2: Digits,
}

// sums + 16 columns of x, whose digits are the vectors from `place` on.
fn with_digits(first: Codes, second: Codes, place: u32, sums: Digits) -> Digits {
  let units = params.k / 32u;
  let p = digits[place];
  let q = digits[place + units];
  let r = digits[place + 2u * units];
  return Digits(dots(second, r.x, r.y, dots(first, p.x, p.y, sums.low)), dots(second, r.z, r.w, dots(first, p.z, p.w, sums.middle)),
                dots(second, q.z, q.w, dots(first, q.x, q.y, sums.high)));
}

// The same of every row, so that codes are unpacked once.
fn with_columns(first: Codes, second: Codes, place: u32, sums: Parts) -> Parts {
  let row = 6u * (params.k / 32u);
  var parts = sums;
  parts.row_0 = with_digits(first, second, place, sums.row_0);
  if MORE_ROWS != 0u {
    parts.row_1 = with_digits(first, second, row + place, sums.row_1);
    parts.row_2 = with_digits(first, second, 2u * row + place, sums.row_2);
  }
  return parts;
}

fn value_of(sums: Digits, power: f32) -> vec4f {
  return fma(vec4f(sums.high), vec4f(65536.0), vec4f(sums.low + 256 * sums.middle)) * power;
}
