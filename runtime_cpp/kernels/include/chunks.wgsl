// How attention_decode_split deals visible keys to splits. Chunks lie at multiples of CHUNK of the absolute position and
// split s takes every splits-th chunk from the s-th visible one, so that the order of additions depends on the position
// alone.

const CHUNK = 16u;

// First chunk with a visible key, and the last + 1.
fn chunk_range(visible: vec2i) -> vec2i {
  if visible.x >= visible.y {
    return vec2i();
  }
  return vec2i(visible.x / i32(CHUNK), (visible.y + i32(CHUNK) - 1) / i32(CHUNK));
}
