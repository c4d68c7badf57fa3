// Which key positions a query sees, and where they lie.

// First and last + 1; nothing where the first is not below the end. Causal, query at p: t <= p and t > p - window. Donor, p is the donor length: the same rule for a query at p that has no
// row of its own. Window 0: all from 0.
fn visible_range(p: i32, window: u32, donor: u32) -> vec2i {
  let first = select(max(p - i32(window) + 1, 0), 0, window == 0u);
  return vec2i(first, select(p + 1, p, donor != 0u));
}

// slot % capacity for a slot that is seldom above twice the capacity.
fn ring_slot(slot: u32, capacity: u32) -> u32 {
  let once = select(slot, slot - capacity, slot >= capacity);
  if once < capacity {
    return once;
  }
  return once % capacity;
}
