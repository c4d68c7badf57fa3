//! formula: out[r, o] = bias[o] + sum over k of x[r, k] * (nibble[o, k] - 8) * d[o, k / group], tile by tile
//! dispatch: a tile of TILE_M rows and TILE_N columns, every split of k: ceil(rows / TILE_M) * ceil(n / TILE_N) * splits groups
//! reference: linear
//! tolerance: 1e-5
//! include: include/grid.wgsl
//! include: include/q4_tile.wgsl
//! variant: linear_q4_steel
//! swap: alias Vec = vec4f; alias Cell = vec4f;
//! swap: const ROW_VECS = 2u; const TILE_K = 32u;
//! swap: fn stored(v: vec4f) -> Cell { return v; } fn loaded(c: Cell) -> Vec { return c; }
//! variant: linear_q4_steel_packed
//! swap: alias Vec = vec4f; alias Cell = vec2u; const ROW_VECS = 2u; const TILE_K = 32u;
//! swap: fn stored(v: vec4f) -> Cell { return vec2u(pack2x16float(v.xy), pack2x16float(v.zw)); }
//! swap: fn loaded(c: Cell) -> Vec { return vec4f(unpack2x16float(c.x), unpack2x16float(c.y)); }
//! variant: linear_q4_steel_f16 requires shader-f16
//! swap: alias Vec = vec4h; alias Cell = vec4h;
//! swap: const ROW_VECS = 2u; const TILE_K = 32u;
//! swap: fn stored(v: vec4f) -> Cell { return vec4h(v); } fn loaded(c: Cell) -> Vec { return c; }
//! variant: linear_q4_bk64 requires shader-f16
//! swap: alias Vec = vec4h; alias Cell = vec4h;
//! swap: const ROW_VECS = 2u; const TILE_K = 64u;
//! swap: fn stored(v: vec4f) -> Cell { return vec4h(v); } fn loaded(c: Cell) -> Vec { return c; }

// Cell: how four numbers lie in workgroup memory. Vec: what they are computed in.
//! prelude
alias Vec = vec4f; alias Cell = vec4f;
const ROW_VECS = 1u; const TILE_K = 32u;
fn stored(v: vec4f) -> Cell { return v; }
fn loaded(c: Cell) -> Vec { return c; }
//! end

// Threads stand 16 across and 8 down; each owns 4 columns and 4 * ROW_VECS rows of the tile.
const THREADS = 128u;
const ACROSS = 16u;
const DOWN = 8u;
const TILE_M = DOWN * ROW_VECS * 4u;
const TILE_N = ACROSS * 4u;
// One job fetches 4 rows by 4 columns of x, or a word each of 4 columns of weights.
const X_JOBS = TILE_M / 4u * TILE_K / 4u;
const W_JOBS = TILE_N / 4u * TILE_K / 8u;

struct Params {
  k: u32,
  n: u32,
  // log2(group / 16)
  group_shift: u32,
  flags: u32,
  rows: u32,
  // Parts of k, each with an output of its own: out[part, r, o]. One part: the whole sum, and the bias.
  splits: u32,
}

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> values: array<u32>;
@group(0) @binding(2) var<storage, read> scales: array<u32>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<uniform> params: Params;

@compute @workgroup_size(128)
fn main(
  @builtin(workgroup_id) group: vec3u,
  @builtin(num_workgroups) groups: vec3u,
  @builtin(local_invocation_index) thread: u32,
) {
  let tiles = (params.n + TILE_N - 1u) / TILE_N;
  let index = linear_group(group, groups);
  let part = index % params.splits;
  let column_0 = index / params.splits % tiles * TILE_N;
  let row_0 = index / params.splits / tiles * TILE_M;
  let blocks = (params.k + TILE_K - 1u) / TILE_K;
  let end = min((part + 1u) * ((blocks + params.splits - 1u) / params.splits) * TILE_K, params.k);
  let across = thread % ACROSS;
  let down = thread / ACROSS;
  let columns = min(vec4u(column_0 + 4u * across) + vec4u(0u, 1u, 2u, 3u), vec4u(params.n - 1u));
  // Named, not an array: what is indexed by a loop may end up in memory.
  var sum_0 = vec4f(); var sum_1 = vec4f();
  var sum_2 = vec4f(); var sum_3 = vec4f();
  var sum_4 = vec4f(); var sum_5 = vec4f();
  var sum_6 = vec4f(); var sum_7 = vec4f();
  for (var k = part * ((blocks + params.splits - 1u) / params.splits) * TILE_K; k < end; k += TILE_K) {
    // Fetched before the barrier, so that the way to memory overlaps what other threads still compute.
    var rows = mat4x4f();
    var more_rows = mat4x4f();
    if thread < X_JOBS {
      rows = x_block(thread, row_0, k);
    }
    if X_JOBS > THREADS {
      more_rows = x_block(thread + THREADS, row_0, k);
    }
    var words = vec4u();
    var scale = vec4f();
    if thread < W_JOBS {
      let at = k + 8u * down;
      let places = (columns * params.k + at) / 8u;
      words = vec4u(values[places.x], values[places.y], values[places.z], values[places.w]);
      scale = vec4f(scale_of(0u, columns.x, at / 16u), scale_of(0u, columns.y, at / 16u), scale_of(0u, columns.z, at / 16u), scale_of(0u, columns.w, at / 16u));
    }
    workgroupBarrier();
    if thread < X_JOBS {
      store_x(thread, rows);
    }
    if X_JOBS > THREADS {
      store_x(thread + THREADS, more_rows);
    }
    if thread < W_JOBS {
      store_w(thread, words, scale);
    }
    workgroupBarrier();
    var part_0 = Vec(); var part_1 = Vec();
    var part_2 = Vec(); var part_3 = Vec();
    var part_4 = Vec(); var part_5 = Vec();
    var part_6 = Vec(); var part_7 = Vec();
    for (var i = 0u; i < TILE_K; i++) {
      let w = loaded(w_tile[i * ACROSS + across]);
      let a = loaded(x_tile[i * (TILE_M / 4u) + down * ROW_VECS]);
      part_0 = fma(Vec(a.x), w, part_0);
      part_1 = fma(Vec(a.y), w, part_1);
      part_2 = fma(Vec(a.z), w, part_2);
      part_3 = fma(Vec(a.w), w, part_3);
      if ROW_VECS == 2u {
        let b = loaded(x_tile[i * (TILE_M / 4u) + down * ROW_VECS + 1u]);
        part_4 = fma(Vec(b.x), w, part_4);
        part_5 = fma(Vec(b.y), w, part_5);
        part_6 = fma(Vec(b.z), w, part_6);
        part_7 = fma(Vec(b.w), w, part_7);
      }
    }
    sum_0 += vec4f(part_0);
    sum_1 += vec4f(part_1);
    sum_2 += vec4f(part_2);
    sum_3 += vec4f(part_3);
    sum_4 += vec4f(part_4);
    sum_5 += vec4f(part_5);
    sum_6 += vec4f(part_6);
    sum_7 += vec4f(part_7);
  }
  let row = row_0 + down * 4u * ROW_VECS;
  let column = column_0 + 4u * across;
  write(part, row, column, sum_0);
  write(part, row + 1u, column, sum_1);
  write(part, row + 2u, column, sum_2);
  write(part, row + 3u, column, sum_3);
  if ROW_VECS == 2u {
    write(part, row + 4u, column, sum_4);
    write(part, row + 5u, column, sum_5);
    write(part, row + 6u, column, sum_6);
    write(part, row + 7u, column, sum_7);
  }
}
