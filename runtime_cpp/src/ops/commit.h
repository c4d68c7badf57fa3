// What moves a pass's result into the inputs of the next one, on the GPU: commit_step for text_decoder, commit_round
// for k2_round. No op of the program: decode/ asks for it behind every pass. Never touches caches.
#pragma once

#include <cstdint>

#include "ops/dispatch.h"

namespace gemma4::ops {

#if GEMMA4_MTP
struct CommitRoundTensors {
  uint32_t match_count = 0, bonus = 0, ids = 0, positions = 0, flag = 0, donor_length = 0;  // tensor indices
};

// Flag 0: the pass was a prefill of `rows` rows; flag 1: a round.
DispatchSpec CommitRound(const CommitRoundTensors& tensors, uint32_t rows);
#else
struct CommitStepTensors {
  uint32_t next_token = 0, ids = 0, positions = 0;  // tensor indices
};

DispatchSpec CommitStep(const CommitStepTensors& tensors, uint32_t rows);
#endif

}  // namespace gemma4::ops
