//! include: include/order.wgsl

// tanh that is finite for every finite input, keeps NaN, and has no cancellation near zero.
fn stable_tanh(x: f32) -> f32 {
  if is_nan_bits(bitcast<u32>(x)) {
    return x;
  }
  let size = abs(x);
  if size < 0.25 {
    // Taylor series; the next term is below 1e-8 of the value.
    let s = x * x;
    return x * (1.0 + s * (-1.0 / 3.0 + s * (2.0 / 15.0 + s * (-17.0 / 315.0 + s * (62.0 / 2835.0)))));
  }
  // Beyond 10 the quotient is 1 in f32.
  let e = exp(-2.0 * min(size, 10.0));
  let t = (1.0 - e) / (1.0 + e);
  return select(t, -t, x < 0.0);
}

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
fn gelu_tanh(x: f32) -> f32 {
  // Clamped where tanh is already 1, so that the cube stays finite.
  let c = clamp(x, -16.0, 16.0);
  return 0.5 * x * (1.0 + stable_tanh(0.7978845608028654 * (c + 0.044715 * c * c * c)));
}
