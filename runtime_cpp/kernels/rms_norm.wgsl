//! formula: out = (residual + x / sqrt(mean(x^2) + eps) * weight) * scalar over each row; absent inputs by flags
//! dispatch: one workgroup a row: rows groups
//! reference: rms_norm
//! tolerance: 4e-6
//! include: include/grid.wgsl
//! include: include/norm.wgsl
//! variant: rms_norm_wide
//! swap: const LANES = 256u;
//! swap: const SIDE = 16u;

//! prelude
const LANES = 64u;
const SIDE = 8u;
//! end

struct Params {
  rows: u32,
  width: u32,
  eps: f32,
  flags: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> residual: array<f32>;
@group(0) @binding(3) var<storage, read> scalar: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(LANES)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let row = linear_group(group, groups);
  if row >= params.rows {
    return;
  }
  let start = row * params.width;
  // Asked for before the threads wait for each other; rows of the usual models have no more.
  let first = four_at(start, lane);
  let second = four_at(start, lane + STEP);
  let factor = factor_of_row();
  let inverse = inverse_of(lane, squares_of(lane, start, first.value, second.value));
  write(start, lane, joined(first, inverse, factor));
  write(start, lane + STEP, joined(second, inverse, factor));
  for (var c = lane + 2u * STEP; c < params.width; c += STEP) {
    write(start, c, joined(four_at(start, c), inverse, factor));
  }
}
