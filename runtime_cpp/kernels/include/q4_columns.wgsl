//! include: include/q4_grouped.wgsl
//! include: include/q4_pairs.wgsl
//! include: include/lane_tree.wgsl

// Products of one or three rows of x with blocks of 4 columns of a 4-bit weight; the lanes of a block share its k. The kernel
// names x and params, which weight's words and scales (words_at, scale_word), and MORE_ROWS.

// The sum over 16 columns of x from vector i on; what 16 + 8 adds to every code goes in first, with the other sign.
fn unit_sum(low: vec4u, high: vec4u, i: u32) -> vec4f {
  let a = x[i];
  let b = x[i + 1u];
  let c = x[i + 2u];
  let d = x[i + 3u];
  let s = (a + b) + (c + d);
  return eight(high, c, d, eight(low, a, b, vec4f(-24.0 * ((s.x + s.y) + (s.z + s.w)))));
}

// All threads of the workgroup call it.
fn column_sum(matrix: u32, n: u32, lanes: u32, block: u32, thread: u32) -> Rows {
  let units = params.k / 16u;
  // Columns behind the last are those of the last, and are not written.
  let columns = min(vec4u(COLUMNS * block) + vec4u(0u, 1u, 2u, 3u), vec4u(n - 1u));
  let starts = columns * units;
  // Every row goes through the same additions, in explicit fma, so that one row and three give the same bits.
  var sum_0 = vec4f();
  var sum_1 = vec4f();
  var sum_2 = vec4f();
  for (var unit = thread % lanes; unit < units; unit += lanes) {
    let a = words_at(matrix, starts.x + unit);
    let b = words_at(matrix, starts.y + unit);
    let c = words_at(matrix, starts.z + unit);
    let d = words_at(matrix, starts.w + unit);
    let low = vec4u(a.x, b.x, c.x, d.x);
    let high = vec4u(a.y, b.y, c.y, d.y);
    let scale = vec4f(scale_of(matrix, columns.x, unit), scale_of(matrix, columns.y, unit),
                      scale_of(matrix, columns.z, unit), scale_of(matrix, columns.w, unit));
    sum_0 = fma(unit_sum(low, high, 4u * unit), scale, sum_0);
    if MORE_ROWS != 0u {
      sum_1 = fma(unit_sum(low, high, 4u * unit + params.k / 4u), scale, sum_1);
      sum_2 = fma(unit_sum(low, high, 4u * unit + params.k / 2u), scale, sum_2);
    }
  }
  return tree_sum(rows_of(sum_0.x, sum_1.x, sum_2.x), rows_of(sum_0.y, sum_1.y, sum_2.y), rows_of(sum_0.z, sum_1.z, sum_2.z),
                  rows_of(sum_0.w, sum_1.w, sum_2.w), lanes, thread);
}
