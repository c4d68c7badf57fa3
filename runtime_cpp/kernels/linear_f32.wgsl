//! formula: out[r, first + o] = sum over k of x[r, k] * weight[o, k]
//! dispatch: one thread an output: ceil(rows * n / 64) groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl

struct Params {
  rows: u32,
  k: u32,
  n: u32,
  // The columns of out, of stride in a row, that these rows of the weight make.
  first: u32,
  stride: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> params: Params;

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
  let a = (i / params.n) * params.k;
  let b = (i % params.n) * params.k;
  // Four partial sums, whatever the number of rows: a row's bits never depend on the rows beside it.
  let whole = params.k & ~3u;
  var sums = vec4f();
  for (var k = 0u; k < whole; k += 4u) {
    sums += vec4f(x[a + k], x[a + k + 1u], x[a + k + 2u], x[a + k + 3u]) *
      vec4f(weight[b + k], weight[b + k + 1u], weight[b + k + 2u], weight[b + k + 3u]);
  }
  var total = (sums.x + sums.y) + (sums.z + sums.w);
  for (var k = whole; k < params.k; k++) {
    total += x[a + k] * weight[b + k];
  }
  out[(i / params.n) * params.stride + params.first + i % params.n] = total;
}
