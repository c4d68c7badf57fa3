//! include: include/q4_grouped.wgsl

// Products of packed codes with activations that to_digits has made into digits: whole numbers, four products an
// instruction. The kernel's own `digits` and `powers`, by its own `params`.

struct Codes {
  even: vec4u,
  odd: vec4u,
}

// 16 * (code - 8) of 8 columns of x for each of 4 columns of weights.
fn codes_of(words: vec4u) -> Codes {
  return Codes(((words << vec4u(4u)) & vec4u(0xf0f0f0f0u)) ^ vec4u(0x80808080u),
               (words & vec4u(0xf0f0f0f0u)) ^ vec4u(0x80808080u));
}

fn dots(codes: Codes, even: u32, odd: u32, sum: vec4i) -> vec4i {
  return vec4i(dot4I8Packed(codes.even.x, even) + (dot4I8Packed(codes.odd.x, odd) + sum.x),
               dot4I8Packed(codes.even.y, even) + (dot4I8Packed(codes.odd.y, odd) + sum.y),
               dot4I8Packed(codes.even.z, even) + (dot4I8Packed(codes.odd.z, odd) + sum.z),
               dot4I8Packed(codes.even.w, even) + (dot4I8Packed(codes.odd.w, odd) + sum.w));
}

fn unit_sum(a: vec4u, b: vec4u, c: vec4u, d: vec4u, row: u32, unit: u32) -> vec4f {
  let units = params.k / 32u;
  let place = row * 6u * units + unit;
  let p = digits[place];
  let q = digits[place + units];
  let r = digits[place + 2u * units];
  let s = digits[place + 3u * units];
  let t = digits[place + 4u * units];
  let u = digits[place + 5u * units];
  let first = codes_of(vec4u(a.x, b.x, c.x, d.x));
  let second = codes_of(vec4u(a.y, b.y, c.y, d.y));
  let third = codes_of(vec4u(a.z, b.z, c.z, d.z));
  let fourth = codes_of(vec4u(a.w, b.w, c.w, d.w));
  let low = dots(fourth, u.x, u.y, dots(third, s.x, s.y, dots(second, r.x, r.y, dots(first, p.x, p.y, vec4i()))));
  let middle = dots(fourth, u.z, u.w, dots(third, s.z, s.w, dots(second, r.z, r.w, dots(first, p.z, p.w, vec4i()))));
  let high = dots(fourth, t.z, t.w, dots(third, t.x, t.y, dots(second, q.z, q.w, dots(first, q.x, q.y, vec4i()))));
  return fma(vec4f(high), vec4f(65536.0), vec4f(low + 256 * middle)) * powers[row * units + unit];
}
