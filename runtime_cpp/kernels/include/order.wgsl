// Floats as integers, because a shader may be compiled as if NaN and infinity did not exist.

fn is_nan_bits(bits: u32) -> bool {
  return (bits & 0x7fffffffu) > 0x7f800000u;
}

// Ascending order of the float: every NaN on top and equal, -0 equal to +0, subnormals kept apart.
fn order_key(bits: u32) -> u32 {
  if is_nan_bits(bits) {
    return 0xffffffffu;
  }
  if (bits & 0x7fffffffu) == 0u {
    return 0x80000000u;
  }
  return select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u);
}

// A float with that key: +0 for both zeros, the quiet NaN for every NaN.
fn bits_of_key(key: u32) -> u32 {
  if key == 0xffffffffu {
    return 0x7fc00000u;
  }
  return select(~key, key & 0x7fffffffu, (key & 0x80000000u) != 0u);
}
