// Which way every op of a program runs, for every size of pass (G5). Made once, before anything is recorded: for each op
// the row counts 1..max fall into ranges without gap or overlap, and each range has exactly one way, a guarded route or
// the generic kernels. Pure data; never records and never touches the GPU.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/text.h"
#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/graph.h"
#include "ops/route.h"

namespace gemma4::program {

class RouteTable {
 public:
  // Row counts [first, last] of a pass with one tail row, and the way they take: null means the generic kernels.
  struct Range {
    uint32_t first = 0;
    uint32_t last = 0;
    const ops::Route* route = nullptr;
    friend bool operator==(const Range&, const Range&) = default;
  };

  // A validated graph. `mask` has the bits of the routes that may be taken; `round_rows` is 0 where there are no rounds.
  static RouteTable Make(const ops::Graph& graph, const gpu::Limits& limits, uint32_t mask, uint32_t max_rows,
                         uint32_t round_rows);

  // The way of an op in a pass; null means the generic kernels. `rows` is in 1..max, or a round's.
  const ops::Route* Of(uint32_t op, const ops::PassRows& rows) const;
  const std::vector<Range>& RangesOf(uint32_t op) const { return ranges_[op]; }

  // {"mask", "refused": [{"route", "reason"}], "sites": [{"op", "count", "round", "rows": [{"first", "last", "route"}]}]}:
  // ops that have routes, those of equal choices together. The generic kernels' name is "generic".
  void Tell(const ops::Graph& graph, JsonWriter& json) const;

 private:
  struct Refusal {
    std::string route;
    std::string reason;
  };
  void Refuse(const ops::Route& route, std::string reason);

  // Bits of the mask whose kernels fit the device; why not, for the others.
  uint32_t FindUsable(const ops::Graph& graph, const gpu::Limits& limits);

  uint32_t mask_ = 0;
  std::vector<std::vector<Range>> ranges_;
  std::vector<const ops::Route*> round_;
  bool has_rounds_ = false;
  std::vector<Refusal> refused_;
};

}  // namespace gemma4::program
