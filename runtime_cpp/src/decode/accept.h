// The rules of greedy decoding as pure functions: what a speculative round (K = 2) emits, whether the GPU's answer is
// consistent, where a run of tokens is cut, what a prompt may be. Owns nothing, touches no GPU and no JSON.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace gemma4::decode {

inline constexpr uint32_t kDrafts = 2;              // K
inline constexpr uint32_t kRoundRows = kDrafts + 1; // rows of the verifying pass

// What k2_round leaves after a pass, in the order of its outputs.
struct RoundOutput {
  std::array<int32_t, kDrafts> candidates = {};
  std::array<int32_t, kRoundRows> target_greedy = {};
  int32_t match_count = 0;
  int32_t bonus = 0;
  float state_probe = 0;  // element 0 of the new seed state
};
static_assert(sizeof(RoundOutput) == 32);

// One finished pass of the target.
struct Pass {
  bool round = false;                         // a speculative round; else a prefill or a plain step
  uint32_t position = 0;                      // of its first row
  uint32_t rows = 0;                          // KV rows that it made valid
  std::array<int32_t, kDrafts> drafts = {};   // of a round
  uint32_t accepted = 0;                      // of a round
  std::array<int32_t, kRoundRows> tokens = {};
  uint32_t token_count = 0;                   // 1, in a round accepted + 1
};

// The number of leading drafts that equal the target's own greedy tokens.
uint32_t AcceptedDrafts(std::span<const int32_t, kDrafts> drafts, std::span<const int32_t, kRoundRows> greedy);

// A pass from the outputs of a round at `position`; an error (kBadOutput) when a token is no token of the vocabulary (-1
// is how argmax reports a NaN), the probe is not finite, or match and bonus differ from what drafts and greedy imply.
Result<Pass> CheckRound(const RoundOutput& output, uint32_t position, uint32_t vocab);
// Likewise for a prefill of `rows` rows: match 0, candidates -1, three equal greedy tokens, bonus equal to them.
Result<Pass> CheckRoundPrefill(const RoundOutput& output, uint32_t position, uint32_t rows, uint32_t vocab);
// Likewise for text_decoder, whose only output is the next token.
Result<Pass> CheckPlain(int32_t next_token, uint32_t position, uint32_t rows, uint32_t vocab);

enum class Ending : uint8_t { kNone, kStop, kFull };

// How much of a run of tokens is returned: what comes before the first stop id (the stop id itself is not), and no more
// than `room`. A stop id that the room does not reach does not count.
struct Cut {
  uint32_t kept = 0;
  Ending ending = Ending::kNone;
};
Cut CutRun(std::span<const int32_t> run, uint64_t room, std::span<const int32_t> stop_ids);

// drafted = 2 * rounds; accepted counts before the cut; emitted = tokens produced - cut = tokens returned.
struct Counters {
  uint64_t rounds = 0;
  uint64_t drafted = 0;
  uint64_t accepted = 0;
  uint64_t emitted = 0;
  uint64_t cut = 0;
  uint64_t buffered = 0;  // emitted, not yet handed to the caller

  void Count(const Pass& pass, uint32_t kept);
};

// A donor of `cache_rows` rows serves 1 <= P <= cache_rows - 3: the round also writes rows P..P+2.
Status CheckDonorLength(uint64_t donor_length, uint32_t cache_rows);

// Prompt of a pass that starts at `position`: not empty, position + length <= context, every id below vocab.
Status CheckPrompt(std::span<const int32_t> ids, uint64_t position, uint32_t context, uint32_t vocab);

// A step must name the token that is pending and the position where it belongs.
Status CheckContinues(uint64_t position, int32_t token, uint64_t pending_position, int32_t pending_token);

}  // namespace gemma4::decode
