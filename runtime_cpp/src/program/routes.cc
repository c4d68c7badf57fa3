#include "program/routes.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "gpu/pipeline.h"
#include "ops/registry.h"

namespace gemma4::program {
namespace {

using Usable = std::vector<const ops::Route*>;

constexpr const char* kGeneric = "generic";
constexpr const char* kUnfused = "unfused";
constexpr uint32_t kNoChain = UINT32_MAX;

Status CheckKernels(const ops::Route& route, const gpu::Limits& limits) {
  for (const kernels::Kernel* kernel : route.kernels) GEMMA4_RETURN_IF_ERROR(gpu::CheckKernel(*kernel, limits));
  return {};
}

RouteTable::Ways Choose(const Usable& usable, const ops::Site& site, const gpu::Limits& limits, uint32_t max_rows,
                        uint32_t round_rows) {
  const auto choose = [&](const ops::PassRows& rows) {
    const auto found = std::find_if(usable.begin(), usable.end(),
                                    [&](const ops::Route* route) { return route->accepts(site, rows, limits); });
    return found == usable.end() ? nullptr : *found;
  };
  RouteTable::Ways ways;
  if (usable.empty()) ways.ranges.push_back({1, max_rows, nullptr});
  for (uint32_t rows = 1; rows <= max_rows && !usable.empty(); ++rows) {
    const ops::Route* route = choose({rows, 1});
    if (ways.ranges.empty() || ways.ranges.back().route != route) ways.ranges.push_back({rows, rows, route});
    ways.ranges.back().last = rows;
  }
  if (round_rows != 0) ways.round = choose({round_rows, round_rows});
  return ways;
}

bool TakesAnyRoute(const RouteTable::Ways& ways) {
  return ways.round != nullptr || std::any_of(ways.ranges.begin(), ways.ranges.end(),
                                              [](const RouteTable::Range& range) { return range.route != nullptr; });
}

}  // namespace

void RouteTable::Refuse(const ops::Route& route, std::string reason) {
  const auto same = [&](const Refusal& refusal) { return refusal.route == route.name; };
  if (std::none_of(refused_.begin(), refused_.end(), same)) refused_.push_back({route.name, std::move(reason)});
}

Usable RouteTable::FindUsable(std::span<const ops::Route> routes, const gpu::Limits& limits) {
  Usable usable;
  for (const ops::Route& route : routes) {
    if ((mask_ & route.bits) != route.bits) {
      Refuse(route, "the route mask of the load leaves it out");
    } else if (Status status = CheckKernels(route, limits); !status.ok()) {
      Refuse(route, status.message());
    } else {
      usable.push_back(&route);
    }
  }
  return usable;
}

void RouteTable::ChooseChains(const ops::Graph& graph, const gpu::Limits& limits, uint32_t max_rows,
                              uint32_t round_rows) {
  std::vector<bool> taken(graph.ops.size(), false);
  chain_of_.assign(graph.ops.size(), kNoChain);
  for (const Fusion& fusion : Fusions()) {
    const std::vector<OpChain> found = fusion.find(graph, taken);
    if (found.empty()) continue;
    const Usable usable = FindUsable(fusion.routes, limits);
    for (const OpChain& chain : found) {
      Ways ways = Choose(usable, ops::Site(graph, chain), limits, max_rows, round_rows);
      if (!TakesAnyRoute(ways)) continue;
      for (const uint32_t op : chain) {
        taken[op] = true;
        chain_of_[op] = static_cast<uint32_t>(chains_.size());
      }
      chains_.push_back({fusion.name, chain, std::move(ways)});
    }
  }
}

RouteTable RouteTable::Make(const ops::Graph& graph, const gpu::Limits& limits, uint32_t mask, uint32_t max_rows,
                            uint32_t round_rows) {
  RouteTable table;
  table.mask_ = mask;
  table.has_rounds_ = round_rows != 0;
  for (uint32_t op = 0; op < graph.ops.size(); ++op) {
    const Usable usable = table.FindUsable(ops::FindOp(graph.ops[op].kind)->routes, limits);
    table.ways_.push_back(Choose(usable, ops::Site(graph, op), limits, max_rows, round_rows));
  }
  table.ChooseChains(graph, limits, max_rows, round_rows);
  return table;
}

const ops::Route* RouteTable::RouteIn(const Ways& ways, const ops::PassRows& rows) const {
  if (has_rounds_ && rows.tail > 1) return ways.round;
  const auto found = std::find_if(ways.ranges.begin(), ways.ranges.end(),
                                  [&](const Range& range) { return rows.pass <= range.last; });
  return found == ways.ranges.end() ? nullptr : found->route;
}

const ops::Route* RouteTable::Of(uint32_t op, const ops::PassRows& rows) const { return RouteIn(ways_[op], rows); }

const RouteTable::FusedChain* RouteTable::ChainOf(uint32_t op, const ops::PassRows& rows,
                                                  const ops::Route** route) const {
  if (chain_of_[op] == kNoChain) return nullptr;
  const FusedChain& chain = chains_[chain_of_[op]];
  *route = RouteIn(chain.ways, rows);
  return *route == nullptr ? nullptr : &chain;
}

void RouteTable::TellWays(const Ways& ways, const char* none, JsonWriter& json) const {
  const auto name_of = [&](const ops::Route* route) { return route == nullptr ? none : route->name; };
  if (has_rounds_) json.Key("round").String(name_of(ways.round));
  json.Key("rows").BeginArray();
  for (const Range& range : ways.ranges) {
    json.BeginObject();
    json.Key("first").Number(range.first);
    json.Key("last").Number(range.last);
    json.Key("route").String(name_of(range.route));
    json.EndObject();
  }
  json.EndArray();
}

void RouteTable::Tell(const ops::Graph& graph, JsonWriter& json) const {
  json.BeginObject();
  json.Key("mask").Number(mask_);
  json.Key("refused").BeginArray();
  for (const Refusal& refusal : refused_) {
    json.BeginObject();
    json.Key("route").String(refusal.route);
    json.Key("reason").String(refusal.reason);
    json.EndObject();
  }
  json.EndArray();
  json.Key("sites").BeginArray();
  std::vector<bool> told(ways_.size(), false);
  for (size_t i = 0; i < ways_.size(); ++i) {
    const auto kind = graph.ops[i].kind;
    if (told[i] || ops::FindOp(kind)->routes.empty()) continue;
    uint64_t count = 0;
    for (size_t j = i; j < ways_.size(); ++j) {
      if (graph.ops[j].kind != kind || ways_[j] != ways_[i]) continue;
      told[j] = true;
      ++count;
    }
    json.BeginObject();
    json.Key("op").String(ops::KindName(kind));
    json.Key("count").Number(count);
    TellWays(ways_[i], kGeneric, json);
    json.EndObject();
  }
  json.EndArray();
  json.Key("fusions").BeginArray();
  told.assign(chains_.size(), false);
  for (size_t i = 0; i < chains_.size(); ++i) {
    if (told[i]) continue;
    uint64_t count = 0;
    for (size_t j = i; j < chains_.size(); ++j) {
      if (std::string_view(chains_[j].fusion) != chains_[i].fusion || chains_[j].ways != chains_[i].ways) continue;
      told[j] = true;
      ++count;
    }
    json.BeginObject();
    json.Key("fusion").String(chains_[i].fusion);
    json.Key("count").Number(count);
    TellWays(chains_[i].ways, kUnfused, json);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
}

}  // namespace gemma4::program
