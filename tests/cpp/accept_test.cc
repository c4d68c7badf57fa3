// The rules of greedy decoding: accept rule, its consistency check, the cut, the counters, prompts and steps. R3, R5,
// R6, R7, X6.
#include <limits>

#include "check.h"
#include "decode/accept.h"

namespace gemma4 {
namespace {

using decode::Counters;
using decode::Cut;
using decode::Ending;
using decode::Pass;
using decode::RoundOutput;

constexpr uint32_t kVocab = 8;

// Outputs of a round as the GPU would make them.
RoundOutput MakeRound(std::array<int32_t, 2> drafts, std::array<int32_t, 3> greedy) {
  RoundOutput output;
  output.candidates = drafts;
  output.target_greedy = greedy;
  output.match_count = drafts[0] != greedy[0] ? 0 : drafts[1] != greedy[1] ? 1 : 2;
  output.bonus = greedy[static_cast<size_t>(output.match_count)];
  output.state_probe = 0.5f;
  return output;
}

template <typename Body>
void ForAllRounds(const Body& body) {
  for (int32_t code = 0; code < 243; ++code) {
    body({code % 3, code / 3 % 3}, {code / 9 % 3, code / 27 % 3, code / 81 % 3});
  }
}

GEMMA4_TEST(AcceptCountsLeadingMatches) {
  uint32_t seen[3] = {};
  ForAllRounds([&](std::array<int32_t, 2> drafts, std::array<int32_t, 3> greedy) {
    uint32_t wanted = 0;
    if (drafts[0] == greedy[0]) wanted = drafts[1] == greedy[1] ? 2 : 1;
    CHECK_EQ(decode::AcceptedDrafts(drafts, greedy), wanted);
    ++seen[wanted];
  });
  CHECK(seen[0] > 0 && seen[1] > 0 && seen[2] > 0);
}

GEMMA4_TEST(AcceptEmitsDraftsAndBonus) {
  ForAllRounds([&](std::array<int32_t, 2> drafts, std::array<int32_t, 3> greedy) {
    const RoundOutput output = MakeRound(drafts, greedy);
    const Result<Pass> pass = decode::CheckRound(output, 40, kVocab);
    CHECK_OK(pass.status());
    CHECK(pass->round);
    CHECK_EQ(pass->position, 40u);
    CHECK_EQ(pass->accepted, static_cast<uint32_t>(output.match_count));
    CHECK_EQ(pass->rows, pass->accepted + 1);
    CHECK_EQ(pass->token_count, pass->accepted + 1);
    // Every emitted token is the target's own.
    for (uint32_t i = 0; i < pass->token_count; ++i) CHECK_EQ(pass->tokens[i], greedy[i]);
  });
}

// R5: match and bonus are recomputed; whatever else they say is refused.
GEMMA4_TEST(AcceptRefusesInconsistentRounds) {
  ForAllRounds([&](std::array<int32_t, 2> drafts, std::array<int32_t, 3> greedy) {
    for (int32_t match = -1; match <= 3; ++match) {
      RoundOutput output = MakeRound(drafts, greedy);
      if (match == output.match_count) continue;
      output.match_count = match;
      CHECK_REFUSED(decode::CheckRound(output, 9, kVocab).status(), "position 9", "match");
    }
    RoundOutput output = MakeRound(drafts, greedy);
    output.bonus = (output.bonus + 1) % 3;
    CHECK_REFUSED(decode::CheckRound(output, 9, kVocab).status(), "bonus");
  });
}

// O9: a NaN is an error, never a token.
GEMMA4_TEST(AcceptRefusesWhatIsNoToken) {
  for (const int32_t bad : {-1, -2, 8, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
    for (size_t at = 0; at < 5; ++at) {
      RoundOutput output = MakeRound({1, 2}, {1, 2, 3});
      (at < 2 ? output.candidates[at] : output.target_greedy[at - 2]) = bad;
      output.match_count = output.candidates[0] != output.target_greedy[0]   ? 0
                           : output.candidates[1] != output.target_greedy[1] ? 1
                                                                             : 2;
      output.bonus = output.target_greedy[static_cast<size_t>(output.match_count)];
      const Status status = decode::CheckRound(output, 1, kVocab).status();
      CHECK_EQ(status.code(), Code::kBadOutput);
      if (bad == -1) CHECK_REFUSED(status, "NaN");
    }
    CHECK_EQ(decode::CheckPlain(bad, 1, 1, kVocab).status().code(), Code::kBadOutput);
  }
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    RoundOutput output = MakeRound({1, 2}, {1, 2, 3});
    output.state_probe = bad;
    CHECK_REFUSED(decode::CheckRound(output, 1, kVocab).status(), "not finite");
  }
}

// X3: a prefill gives match 0, no candidates, three equal greedy tokens and the bonus equal to them.
GEMMA4_TEST(AcceptChecksPrefills) {
  RoundOutput good;
  good.candidates = {-1, -1};
  good.target_greedy = {5, 5, 5};
  good.match_count = 0;
  good.bonus = 5;
  good.state_probe = 1;
  const Result<Pass> pass = decode::CheckRoundPrefill(good, 3, 11, kVocab);
  CHECK_OK(pass.status());
  CHECK(!pass->round && pass->token_count == 1 && pass->tokens[0] == 5 && pass->rows == 11);
  const auto refuse = [&](auto change) {
    RoundOutput output = good;
    change(output);
    CHECK_EQ(decode::CheckRoundPrefill(output, 3, 11, kVocab).status().code(), Code::kBadOutput);
  };
  refuse([](RoundOutput& output) { output.match_count = 1; });
  refuse([](RoundOutput& output) { output.bonus = 4; });
  refuse([](RoundOutput& output) { output.target_greedy[2] = 4; });
  refuse([](RoundOutput& output) { output.candidates[1] = 5; });
  refuse([](RoundOutput& output) { output.target_greedy = {-1, -1, -1}, output.bonus = -1; });
  refuse([](RoundOutput& output) { output.state_probe = std::numeric_limits<float>::quiet_NaN(); });
}

// R6: the first stop id ends the text and is not returned; the budget cuts; what it does not reach does not stop.
GEMMA4_TEST(CutEndsAtStopOrBudget) {
  const int32_t run[] = {4, 1, 6};
  const int32_t stops[] = {1, 7};
  struct {
    uint64_t room;
    std::vector<int32_t> stop_ids;
    uint32_t kept;
    Ending ending;
  } cases[] = {
      {10, {}, 3, Ending::kNone},     {3, {}, 3, Ending::kFull},      {2, {}, 2, Ending::kFull},
      {0, {}, 0, Ending::kFull},      {10, {1, 7}, 1, Ending::kStop}, {2, {1, 7}, 1, Ending::kStop},
      {1, {1, 7}, 1, Ending::kFull},  {10, {4}, 0, Ending::kStop},    {10, {6}, 2, Ending::kStop},
      {10, {5, 9}, 3, Ending::kNone},
  };
  for (const auto& row : cases) {
    const Cut cut = decode::CutRun(run, row.room, row.stop_ids);
    CHECK_EQ(cut.kept, row.kept);
    CHECK_EQ(cut.ending, row.ending);
  }
  CHECK_EQ(decode::CutRun({}, 5, stops).kept, 0u);
}

// R3: drafted = 2 rounds, accepted before the cut, emitted = 1 + sum(accepted + 1) - cut.
GEMMA4_TEST(CountersAddUp) {
  Counters counters;
  counters.Count(decode::CheckPlain(3, 0, 7, kVocab).value(), 1);
  uint64_t produced = 1, accepted = 0, rounds = 0, cut = 0;
  test::Random random(3);
  for (int i = 0; i < 300; ++i) {
    std::array<int32_t, 2> drafts = {static_cast<int32_t>(random.Below(2)), static_cast<int32_t>(random.Below(2))};
    const Pass pass = decode::CheckRound(MakeRound(drafts, {0, 1, 2}), 7, kVocab).value();
    const uint32_t kept = i == 299 ? static_cast<uint32_t>(random.Below(pass.token_count + 1)) : pass.token_count;
    counters.Count(pass, kept);
    ++rounds;
    accepted += pass.accepted;
    produced += pass.accepted + 1;
    cut += pass.token_count - kept;
  }
  CHECK_EQ(counters.rounds, rounds);
  CHECK_EQ(counters.drafted, 2 * rounds);
  CHECK_EQ(counters.accepted, accepted);
  CHECK_EQ(counters.cut, cut);
  CHECK_EQ(counters.emitted, produced - cut);
}

// X6: 1 <= P <= capacity - 3.
GEMMA4_TEST(DonorLengthHasBounds) {
  for (const uint64_t good : {1, 2, 61}) CHECK_OK(decode::CheckDonorLength(good, 64));
  for (const uint64_t bad : {uint64_t{0}, uint64_t{62}, uint64_t{63}, uint64_t{64}, uint64_t{1} << 40, UINT64_MAX}) {
    CHECK_REFUSED(decode::CheckDonorLength(bad, 64), "");
  }
  for (const uint32_t rows : {0u, 1u, 2u, 3u}) CHECK_REFUSED(decode::CheckDonorLength(1, rows), "");
}

GEMMA4_TEST(PromptsAreChecked) {
  const int32_t ids[] = {0, 7, 3};
  CHECK_OK(decode::CheckPrompt(ids, 0, 3, kVocab));
  CHECK_OK(decode::CheckPrompt(ids, 5, 8, kVocab));
  CHECK_REFUSED(decode::CheckPrompt({}, 0, 8, kVocab), "empty");
  CHECK_REFUSED(decode::CheckPrompt(ids, 0, 2, kVocab), "2", "3");
  CHECK_REFUSED(decode::CheckPrompt(ids, 6, 8, kVocab), "8");
  CHECK_REFUSED(decode::CheckPrompt(ids, UINT64_MAX - 1, 8, kVocab), "8");
  for (const int32_t bad : {-1, 8, std::numeric_limits<int32_t>::max()}) {
    const int32_t with_bad[] = {0, bad};
    CHECK_REFUSED(decode::CheckPrompt(with_bad, 0, 8, kVocab), Text(bad));
  }
}

// R7: a step continues with the pending token at its position.
GEMMA4_TEST(StepsContinue) {
  CHECK_OK(decode::CheckContinues(9, 4, 9, 4));
  CHECK_REFUSED(decode::CheckContinues(8, 4, 9, 4), "8", "9");
  CHECK_REFUSED(decode::CheckContinues(10, 4, 9, 4), "10", "9");
  CHECK_REFUSED(decode::CheckContinues(9, 5, 9, 4), "5", "4");
}

}  // namespace
}  // namespace gemma4
