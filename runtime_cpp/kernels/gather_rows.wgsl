//! formula: out[j, c] = table[index[j], c]; -1 where index[j] is outside the table
//! dispatch: one thread an element: ceil(count * width / 64) groups
//! reference: gather_rows
//! tolerance: exact
//! include: include/grid.wgsl

struct Params {
  count: u32,
  width: u32,
  table_rows: u32,
}

@group(0) @binding(0) var<storage, read> table: array<i32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read_write> out: array<i32>;
@group(0) @binding(3) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let i = linear_element(group, groups, lane);
  if i >= params.count * params.width {
    return;
  }
  // A negative index becomes a large unsigned one.
  let row = u32(index[i / params.width]);
  var value = -1;
  if row < params.table_rows {
    value = table[row * params.width + i % params.width];
  }
  out[i] = value;
}
