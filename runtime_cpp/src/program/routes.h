// Which way every op of a program runs, for every size of pass (G5), and which chains of ops run in one kernel (G6). Made
// once, before anything is recorded: for each op the row counts 1..max fall into ranges without gap or overlap, and each
// range has exactly one way, a guarded route or the generic kernels; so they do for each chain, whose ops run one by one
// where it has no route. Pure data; never records and never touches the GPU.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/text.h"
#include "gpu/context.h"
#include "ops/dispatch.h"
#include "ops/graph.h"
#include "ops/route.h"
#include "program/fusions.h"

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
  struct Ways {
    std::vector<Range> ranges;
    const ops::Route* round = nullptr;  // of a round's pass
    friend bool operator==(const Ways&, const Ways&) = default;
  };
  // A chain that runs fused in some pass at least.
  struct FusedChain {
    const char* fusion = "";
    OpChain ops;
    Ways ways;
  };

  // A validated graph. `mask` has the bits of the routes that may be taken; `round_rows` is 0 where there are no rounds.
  static RouteTable Make(const ops::Graph& graph, const gpu::Limits& limits, uint32_t mask, uint32_t max_rows,
                         uint32_t round_rows);

  // The way of an op in a pass; null means the generic kernels. `rows` is in 1..max, or a round's.
  const ops::Route* Of(uint32_t op, const ops::PassRows& rows) const;
  const std::vector<Range>& RangesOf(uint32_t op) const { return ways_[op].ranges; }

  // No two have a common op.
  const std::vector<FusedChain>& chains() const { return chains_; }
  // The chain that an op runs in, and its route, in a pass; null where the op runs by itself.
  const FusedChain* ChainOf(uint32_t op, const ops::PassRows& rows, const ops::Route** route) const;

  // {"mask", "refused": [{"route", "reason"}], "sites": [{"op", "count", "round", "rows": [{"first", "last", "route"}]}],
  // "fusions": [{"fusion", "count", "round", "rows"}]}: ops that have routes and chains, those of equal choices together.
  // The generic kernels' name is "generic"; a chain whose ops run by themselves is "unfused".
  void Tell(const ops::Graph& graph, JsonWriter& json) const;

 private:
  struct Refusal {
    std::string route;
    std::string reason;
  };
  void Refuse(const ops::Route& route, std::string reason);

  // Those that the mask has and whose kernels fit the device, the best first; why not, for the others.
  std::vector<const ops::Route*> FindUsable(std::span<const ops::Route> routes, const gpu::Limits& limits);
  void ChooseChains(const ops::Graph& graph, const gpu::Limits& limits, uint32_t max_rows, uint32_t round_rows);
  const ops::Route* RouteIn(const Ways& ways, const ops::PassRows& rows) const;
  void TellWays(const Ways& ways, const char* none, JsonWriter& json) const;

  uint32_t mask_ = 0;
  std::vector<Ways> ways_;  // by op
  std::vector<FusedChain> chains_;
  std::vector<uint32_t> chain_of_;  // by op: index in chains_, or kNoChain
  bool has_rounds_ = false;
  std::vector<Refusal> refused_;
};

}  // namespace gemma4::program
