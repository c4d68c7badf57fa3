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
  let inverse = inverse_of(lane, squares_of(lane, start));
  let factor = factor_of_row();
  for (var first = lane; first < params.width; first += STEP) {
    let values = columns(start, first) * inverse;
    for (var i = 0u; i < 4u; i++) {
      let c = first + LANES * i;
      if c < params.width {
        out[start + c] = joined(values[i], factor, start, c);
      }
    }
  }
}
