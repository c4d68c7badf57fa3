// Asks the bits, because a shader may be compiled as if NaN and infinity did not exist.

fn is_not_finite(bits: u32) -> bool {
  return (bits & 0x7f800000u) == 0x7f800000u;
}
