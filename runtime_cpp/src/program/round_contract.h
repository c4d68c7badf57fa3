// What a k2_round program must be wired like: two drafts, each from the target's embedding of the token before it, at
// the recorded query positions; one pass_rows, one accept, one seed_write between the program's own inputs and outputs.
// Owns these rules only; contracts.h runs them. Only in MTP builds.
#pragma once

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

#if GEMMA4_MTP
Status CheckRound(const Plan& plan);
#endif

}  // namespace gemma4::program
