// Bits of numbers without their signs: ordered as the numbers' sizes are, infinity and NaN above all others.

fn largest_of(v: vec4f) -> u32 {
  let bits = bitcast<vec4u>(v) & vec4u(0x7fffffffu);
  return max(max(bits.x, bits.y), max(bits.z, bits.w));
}
