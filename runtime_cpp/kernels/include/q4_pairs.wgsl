// Products of activations with packed codes, for 4 columns of weights at once, without turning integers into floats.

// 16 + two codes of each of 4 columns: as f16 whose highest mantissa bits are the code, at bits 6 and 22 of a word.
// Widening f16 is one cheap instruction on a GPU, unlike turning integers into floats.
fn sixteen_and(words: vec4u) -> array<vec4f, 2> {
  let pairs = (words & vec4u(0x03c003c0u)) | vec4u(0x4c004c00u);
  let a = unpack2x16float(pairs.x);
  let b = unpack2x16float(pairs.y);
  let c = unpack2x16float(pairs.z);
  let d = unpack2x16float(pairs.w);
  return array(vec4f(a.x, b.x, c.x, d.x), vec4f(a.y, b.y, c.y, d.y));
}

// part + x[0..7] times 16 + the 8 codes of a word, for 4 columns at once: codes 0, 4, 1, 5, 2, 6, 3, 7.
fn eight(words: vec4u, a: vec4f, b: vec4f, part: vec4f) -> vec4f {
  let x = sixteen_and(words << vec4u(6u));
  let y = sixteen_and(words << vec4u(2u));
  let z = sixteen_and(words >> vec4u(2u));
  let w = sixteen_and(words >> vec4u(6u));
  var sum = fma(vec4f(b.x), x[1], fma(vec4f(a.x), x[0], part));
  sum = fma(vec4f(b.y), y[1], fma(vec4f(a.y), y[0], sum));
  sum = fma(vec4f(b.z), z[1], fma(vec4f(a.z), z[0], sum));
  return fma(vec4f(b.w), w[1], fma(vec4f(a.w), w[0], sum));
}
