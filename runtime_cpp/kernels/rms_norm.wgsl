//! formula: out = (residual + x / sqrt(mean(x^2) + eps) * weight) * scalar over each row; absent inputs by flags
//! dispatch: one workgroup a row: rows groups
//! reference: rms_norm
//! tolerance: 4e-6
//! include: include/grid.wgsl
//! include: include/reduce.wgsl

const HAS_WEIGHT = 1u;
const HAS_RESIDUAL = 2u;
const HAS_SCALAR = 4u;

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

@compute @workgroup_size(64)
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
  var squares = 0.0;
  for (var c = lane; c < params.width; c += 64u) {
    let value = x[start + c];
    squares += value * value;
  }
  let mean = workgroup_sum(lane, squares) / f32(params.width);
  let inverse = 1.0 / sqrt(mean + params.eps);
  var factor = 1.0;
  if (params.flags & HAS_SCALAR) != 0u {
    factor = scalar[0];
  }
  for (var c = lane; c < params.width; c += 64u) {
    var value = x[start + c] * inverse;
    if (params.flags & HAS_WEIGHT) != 0u {
      value *= weight[c];
    }
    if (params.flags & HAS_RESIDUAL) != 0u {
      value += residual[start + c];
    }
    out[start + c] = value * factor;
  }
}
