// What the runtime checks of certified scatters: a ScatterUnique races where two of its indices are equal, so it is
// accepted only at the end of TopK -> GatherRows -> ScatterUnique into a filled template, once for each draft or never
// (X9, X10), by the table that the certificate names; and that table has to be a permutation when it comes (X11). Never
// touches the GPU. Only MTP builds have a use for it.
#pragma once

#include <vector>

#include "base/result.h"
#include "program/plan.h"
#include "program/shard_stream.h"

namespace gemma4::program {

// kCorruptData names the op and the tensor that does not come from where it must, or the claim that nothing bears out.
Status CheckCertified(const Plan& plan);

// Looks at the certified table on its way to `next`: it holds every number below its size once. The digest in the
// certificate says which table was proven; this looks at the one that came. kCorruptData names the number that is wrong.
class CertifiedTable final : public WeightSink {
 public:
  // `plan` and `next` outlive it.
  CertifiedTable(const Plan& plan, WeightSink& next);

  Status Open(const WeightSpan& span) override;
  Status Append(std::span<const uint8_t> slice) override;

 private:
  Status Take(uint32_t number);

  const Plan& plan_;
  WeightSink& next_;
  const WeightSpan* first_ = nullptr;  // of the table's pieces the one that comes first; null: nothing is certified
  std::vector<bool> seen_;             // by number
  bool open_ = false;                  // a piece of the table is coming
  uint32_t number_ = 0;                // its little-endian bytes so far
  uint32_t number_bytes_ = 0;
};

}  // namespace gemma4::program
