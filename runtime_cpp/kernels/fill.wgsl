//! formula: out[i] = scalar[0] + offset
//! dispatch: sixteen vectors of 4 elements a thread: ceil(count / 4096) groups
//! reference: fill
//! tolerance: exact
//! include: include/grid.wgsl

// Of a workgroup, 16 a thread, so that neighbours in it are neighbours in memory.
const VECTORS = 1024u;

struct Params {
  count: u32,
  offset: f32,
}

@group(0) @binding(0) var<storage, read> scalar: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(2) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let first = VECTORS * linear_group(group, groups) + lane;
  let value = vec4f(scalar[0] + params.offset);
  if first - lane + VECTORS <= params.count / 4u {
    //! unroll
    for (var i = 0u; i < VECTORS; i += 64u) {
      out[first + i] = value;
    }
    return;
  }
  for (var i = first; 4u * i < params.count; i += 64u) {
    // The last vector keeps what is behind the elements.
    out[i] = select(out[i], value, vec4u(4u * i) + vec4u(0u, 1u, 2u, 3u) < vec4u(params.count));
  }
}
