//! formula: out[0] = smallest of x[0..count]; NaN when one is NaN
//! dispatch: one group
//! reference: amin
//! tolerance: exact
//! include: include/order.wgsl

const LANES = 256u;
const NAN_KEY = 0xffffffffu;

struct Params {
  count: u32,
}

// The floats' bits, so that the comparison is one of integers.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<uniform> params: Params;

var<workgroup> smallest: array<u32, LANES>;
var<workgroup> largest: array<u32, LANES>;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) lane: u32) {
  var low = NAN_KEY;
  var high = 0u;
  for (var i = lane; i < params.count; i += LANES) {
    let key = order_key(x[i]);
    low = min(low, key);
    high = max(high, key);
  }
  smallest[lane] = low;
  largest[lane] = high;
  for (var stride = LANES / 2u; stride > 0u; stride /= 2u) {
    workgroupBarrier();
    if lane < stride {
      smallest[lane] = min(smallest[lane], smallest[lane + stride]);
      largest[lane] = max(largest[lane], largest[lane + stride]);
    }
  }
  if lane == 0u {
    // NaN has the largest key of all.
    let key = select(smallest[0], NAN_KEY, largest[0] == NAN_KEY);
    out[0] = bits_of_key(key);
  }
}
