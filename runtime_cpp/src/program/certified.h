// What the runtime can see of a certificate: a ScatterUnique races where two of its indices are equal, so it is accepted
// only at the end of TopK -> GatherRows -> ScatterUnique into a filled template, and once for each draft or never (X9,
// X10). That the table is a permutation is the exporter's proof, which has to be there and to name that table. Never looks
// at weights. Only in MTP builds.
#pragma once

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

// kCorruptData names the op and the tensor that does not come from where it must, or the claim that nothing bears out.
Status CheckCertified(const Plan& plan);

}  // namespace gemma4::program
