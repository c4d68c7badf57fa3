//! include: include/q4.wgsl

// Scales of groups of any size that 16 divides, as f16 or f32: by the kernel's own `params`, and of the weights whose words
// its scale_word gives.
const F32_SCALES = 1u;
const HAS_BIAS = 2u;

// `unit`: which 16 columns of x.
fn scale_of(matrix: u32, column: u32, unit: u32) -> f32 {
  let i = column * ((params.k / 16u) >> params.group_shift) + (unit >> params.group_shift);
  // Without a branch, so that loads of several columns are on their way together.
  let whole = (params.flags & F32_SCALES) != 0u;
  let word = scale_word(matrix, select(i / 2u, i, whole));
  return select(q4_scale(word, i), bitcast<f32>(word), whole);
}
