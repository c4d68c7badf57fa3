// The queries that share a KV head, and the slots of their scores: scores[row, head, slot], as many slots as the ring has.

// Query n of a KV head is head n % sharing of row n / sharing; its place among all [row, head].
fn query_at(n: u32, kv_head: u32, q_heads: u32, sharing: u32) -> u32 {
  return n / sharing * q_heads + kv_head * sharing + n % sharing;
}

// The first position from `first` on that lies in a slot.
fn position_in(slot: u32, first: i32, capacity: u32) -> i32 {
  let ahead = slot + capacity - u32(first) % capacity;
  return first + i32(select(ahead, ahead - capacity, ahead >= capacity));
}
