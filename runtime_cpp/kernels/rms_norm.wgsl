//! formula: out = (residual + x / sqrt(mean(x^2) + eps) * weight) * scalar over each row; absent inputs by flags
//! dispatch: one workgroup a row: rows groups
//! reference: rms_norm
//! tolerance: 4e-6
//! include: include/grid.wgsl
//! include: include/reduce.wgsl

const STEP = 256u;
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

// Four columns that lie 64 apart, asked for together; behind the row's end they are zero.
fn columns(start: u32, c: u32) -> vec4f {
  let place = vec4u(c) + vec4u(0u, 64u, 128u, 192u);
  let found = vec4f(x[start + place.x], x[start + place.y], x[start + place.z], x[start + place.w]);
  return select(vec4f(), found, place < vec4u(params.width));
}

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
  var squares = vec4f();
  for (var c = lane; c < params.width; c += STEP) {
    let value = columns(start, c);
    squares = fma(value, value, squares);
  }
  let mean = workgroup_sum(lane, (squares.x + squares.y) + (squares.z + squares.w)) / f32(params.width);
  let inverse = 1.0 / sqrt(mean + params.eps);
  var factor = 1.0;
  if (params.flags & HAS_SCALAR) != 0u {
    factor = scalar[0];
  }
  for (var first = lane; first < params.width; first += STEP) {
    let values = columns(start, first) * inverse;
    for (var i = 0u; i < 4u; i++) {
      let c = first + 64u * i;
      if c < params.width {
        var value = values[i];
        if (params.flags & HAS_WEIGHT) != 0u {
          value *= weight[c];
        }
        if (params.flags & HAS_RESIDUAL) != 0u {
          value += residual[start + c];
        }
        out[start + c] = value * factor;
      }
    }
  }
}
