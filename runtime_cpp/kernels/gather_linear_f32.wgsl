//! formula: out[j] = sum over k of weight[ids[j], k] * y[k]; -infinity for a bad id, nothing for one of another part
//! dispatch: one thread an output: ceil(count / 64) groups
//! reference: gather_linear
//! tolerance: 1e-5
//! include: include/grid.wgsl

const MINUS_INFINITY = 0xff800000u;

struct Params {
  count: u32,
  k: u32,
  rows: u32,
  // Of these rows the ones that are bound: first .. first + held - 1.
  first: u32,
  held: u32,
}

@group(0) @binding(0) var<storage, read> y: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> ids: array<i32>;
// Bits of floats: WGSL has no literal for infinity.
@group(0) @binding(3) var<storage, read_write> out: array<u32>;
@group(0) @binding(4) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.count {
    return;
  }
  // A negative id becomes a large unsigned one, and so does the row of an id before the part.
  let id = u32(ids[i]);
  let row = id - params.first;
  if row >= params.held {
    if id >= params.rows && params.first == 0u {
      out[i] = MINUS_INFINITY;
    }
    return;
  }
  let b = row * params.k;
  let whole = params.k & ~3u;
  var sums = vec4f();
  for (var k = 0u; k < whole; k += 4u) {
    sums += vec4f(y[k], y[k + 1u], y[k + 2u], y[k + 3u]) *
      vec4f(weight[b + k], weight[b + k + 1u], weight[b + k + 2u], weight[b + k + 3u]);
  }
  var total = (sums.x + sums.y) + (sums.z + sums.w);
  for (var k = whole; k < params.k; k++) {
    total += y[k] * weight[b + k];
  }
  out[i] = bitcast<u32>(total);
}
