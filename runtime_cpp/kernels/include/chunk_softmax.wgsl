//! include: include/chunks.wgsl
//! include: include/finite.wgsl

// Running softmax of HEADS heads over chunks of CHUNK keys, for a workgroup of 64. Thread head * 8 + i has keys i and
// i + 8 of the chunk for its head. Every thread takes part in the barriers.

const HEADS = 8u;
// Threads that share one key's products with a head, and the distance of such groups in memory.
const PARTS = 4u;
const PITCH = PARTS + 1u;
const HALF = CHUNK / 2u;

// products[(head * CHUNK + key) * PITCH + part]: what score_chunk sums up. weights[key * HEADS + head] and shrinks[head]:
// what it makes.
var<workgroup> products: array<f32, HEADS * CHUNK * PITCH>;
var<workgroup> scores: array<f32, HEADS * CHUNK>;
var<workgroup> weights: array<f32, HEADS * CHUNK>;
var<workgroup> shrinks: array<f32, HEADS>;

// One thread's share: the head's maximum, the sum of the thread's weights, whether a score was NaN or infinite.
struct Running {
  top: f32,
  sum: f32,
  broken: f32,
  seen: bool,
}

fn sum_of_products(pair: u32) -> f32 {
  let at = pair * PITCH;
  return (products[at] + products[at + 1u]) + (products[at + 2u] + products[at + 3u]);
}

// Keys begin..end-1 of the chunk are visible, at least one. Old sums are to be multiplied by shrinks.
fn score_chunk(lane: u32, begin: u32, end: u32, before: Running) -> Running {
  let head = lane / HALF;
  let first = lane % HALF;
  let at = head * CHUNK;
  workgroupBarrier();
  let low = sum_of_products(at + first);
  let high = sum_of_products(at + first + HALF);
  scores[at + first] = low;
  scores[at + first + HALF] = high;
  workgroupBarrier();
  var now = before;
  now.seen = true;
  now.top = select(scores[at + begin], before.top, before.seen);
  for (var j = begin; j < end; j++) {
    let score = scores[at + j];
    now.top = max(now.top, score);
    now.broken = select(now.broken, 1.0, is_not_finite(bitcast<u32>(score)));
  }
  let shrink = select(0.0, exp(before.top - now.top), before.seen);
  let low_weight = select(0.0, exp(low - now.top), first >= begin && first < end);
  let high_weight = select(0.0, exp(high - now.top), first + HALF >= begin && first + HALF < end);
  now.sum = fma(before.sum, shrink, low_weight + high_weight);
  weights[first * HEADS + head] = low_weight;
  weights[(first + HALF) * HEADS + head] = high_weight;
  shrinks[head] = shrink;
  workgroupBarrier();
  return now;
}

// (max, sum of all weights, broken, 0) of the thread's head.
fn head_stats(lane: u32, running: Running) -> vec4f {
  scores[lane] = running.sum;
  workgroupBarrier();
  var sum = 0.0;
  for (var j = 0u; j < HALF; j++) {
    sum += scores[lane / HALF * HALF + j];
  }
  return vec4f(running.top, sum, running.broken, 0.0);
}
