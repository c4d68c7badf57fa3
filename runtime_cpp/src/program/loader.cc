#include "program/loader.h"

#include "program/contracts.h"
#include "program/dataflow.h"
#include "program/reader.h"
#include "program/recorder.h"
#include "program/weights.h"

namespace gemma4::program {

Result<Plan> LoadProgram(std::span<const uint8_t> program, std::string_view expected_method,
                         const gpu::Limits& limits, uint32_t route_mask) {
  Plan plan;
  plan.limits = limits;
  plan.bytes.assign(program.begin(), program.end());
  GEMMA4_RETURN_IF_ERROR(ReadProgram(&plan, expected_method));
  GEMMA4_RETURN_IF_ERROR(ReadWeights(&plan));
  GEMMA4_RETURN_IF_ERROR(CheckDataflow(&plan.graph));
  GEMMA4_RETURN_IF_ERROR(CheckContracts(plan));
  plan.routes = RouteTable::Make(plan.graph, limits, route_mask, plan.header.prefill_rows,
                                 plan.header.mtp() ? kRoundRows : 0);
  std::vector<OpChain> fused;
  for (const RouteTable::FusedChain& chain : plan.routes.chains()) fused.push_back(chain.ops);
  GEMMA4_ASSIGN_OR_RETURN(plan.memory, PlanMemory(plan.graph, ScratchOf(plan), limits, PartsOf(plan), fused));
  return plan;
}

}  // namespace gemma4::program
