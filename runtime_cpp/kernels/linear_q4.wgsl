//! formula: out[r, first + o] = sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group]; k is a multiple of group
//! dispatch: one thread an output: ceil(rows * n / 64) groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_grouped.wgsl

struct Params {
  rows: u32,
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  // The columns of out, of stride in a row, that these rows of the weight make.
  first: u32,
  stride: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<uniform> params: Params;

fn scale_word(matrix: u32, i: u32) -> u32 { return scales[i]; }

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.rows * params.n {
    return;
  }
  let column = i % params.n;
  let first_word = column * (params.k / 8u);
  var a = (i / params.n) * params.k;
  var total = 0.0;
  for (var g = 0u; g < params.k / 32u; g++) {
    var sums = vec4f();
    for (var w = 0u; w < 4u; w++) {
      let word = values[first_word + 4u * g + w];
      sums += vec4f(x[a], x[a + 1u], x[a + 2u], x[a + 3u]) * q4_low(word);
      sums += vec4f(x[a + 4u], x[a + 5u], x[a + 6u], x[a + 7u]) * q4_high(word);
      a += 8u;
    }
    total += ((sums.x + sums.y) + (sums.z + sums.w)) * scale_of(0u, column, 2u * g);
  }
  out[(i / params.n) * params.stride + params.first + i % params.n] = total;
}
