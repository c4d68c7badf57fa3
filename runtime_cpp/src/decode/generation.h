// The host's account of one generate request: how many tokens it may still return, why it ended, what its rounds were.
// Owns no GPU state; fed with passes, it says which tokens go to the caller.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "decode/accept.h"

namespace gemma4::decode {

class Generation {
 public:
  // The last token that may be returned is the one whose row would no longer fit: prompt + returned <= context + 1.
  Generation(uint32_t prompt_tokens, uint32_t max_new_tokens, uint32_t context, std::vector<int32_t> stop_ids);

  // Takes the tokens of the next pass and returns those that the caller gets (pointing into `pass`). Only while !ended().
  std::span<const int32_t> Take(const Pass& pass);
  void Cancel() { cancelled_ = true; }

  bool ended() const { return ending_ != Ending::kNone || cancelled_; }
  uint64_t room() const { return room_; }  // tokens that may still be returned
  const Counters& counters() const { return counters_; }
  const char* finish() const;              // "stop", "length", "context" or "cancelled"
  // {"finish", "counters", "rounds": [{"pos", "drafts", "accepted", "emitted"}], "passes": {"single", "reason"}}; rounds as
  // they were before any cut. `passes_apart`: Model::passes_apart.
  std::string ToJson(std::string_view passes_apart) const;

 private:
  std::vector<int32_t> stop_ids_;
  std::vector<Pass> rounds_;
  Counters counters_;
  uint64_t room_;
  bool context_bound_;  // the context, not max_new_tokens, is what limits the length
  bool cancelled_ = false;
  Ending ending_ = Ending::kNone;
};

std::string ToJson(const Counters& counters);

}  // namespace gemma4::decode
