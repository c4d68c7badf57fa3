//! formula: out[i] = source[source_offset + i], any 4-byte type
//! dispatch: one thread a word: ceil(count / 64) groups
//! reference: copy_words
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  source_offset: u32,
}

@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

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
  out[i] = source[params.source_offset + i];
}
