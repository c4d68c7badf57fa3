//! include: include/q4.wgsl

// Scales of groups of any size that 16 divides, as f16 or f32: by the kernel's own `params`, and of the weights whose words
// its scale_word gives.
const F32_SCALES = 1u;
const HAS_BIAS = 2u;

// `unit`: which 16 columns of x.
fn scale_of(matrix: u32, column: u32, unit: u32) -> f32 {
  let i = column * ((params.k / 16u) >> params.group_shift) + (unit >> params.group_shift);
  if (params.flags & F32_SCALES) != 0u {
    return bitcast<f32>(scale_word(matrix, i));
  }
  return q4_scale(scale_word(matrix, i / 2u), i);
}
