// Groups of 32 along a row: value = (nibble - 8) * scale, even columns in low nibbles, two f16 scales a word.

// Nibbles to floats without a conversion: 2^23 + nibble has the nibble in its last bits, and the difference is exact.
fn q4_floats(nibbles: vec4u) -> vec4f {
  return bitcast<vec4f>((nibbles & vec4u(15u)) | vec4u(0x4b000000u)) - 8388616.0;
}

fn q4_low(word: u32) -> vec4f {
  return q4_floats(vec4u(word) >> vec4u(0u, 4u, 8u, 12u));
}

fn q4_high(word: u32) -> vec4f {
  return q4_floats(vec4u(word) >> vec4u(16u, 20u, 24u, 28u));
}

// Scale `index` out of the word that holds it.
fn q4_scale(word: u32, index: u32) -> f32 {
  let pair = unpack2x16float(word);
  return select(pair.x, pair.y, (index & 1u) != 0u);
}
