// Sums of blocks of 4 columns over the lanes that share a block. The kernel names its params, and the form of its rows: Rows,
// rows_of, row_of, shuffled.

const THREADS = 128u;
const COLUMNS = 4u;

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

// The column of a block whose sum a thread is left with, if it is one of the block's first 4.
fn column_of(block: u32, thread: u32) -> u32 {
  return COLUMNS * block + 2u * (thread & 1u) + ((thread >> 1u) & 1u);
}

// The sum over all lanes of one column's rows; each of a block's first 4 lanes gets another column. a..d: what this thread
// has of the block's columns. `lanes`: threads that share a column, a power of two from 4 to THREADS. All threads of the
// workgroup call it.
fn tree_sum(a: Rows, b: Rows, c: Rows, d: Rows, lanes: u32, thread: u32) -> Rows {
  // Neighbours first. After two steps each lane is left with one column.
  let odd = (thread & 1u) != 0u;
  let upper = (thread & 2u) != 0u;
  var first = select(a, c, odd) + exchanged(select(c, a, odd), 1u, thread, 0u);
  let second = select(b, d, odd) + exchanged(select(d, b, odd), 1u, thread, 1u);
  first = select(first, second, upper) + exchanged(select(second, first, upper), 2u, thread, 0u);
  var stride = 4u;
  for (; stride < lanes && stride < max(params.subgroup, lanes / 4u); stride *= 2u) {
    first += exchanged(first, stride, thread, 0u);
  }
  // What is left, two or four sums, goes over memory at once, in the additions of further steps.
  if stride < lanes {
    workgroupBarrier();
    handed[thread] = first;
    workgroupBarrier();
    first += handed[thread ^ stride];
    if 2u * stride < lanes {
      first += handed[thread ^ (2u * stride)] + handed[thread ^ (3u * stride)];
    }
  }
  return first;
}
