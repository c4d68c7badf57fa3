#include "program/routes.h"

#include <algorithm>
#include <utility>

#include "gpu/pipeline.h"
#include "ops/registry.h"

namespace gemma4::program {
namespace {

constexpr const char* kGeneric = "generic";

const char* NameOf(const ops::Route* route) { return route == nullptr ? kGeneric : route->name; }

Status CheckKernels(const ops::Route& route, const gpu::Limits& limits) {
  for (const kernels::Kernel* kernel : route.kernels) GEMMA4_RETURN_IF_ERROR(gpu::CheckKernel(*kernel, limits));
  return {};
}

}  // namespace

void RouteTable::Refuse(const ops::Route& route, std::string reason) {
  const auto same = [&](const Refusal& refusal) { return refusal.route == route.name; };
  if (std::none_of(refused_.begin(), refused_.end(), same)) refused_.push_back({route.name, std::move(reason)});
}

uint32_t RouteTable::FindUsable(const ops::Graph& graph, const gpu::Limits& limits) {
  uint32_t usable = 0;
  for (const ops::Op& op : graph.ops) {
    for (const ops::Route& route : ops::FindOp(op.kind)->routes) {
      if ((mask_ & route.bit) == 0) {
        Refuse(route, "the route mask of the load leaves it out");
      } else if (Status status = CheckKernels(route, limits); !status.ok()) {
        Refuse(route, status.message());
      } else {
        usable |= route.bit;
      }
    }
  }
  return usable;
}

RouteTable RouteTable::Make(const ops::Graph& graph, const gpu::Limits& limits, uint32_t mask, uint32_t max_rows,
                            uint32_t round_rows) {
  RouteTable table;
  table.mask_ = mask;
  table.has_rounds_ = round_rows != 0;
  const uint32_t usable = table.FindUsable(graph, limits);
  table.ranges_.resize(graph.ops.size());
  table.round_.resize(graph.ops.size());
  for (uint32_t op = 0; op < graph.ops.size(); ++op) {
    const std::span<const ops::Route> routes = ops::FindOp(graph.ops[op].kind)->routes;
    const ops::Site site(graph, op);
    const auto choose = [&](const ops::PassRows& rows) {
      const auto found = std::find_if(routes.begin(), routes.end(), [&](const ops::Route& route) {
        return (usable & route.bit) != 0 && route.accepts(site, rows, limits);
      });
      return found == routes.end() ? nullptr : &*found;
    };
    std::vector<Range>& ranges = table.ranges_[op];
    if (routes.empty()) ranges.push_back({1, max_rows, nullptr});
    for (uint32_t rows = 1; rows <= max_rows && !routes.empty(); ++rows) {
      const ops::Route* route = choose({rows, 1});
      if (ranges.empty() || ranges.back().route != route) ranges.push_back({rows, rows, route});
      ranges.back().last = rows;
    }
    if (table.has_rounds_) table.round_[op] = choose({round_rows, round_rows});
  }
  return table;
}

const ops::Route* RouteTable::Of(uint32_t op, const ops::PassRows& rows) const {
  if (has_rounds_ && rows.tail > 1) return round_[op];
  const std::vector<Range>& ranges = ranges_[op];
  const auto found = std::find_if(ranges.begin(), ranges.end(),
                                  [&](const Range& range) { return rows.pass <= range.last; });
  return found == ranges.end() ? nullptr : found->route;
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
  std::vector<bool> told(ranges_.size(), false);
  for (size_t i = 0; i < ranges_.size(); ++i) {
    const auto kind = graph.ops[i].kind;
    if (told[i] || ops::FindOp(kind)->routes.empty()) continue;
    uint64_t count = 0;
    for (size_t j = i; j < ranges_.size(); ++j) {
      if (graph.ops[j].kind != kind || ranges_[j] != ranges_[i] || round_[j] != round_[i]) continue;
      told[j] = true;
      ++count;
    }
    json.BeginObject();
    json.Key("op").String(ops::KindName(kind));
    json.Key("count").Number(count);
    if (has_rounds_) json.Key("round").String(NameOf(round_[i]));
    json.Key("rows").BeginArray();
    for (const Range& range : ranges_[i]) {
      json.BeginObject();
      json.Key("first").Number(range.first);
      json.Key("last").Number(range.last);
      json.Key("route").String(NameOf(range.route));
      json.EndObject();
    }
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
}

}  // namespace gemma4::program
