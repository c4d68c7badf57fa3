#include "program/recorder.h"

#include <algorithm>

#include "base/text.h"
#include "ops/registry.h"
#include "program/contracts.h"

namespace gemma4::program {

namespace {

// Params travel as opaque words: the op filled the generated struct already.
template <size_t kBytes>
struct ParamsBlock {
  uint8_t bytes[kBytes];
};

template <size_t kBytes>
Status AddBlock(gpu::Recording& recording, const gpu::Pipeline& pipeline, std::span<const gpu::Binding> storage,
                const ops::DispatchSpec& spec, gpu::Grid grid) {
  ParamsBlock<kBytes> block;
  std::copy_n(spec.params.begin(), kBytes, block.bytes);
  return recording.Add(pipeline, storage, block, grid);
}

void RecordOp(const Plan& plan, uint32_t index, const ops::Route* route, const ops::PassRows& rows,
              std::vector<ops::DispatchSpec>& specs) {
  const ops::Site site(plan.graph, index);
  if (route == nullptr) return ops::FindOp(plan.graph.ops[index].kind)->record(site, rows, specs);
  route->record(site, rows, plan.limits, specs);
}

Status AddDispatch(gpu::Recording& recording, const gpu::Pipeline& pipeline, std::span<const gpu::Binding> storage,
                   const ops::DispatchSpec& spec, gpu::Grid grid) {
  switch (spec.params_bytes) {
    case 16:
      return AddBlock<16>(recording, pipeline, storage, spec, grid);
    case 32:
      return AddBlock<32>(recording, pipeline, storage, spec, grid);
    case 48:
      return AddBlock<48>(recording, pipeline, storage, spec, grid);
    default:
      return Internal(Text("kernel ", spec.kernel->name, " has params of ", spec.params_bytes, " bytes"));
  }
}

// WebGPU forbids one buffer as both read-only and writable, or writable twice, in one dispatch.
Status CheckAliases(const ops::DispatchSpec& spec, std::span<const gpu::Binding> storage) {
  for (size_t i = 0; i < storage.size(); ++i) {
    if (spec.kernel->bindings[i] != kernels::BindingKind::kStorage) continue;
    for (size_t j = 0; j < storage.size(); ++j) {
      if (i == j || storage[i].buffer != storage[j].buffer) continue;
      return Internal(
          Text("kernel ", spec.kernel->name, ": bindings ", i, " and ", j, " are both ", storage[i].buffer->label()));
    }
  }
  return {};
}

}  // namespace

std::vector<ops::DispatchSpec> BuildPass(const Plan& plan, bool round, const ops::PassRows& rows) {
  std::vector<ops::DispatchSpec> specs;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    if (plan.graph.ops[i].phase == ops::schema::Phase_Round && !round) continue;
    const ops::Route* fused = nullptr;
    const RouteTable::FusedChain* chain = plan.routes.ChainOf(i, rows, &fused);
    if (chain == nullptr) {
      RecordOp(plan, i, plan.routes.Of(i, rows), rows, specs);
    } else if (chain->ops.front() == i) {
      fused->record(ops::Site(plan.graph, chain->ops), rows, plan.limits, specs);
    }
  }
  return specs;
}

std::vector<ops::DispatchSpec> BuildEveryWay(const Plan& plan) {
  std::vector<ops::DispatchSpec> specs;
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    // Scratch memory never shrinks with the row count of one way (ops/dispatch.h).
    for (const RouteTable::Range& range : plan.routes.RangesOf(i)) RecordOp(plan, i, range.route, {range.last, 1}, specs);
  }
  for (const RouteTable::FusedChain& chain : plan.routes.chains()) {
    const ops::Site site(plan.graph, chain.ops);
    for (const RouteTable::Range& range : chain.ways.ranges) {
      if (range.route != nullptr) range.route->record(site, {range.last, 1}, plan.limits, specs);
    }
  }
  if (plan.header.mtp()) {
    const std::vector<ops::DispatchSpec> round = BuildPass(plan, true, {kRoundRows, kRoundRows});
    specs.insert(specs.end(), round.begin(), round.end());
  }
  return specs;
}

std::vector<const kernels::Kernel*> KernelsOf(const Plan& plan) {
  std::vector<const kernels::Kernel*> found;
  for (const ops::DispatchSpec& spec : BuildEveryWay(plan)) found.push_back(spec.kernel);
  const auto add = [&](const ops::Route* route) {
    if (route != nullptr) found.insert(found.end(), route->kernels.begin(), route->kernels.end());
  };
  for (uint32_t i = 0; i < plan.graph.ops.size(); ++i) {
    for (const RouteTable::Range& range : plan.routes.RangesOf(i)) add(range.route);
  }
  for (const RouteTable::FusedChain& chain : plan.routes.chains()) {
    for (const RouteTable::Range& range : chain.ways.ranges) add(range.route);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

ops::ScratchBytes ScratchOf(const Plan& plan) {
  ops::ScratchBytes most{};
  for (const ops::DispatchSpec& spec : BuildEveryWay(plan)) {
    for (size_t i = 0; i < most.size(); ++i) most[i] = std::max(most[i], spec.scratch[i]);
  }
  return most;
}

std::vector<uint64_t> PartsOf(const Plan& plan) {
  std::vector<uint64_t> largest(plan.graph.tensors.size(), 0);
  std::vector<bool> whole(plan.graph.tensors.size(), false);
  for (const ops::DispatchSpec& spec : BuildEveryWay(plan)) {
    for (const ops::BindingRef& ref : spec.bindings) {
      if (ref.kind != ops::BindingRef::Kind::kValues && ref.kind != ops::BindingRef::Kind::kScales) continue;
      if (ref.bytes == 0) whole[ref.index] = true;
      largest[ref.index] = std::max(largest[ref.index], ref.bytes);
    }
  }
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i]) largest[i] = 0;
  }
  return largest;
}

Result<gpu::Recording> RecordDispatches(gpu::Context& context, const gpu::PipelineCache& pipelines,
                                        const BufferMap& buffers, const std::vector<ops::DispatchSpec>& specs) {
  gpu::Recording recording(context);
  for (const ops::DispatchSpec& spec : specs) {
    if (spec.bindings.size() + 1 != spec.kernel->binding_count || spec.params_bytes != spec.kernel->params_bytes) {
      return Internal(Text("kernel ", spec.kernel->name, " has ", spec.kernel->binding_count, " bindings and ",
                           spec.kernel->params_bytes, " bytes of params; the op gave ", spec.bindings.size() + 1,
                           " and ", spec.params_bytes));
    }
    std::vector<gpu::Binding> storage;
    for (const ops::BindingRef& ref : spec.bindings) storage.push_back({&buffers.Resolve(ref), ref.offset, ref.bytes});
    GEMMA4_RETURN_IF_ERROR(CheckAliases(spec, storage));
    GEMMA4_ASSIGN_OR_RETURN(const gpu::Pipeline* pipeline, pipelines.Find(*spec.kernel));
    GEMMA4_ASSIGN_OR_RETURN(const gpu::Grid grid,
                            gpu::FoldGrid(spec.groups, context.limits().max_workgroups_per_dimension));
    GEMMA4_RETURN_IF_ERROR(AddDispatch(recording, *pipeline, storage, spec, grid));
  }
  GEMMA4_RETURN_IF_ERROR(recording.Finish());
  return recording;
}

}  // namespace gemma4::program
