// Rotary position embedding of x [N,heads*head_dim], half-split pairs (i, i + head_dim/2), the first `rotated_pairs` of
// them turned by position * theta^(-2i/denominator). Owns how frequencies become fixed-point turns.
#pragma once

#include "ops/site.h"

namespace gemma4::ops {

// What decides a frequency table; ops with equal keys share one buffer.
struct RopeKey {
  uint32_t head_dim = 0;
  uint32_t rotated_pairs = 0;
  uint32_t denominator = 0;
  float theta = 0;
  friend bool operator==(const RopeKey&, const RopeKey&) = default;
};

RopeKey RopeKeyOf(const Op& op);

// u32[head_dim/2]: turns a position as a fraction of 2^32, so that position * frequency wraps at whole turns exactly.
std::vector<uint32_t> RopeFrequencies(const RopeKey& key);

Status CheckRope(const Site& site);
void RecordRope(const Site& site, const PassRows& pass, std::vector<DispatchSpec>& out);

}  // namespace gemma4::ops
