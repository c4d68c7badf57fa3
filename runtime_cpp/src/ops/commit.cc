#include "ops/commit.h"

namespace gemma4::ops {

namespace {
BindingRef Values(uint32_t tensor) { return {BindingRef::Kind::kValues, tensor}; }
}  // namespace

#if GEMMA4_MTP
DispatchSpec CommitRound(const CommitRoundTensors& t, uint32_t rows) {
  kernels::CommitRoundParams params;
  params.rows = rows;
  return MakeDispatch(kernels::kCommitRound,
                      {Values(t.match_count), Values(t.bonus), Values(t.ids), Values(t.positions), Values(t.flag),
                       Values(t.donor_length)},
                      params, 1);
}
#else
DispatchSpec CommitStep(const CommitStepTensors& t, uint32_t rows) {
  kernels::CommitStepParams params;
  params.rows = rows;
  return MakeDispatch(kernels::kCommitStep, {Values(t.next_token), Values(t.ids), Values(t.positions)}, params, 1);
}
#endif

}  // namespace gemma4::ops
