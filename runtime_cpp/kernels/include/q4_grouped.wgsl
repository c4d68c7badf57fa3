//! include: include/q4.wgsl

// Scales of groups of any size that 16 divides, as f16 or f32: of the kernel's own `scales` by its own `params`.
const F32_SCALES = 1u;
const HAS_BIAS = 2u;

// `unit`: which 16 columns of x.
fn scale_of(column: u32, unit: u32) -> f32 {
  let i = column * ((params.k / 16u) >> params.group_shift) + (unit >> params.group_shift);
  if (params.flags & F32_SCALES) != 0u {
    return bitcast<f32>(scales[i]);
  }
  return q4_scale(scales[i / 2u], i);
}
