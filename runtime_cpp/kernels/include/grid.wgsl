// Grids over 65535 groups are folded into y and z; these give back the linear index.

fn linear_group(group: vec3u, groups: vec3u) -> u32 {
  return group.x + groups.x * (group.y + groups.y * group.z);
}

// One thread an element, workgroup of 64.
fn linear_element(group: vec3u, groups: vec3u, lane: u32) -> u32 {
  return linear_group(group, groups) * 64u + lane;
}
