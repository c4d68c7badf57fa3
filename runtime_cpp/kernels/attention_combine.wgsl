//! formula: out[r, h] = sum e_s values[r, h, s] / sum e_s stats[r, h, s].sum with e_s = exp(max_s - max); no split: zeros
//! dispatch: a workgroup 16 columns of a head: rows * q_heads * ceil(head_dim / 4 / COLUMNS) groups
//! reference: attention_of_partials
//! tolerance: 2e-5
//! include: include/grid.wgsl
//! include: include/visible.wgsl
//! include: include/chunks.wgsl

// Columns are vec4s. A thread has every LANES-th split of a column, and reads STEPS of them at a time.
const COLUMNS = 16u;
const LANES = 4u;
const STEPS = 8u;

struct Params {
  rows: u32,
  q_heads: u32,
  head_dim: u32,
  window: u32,
  donor: u32,
  splits: u32,
}

@group(0) @binding(0) var<storage, read> values: array<vec4f>;
@group(0) @binding(1) var<storage, read> stats: array<vec4f>;
@group(0) @binding(2) var<storage, read> positions: array<i32>;
@group(0) @binding(3) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(4) var<uniform> params: Params;

var<workgroup> lane_stats: array<vec4f, LANES>;
var<workgroup> lane_values: array<vec4f, LANES * COLUMNS>;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) lane: u32,
) {
  let index = linear_group(group, groups);
  let columns = params.head_dim / 4u;
  let slices = (columns + COLUMNS - 1u) / COLUMNS;
  let head = index / slices;
  let row = head / params.q_heads;
  if row >= params.rows {
    return;
  }
  let range = visible_range(positions[select(row, 0u, params.donor != 0u)], params.window, params.donor);
  let chunks = chunk_range(range);
  // Splits beyond these wrote nothing.
  let count = min(u32(chunks.y - chunks.x), params.splits);
  let column = index % slices * COLUMNS + lane % COLUMNS;
  let first = lane / COLUMNS;
  var top = 0.0;
  var sum = 0.0;
  var broken = 0.0;
  var acc = vec4f();
  for (var base = first; base < count; base += LANES * STEPS) {
    var some_stats = array<vec4f, STEPS>();
    var some_values = array<vec4f, STEPS>();
    for (var i = 0u; i < STEPS; i++) {
      let split = base + i * LANES;
      if split < count && column < columns {
        some_stats[i] = stats[head * params.splits + split];
        some_values[i] = values[(head * params.splits + split) * columns + column];
      }
    }
    var largest = select(some_stats[0].x, max(top, some_stats[0].x), base != first);
    for (var i = 1u; i < STEPS; i++) {
      largest = select(largest, max(largest, some_stats[i].x), base + i * LANES < count);
    }
    let shrink = select(0.0, exp(top - largest), base != first);
    top = largest;
    sum *= shrink;
    acc *= shrink;
    for (var i = 0u; i < STEPS; i++) {
      if base + i * LANES < count {
        let weight = exp(some_stats[i].x - top);
        sum = fma(weight, some_stats[i].y, sum);
        broken = max(broken, some_stats[i].z);
        acc = fma(vec4f(weight), some_values[i], acc);
      }
    }
  }
  if lane % COLUMNS == 0u {
    lane_stats[first] = vec4f(top, sum, broken, 0.0);
  }
  lane_values[lane] = acc;
  workgroupBarrier();
  if lane >= COLUMNS || column >= columns {
    return;
  }
  let lanes = min(count, LANES);
  for (var i = 1u; i < lanes; i++) {
    top = max(top, lane_stats[i].x);
  }
  sum = 0.0;
  acc = vec4f();
  for (var i = 0u; i < lanes; i++) {
    let weight = exp(lane_stats[i].x - top);
    sum = fma(weight, lane_stats[i].y, sum);
    broken = max(broken, lane_stats[i].z);
    acc = fma(vec4f(weight), lane_values[i * COLUMNS + lane], acc);
  }
  var result = acc / select(sum, 1.0, lanes == 0u);
  if broken != 0.0 {
    // An infinite or NaN score must not become a plausible row.
    result = vec4f(bitcast<f32>(0x7fc00000u | u32(broken)));
  }
  out[head * columns + column] = result;
}
