//! formula: match = leading drafts equal to greedy, bonus = greedy[match]; flag 0: no drafts (-1), match 0, last row
//! dispatch: one group
//! reference: accept
//! tolerance: exact

struct Params {
  rows: u32,
}

@group(0) @binding(0) var<storage, read> flag: array<i32>;
@group(0) @binding(1) var<storage, read> draft_0: array<i32>;
@group(0) @binding(2) var<storage, read> draft_1: array<i32>;
@group(0) @binding(3) var<storage, read> greedy: array<i32>;
@group(0) @binding(4) var<storage, read_write> candidates: array<i32>;
@group(0) @binding(5) var<storage, read_write> target_greedy: array<i32>;
@group(0) @binding(6) var<storage, read_write> match_count: array<i32>;
@group(0) @binding(7) var<storage, read_write> bonus: array<i32>;
@group(0) @binding(8) var<uniform> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(local_invocation_index) lane: u32) {
  if lane != 0u {
    return;
  }
  var drafts = vec2i(-1);
  var tokens = vec3i(greedy[params.rows - 1u]);
  var matched = 0;
  if flag[0] != 0 {
    drafts = vec2i(draft_0[0], draft_1[0]);
    tokens = vec3i(greedy[0], greedy[1], greedy[2]);
    if drafts.x == tokens.x {
      matched = select(1, 2, drafts.y == tokens.y);
    }
  }
  candidates[0] = drafts.x;
  candidates[1] = drafts.y;
  target_greedy[0] = tokens.x;
  target_greedy[1] = tokens.y;
  target_greedy[2] = tokens.z;
  match_count[0] = matched;
  bonus[0] = tokens[matched];
}
