//! formula: out[r, o] = bias[o] + sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group]
//! dispatch: lanes threads a block of COLUMNS columns: ceil(ceil(n / COLUMNS) / (THREADS / lanes)) groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_grouped.wgsl
//! include: include/q4_pairs.wgsl
//! variant: linear_q4_m3
//! swap: alias Rows = vec3f;
//! swap: const MORE_ROWS = 1u;
//! swap: fn rows_of(a: f32, b: f32, c: f32) -> Rows { return vec3f(a, b, c); }
//! swap: fn row_of(value: Rows, row: u32) -> f32 { return value[row]; }
//! swap: fn shuffled(value: Rows, stride: u32) -> Rows { return value; }
//! variant: linear_q4_m1_subgroup requires subgroups
//! swap: alias Rows = f32;
//! swap: const MORE_ROWS = 0u;
//! swap: fn rows_of(a: f32, b: f32, c: f32) -> Rows { return a; }
//! swap: fn row_of(value: Rows, row: u32) -> f32 { return value; }
//! swap: fn shuffled(value: Rows, stride: u32) -> Rows { return subgroupShuffleXor(value, stride); }
//! variant: linear_q4_m3_subgroup requires subgroups
//! swap: alias Rows = vec3f;
//! swap: const MORE_ROWS = 1u;
//! swap: fn rows_of(a: f32, b: f32, c: f32) -> Rows { return vec3f(a, b, c); }
//! swap: fn row_of(value: Rows, row: u32) -> f32 { return value[row]; }
//! swap: fn shuffled(value: Rows, stride: u32) -> Rows { return subgroupShuffleXor(value, stride); }

const THREADS = 128u;
const COLUMNS = 4u;

struct Params {
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  // Threads that share a column: a power of two from 4 to THREADS.
  lanes: u32,
  // Neighbours that subgroup operations reach: a power of two, 1 where there are none.
  subgroup: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> values: array<vec2u>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

//! prelude
alias Rows = f32;
const MORE_ROWS = 0u;
fn rows_of(a: f32, b: f32, c: f32) -> Rows { return a; }
fn row_of(value: Rows, row: u32) -> f32 { return value; }
fn shuffled(value: Rows, stride: u32) -> Rows { return value; }
//! end

var<workgroup> handed: array<Rows, 2u * THREADS>;

// What the thread `stride` away holds at the same place.
fn exchanged(value: Rows, stride: u32, thread: u32, place: u32) -> Rows {
  if stride < params.subgroup {
    return shuffled(value, stride);
  }
  workgroupBarrier();
  handed[place * THREADS + thread] = value;
  workgroupBarrier();
  return handed[place * THREADS + (thread ^ stride)];
}

// The sum over 16 columns of x from vector i on; what 16 + 8 adds to every code goes in first, with the other sign.
fn unit_sum(low: vec4u, high: vec4u, i: u32) -> vec4f {
  let a = x[i];
  let b = x[i + 1u];
  let c = x[i + 2u];
  let d = x[i + 3u];
  let s = (a + b) + (c + d);
  return eight(high, c, d, eight(low, a, b, vec4f(-24.0 * ((s.x + s.y) + (s.z + s.w)))));
}

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let block = linear_group(group, groups) * (THREADS / params.lanes) + thread / params.lanes;
  let lane = thread % params.lanes;
  let units = params.k / 16u;
  // Columns behind the last are those of the last, and are not written.
  let columns = min(vec4u(COLUMNS * block) + vec4u(0u, 1u, 2u, 3u), vec4u(params.n - 1u));
  let starts = columns * units;
  // Every row goes through the same additions, in explicit fma, so that one row and three give the same bits.
  var sum_0 = vec4f();
  var sum_1 = vec4f();
  var sum_2 = vec4f();
  for (var unit = lane; unit < units; unit += params.lanes) {
    let a = values[starts.x + unit];
    let b = values[starts.y + unit];
    let c = values[starts.z + unit];
    let d = values[starts.w + unit];
    let low = vec4u(a.x, b.x, c.x, d.x);
    let high = vec4u(a.y, b.y, c.y, d.y);
    let scale = vec4f(scale_of(columns.x, unit), scale_of(columns.y, unit), scale_of(columns.z, unit),
                      scale_of(columns.w, unit));
    sum_0 = fma(unit_sum(low, high, 4u * unit), scale, sum_0);
    if MORE_ROWS != 0u {
      sum_1 = fma(unit_sum(low, high, 4u * unit + params.k / 4u), scale, sum_1);
      sum_2 = fma(unit_sum(low, high, 4u * unit + params.k / 2u), scale, sum_2);
    }
  }
  let a = rows_of(sum_0.x, sum_1.x, sum_2.x);
  let b = rows_of(sum_0.y, sum_1.y, sum_2.y);
  let c = rows_of(sum_0.z, sum_1.z, sum_2.z);
  let d = rows_of(sum_0.w, sum_1.w, sum_2.w);
  // A tree over the lanes, neighbours first. After two steps each lane is left with one column.
  let odd = (thread & 1u) != 0u;
  let upper = (thread & 2u) != 0u;
  var first = select(a, c, odd) + exchanged(select(c, a, odd), 1u, thread, 0u);
  let second = select(b, d, odd) + exchanged(select(d, b, odd), 1u, thread, 1u);
  first = select(first, second, upper) + exchanged(select(second, first, upper), 2u, thread, 0u);
  for (var stride = 4u; stride < params.lanes; stride *= 2u) {
    first += exchanged(first, stride, thread, 0u);
  }
  let column = COLUMNS * block + 2u * (thread & 1u) + ((thread >> 1u) & 1u);
  if lane < COLUMNS && column < params.n {
    if (params.flags & HAS_BIAS) != 0u {
      first += Rows(bias[column]);
    }
    for (var row = 0u; row <= 2u * MORE_ROWS; row++) {
      out[row * params.n + column] = row_of(first, row);
    }
  }
}
