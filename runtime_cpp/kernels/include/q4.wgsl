// Groups of 32 along a row: value = (nibble - 8) * scale, even columns in low nibbles, two f16 scales a word.

fn q4_low(word: u32) -> vec4f {
  return vec4f((vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u)) - 8.0;
}

fn q4_high(word: u32) -> vec4f {
  return vec4f((vec4u(word) >> vec4u(16u, 20u, 24u, 28u)) & vec4u(15u)) - 8.0;
}

// Scale `index` out of the word that holds it.
fn q4_scale(word: u32, index: u32) -> f32 {
  let pair = unpack2x16float(word);
  return select(pair.x, pair.y, (index & 1u) != 0u);
}
