#include "program/one_pass.h"

#include <map>
#include <set>
#include <string_view>

#include "base/text.h"

namespace gemma4::program {

namespace {

using ops::BindingRef;
using ops::DispatchSpec;
using ops::Tensor;
namespace schema = ops::schema;

// Memory that dispatches hand on: an activation slot, a tensor's own buffer, or scratch.
struct Place {
  enum class Kind : uint8_t { kSlot, kTensor, kScratch };
  Kind kind = Kind::kTensor;
  uint32_t index = 0;
  friend auto operator<=>(const Place&, const Place&) = default;
};

class Recorded {
 public:
  Recorded(const ops::Graph& graph, const MemoryPlan& memory, bool round) : graph_(graph), memory_(memory), round_(round) {
    for (const ops::Op& op : graph.ops) outputs_.insert(op.outputs.begin(), op.outputs.end());
  }

  Status Take(const DispatchSpec& spec) {
    for (size_t i = 0; i < spec.bindings.size(); ++i) {
      GEMMA4_RETURN_IF_ERROR(Writes(spec, i) ? CheckWrite(spec, i) : CheckRead(spec, i));
    }
    for (size_t i = 0; i < spec.bindings.size(); ++i) {
      if (Writes(spec, i)) holds_[PlaceOf(spec.bindings[i])] = spec.bindings[i].index;
    }
    return {};
  }

 private:
  static bool Writes(const DispatchSpec& spec, size_t i) {
    return spec.kernel->bindings[i] == kernels::BindingKind::kStorage;
  }
  const Tensor& Named(const BindingRef& ref) const { return graph_.tensors[ref.index]; }

  std::string NameOf(const BindingRef& ref) const {
    switch (ref.kind) {
      case BindingRef::Kind::kValues:
      case BindingRef::Kind::kScales:
        return Named(ref).name;
      case BindingRef::Kind::kScratch:
        return Text("scratch ", ref.index);
      default:
        return "a constant";
    }
  }

  Place PlaceOf(const BindingRef& ref) const {
    if (ref.kind == BindingRef::Kind::kScratch) return {Place::Kind::kScratch, ref.index};
    if (ref.kind == BindingRef::Kind::kValues && memory_.slot[ref.index] != kNoSlot) {
      return {Place::Kind::kSlot, memory_.slot[ref.index]};
    }
    return {Place::Kind::kTensor, ref.index};
  }

  Status Error(const DispatchSpec& spec, std::string_view what, const BindingRef& ref, std::string_view why) const {
    return FailedState(Text(spec.kernel->name, " ", what, " ", NameOf(ref), why));
  }

  Status CheckWrite(const DispatchSpec& spec, size_t i) const {
    const BindingRef& ref = spec.bindings[i];
    const bool declared = ref.kind == BindingRef::Kind::kScratch ||
                          (ref.kind == BindingRef::Kind::kValues && outputs_.contains(ref.index) &&
                           Named(ref).storage != schema::Storage_View);
    if (!declared) return Error(spec, "writes", ref, ", which is no op's output");
    for (size_t j = 0; j < spec.bindings.size(); ++j) {
      if (j == i || !MayAlias(spec.bindings[j]) || PlaceOf(spec.bindings[j]) != PlaceOf(ref)) continue;
      return Error(spec, "writes", ref, Text(" where it binds ", NameOf(spec.bindings[j])));
    }
    return {};
  }

  static bool MayAlias(const BindingRef& ref) {
    return ref.kind == BindingRef::Kind::kValues || ref.kind == BindingRef::Kind::kScratch;
  }

  Status CheckRead(const DispatchSpec& spec, size_t i) const {
    const BindingRef& ref = spec.bindings[i];
    if (!MayAlias(ref)) return {};
    if (ref.kind == BindingRef::Kind::kValues) {
      const schema::Storage storage = Named(ref).storage;
      if (storage != schema::Storage_Activation && storage != schema::Storage_Output) return {};
      const std::string_view name = spec.kernel->name;
      if (!round_ && (name == "pass_rows" || name == "accept")) return {};
    }
    const auto found = holds_.find(PlaceOf(ref));
    if (found == holds_.end()) return Error(spec, "reads", ref, ", which nothing before it writes");
    if (found->second == ref.index) return {};
    return Error(spec, "reads", ref, Text(" where ", graph_.tensors[found->second].name, " is by then"));
  }

  const ops::Graph& graph_;
  const MemoryPlan& memory_;
  const bool round_;
  std::set<uint32_t> outputs_;         // tensors that some op declares to write
  std::map<Place, uint32_t> holds_;    // the tensor, or scratch buffer, that was written there last
};

}  // namespace

Status CheckRecorded(const ops::Graph& graph, const MemoryPlan& memory, const std::vector<DispatchSpec>& specs,
                     bool round) {
  Recorded recorded(graph, memory, round);
  for (const DispatchSpec& spec : specs) GEMMA4_RETURN_IF_ERROR(recorded.Take(spec));
  return {};
}

Status MayShareOnePass(const Plan& plan, const std::vector<DispatchSpec>& specs, bool round) {
  if (!plan.Proves(schema::Property_SingleComputePass)) {
    return FailedState("the program has no proof of a single compute pass");
  }
  return CheckRecorded(plan.graph, plan.memory, specs, round);
}

}  // namespace gemma4::program
