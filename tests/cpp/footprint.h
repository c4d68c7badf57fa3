// How many words of every binding a kernel may touch, computed from its params alone: an account of the kernels that is
// independent of the ops that fill the params in.
#pragma once

#include <string>

#include "ops/dispatch.h"
#include "program/planner.h"

namespace gemma4::test {

// Words per storage binding, in the kernel's order; empty for a kernel that is not known here.
std::vector<uint64_t> TouchedWords(const ops::DispatchSpec& spec);

// Every dispatch of a pass stays inside the tensors that it names and has a kernel, workgroups and all bindings; else
// what is wrong with the first that does not.
std::string FindOutOfBounds(const ops::Graph& graph, const std::vector<ops::DispatchSpec>& specs);

// Runs a pass's dispatches over slots that hold one tensor at a time: the first that reads a tensor whose slot holds another
// one, or that has a slot for reading and for writing; else "". In a pass that is no round, drafts are bound and not read.
std::string FindStaleRead(const ops::Graph& graph, const program::MemoryPlan& memory,
                          const std::vector<ops::DispatchSpec>& specs, bool round);

}  // namespace gemma4::test
