#include "decode/accept.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"

namespace gemma4::decode {
namespace {

// Exponent bits, not std::isfinite: correct under any floating-point option of the compiler.
bool IsFinite(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return (bits & 0x7f800000u) != 0x7f800000u;
}

bool IsToken(int32_t id, uint32_t vocab) { return id >= 0 && static_cast<uint32_t>(id) < vocab; }

Status NoToken(std::string_view what, int32_t id, uint32_t vocab, uint32_t position) {
  if (id == -1) return BadOutput(Text("the ", what, " logits of position ", position, " hold a NaN"));
  return BadOutput(Text("the ", what, " token of position ", position, " is ", id, ", the vocabulary has ", vocab));
}

Status CheckProbe(const RoundOutput& output, uint32_t position) {
  if (IsFinite(output.state_probe)) return {};
  return BadOutput(Text("the seed state after position ", position, " is not finite"));
}

}  // namespace

uint32_t AcceptedDrafts(std::span<const int32_t, kDrafts> drafts, std::span<const int32_t, kRoundRows> greedy) {
  uint32_t accepted = 0;
  while (accepted < kDrafts && drafts[accepted] == greedy[accepted]) ++accepted;
  return accepted;
}

Result<Pass> CheckRound(const RoundOutput& output, uint32_t position, uint32_t vocab) {
  for (uint32_t i = 0; i < kRoundRows; ++i) {
    if (!IsToken(output.target_greedy[i], vocab)) {
      return NoToken("target", output.target_greedy[i], vocab, position + i);
    }
  }
  for (uint32_t i = 0; i < kDrafts; ++i) {
    if (!IsToken(output.candidates[i], vocab)) return NoToken("draft", output.candidates[i], vocab, position + 1 + i);
  }
  GEMMA4_RETURN_IF_ERROR(CheckProbe(output, position));
  const uint32_t accepted = AcceptedDrafts(output.candidates, output.target_greedy);
  if (output.match_count != static_cast<int32_t>(accepted) || output.bonus != output.target_greedy[accepted]) {
    return BadOutput(Text("the round at position ", position, " reports match ", output.match_count, " and bonus ",
                          output.bonus, "; its drafts and greedy tokens give ", accepted, " and ",
                          output.target_greedy[accepted]));
  }
  Pass pass{.round = true, .position = position, .rows = accepted + 1, .drafts = output.candidates, .accepted = accepted};
  std::copy_n(output.candidates.begin(), accepted, pass.tokens.begin());
  pass.tokens[accepted] = output.bonus;
  pass.token_count = accepted + 1;
  return pass;
}

Result<Pass> CheckRoundPrefill(const RoundOutput& output, uint32_t position, uint32_t rows, uint32_t vocab) {
  const int32_t token = output.target_greedy[0];
  const uint32_t last = position + rows - 1;
  if (!IsToken(token, vocab)) return NoToken("target", token, vocab, last);
  GEMMA4_RETURN_IF_ERROR(CheckProbe(output, last));
  const bool drafted = output.candidates[0] != -1 || output.candidates[1] != -1;
  if (drafted || output.match_count != 0 || output.target_greedy[1] != token || output.target_greedy[2] != token ||
      output.bonus != token) {
    return BadOutput(Text("the prefill up to position ", last, " reports match ", output.match_count, ", greedy ", token,
                          ", ", output.target_greedy[1], ", ", output.target_greedy[2], " and bonus ", output.bonus,
                          "; match 0, three equal tokens and no draft were wanted"));
  }
  return CheckPlain(token, position, rows, vocab);
}

Result<Pass> CheckPlain(int32_t next_token, uint32_t position, uint32_t rows, uint32_t vocab) {
  if (!IsToken(next_token, vocab)) return NoToken("target", next_token, vocab, position + rows - 1);
  Pass pass{.position = position, .rows = rows};
  pass.tokens[0] = next_token;
  pass.token_count = 1;
  return pass;
}

Cut CutRun(std::span<const int32_t> run, uint64_t room, std::span<const int32_t> stop_ids) {
  Cut cut;
  for (const int32_t token : run) {
    if (cut.kept == room) break;
    if (std::find(stop_ids.begin(), stop_ids.end(), token) != stop_ids.end()) {
      cut.ending = Ending::kStop;
      return cut;
    }
    ++cut.kept;
  }
  if (cut.kept == room) cut.ending = Ending::kFull;
  return cut;
}

void Counters::Count(const Pass& pass, uint32_t kept) {
  if (pass.round) {
    ++rounds;
    drafted += kDrafts;
    accepted += pass.accepted;
  }
  emitted += kept;
  cut += pass.token_count - kept;
}

Status CheckDonorLength(uint64_t donor_length, uint32_t cache_rows) {
  if (donor_length >= 1 && cache_rows >= kRoundRows && donor_length <= cache_rows - kRoundRows) return {};
  return InvalidArgument(Text("a round needs a donor length of 1 to ", static_cast<int64_t>(cache_rows) - kRoundRows,
                              ", it is ", donor_length, " (cache rows: ", cache_rows, ")"));
}

Status CheckPrompt(std::span<const int32_t> ids, uint64_t position, uint32_t context, uint32_t vocab) {
  if (ids.empty()) return InvalidArgument("the prompt is empty; give at least one token");
  if (ids.size() > context || position > context - ids.size()) {
    return InvalidArgument(Text("the prompt ends at position ", position + ids.size(), ", the context holds ", context,
                                " positions; shorten it or export with a larger --context"));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!IsToken(ids[i], vocab)) {
      return InvalidArgument(Text("token id ", ids[i], " at index ", i, " is outside the vocabulary of ", vocab));
    }
  }
  return {};
}

Status CheckContinues(uint64_t position, int32_t token, uint64_t pending_position, int32_t pending_token) {
  if (position == pending_position && token == pending_token) return {};
  return InvalidArgument(Text("a step must continue with token ", pending_token, " at position ", pending_position,
                              "; token ", token, " at position ", position, " was given"));
}

}  // namespace gemma4::decode
