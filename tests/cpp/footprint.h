// How many words of every binding a kernel may touch, computed from its params alone: an account of the kernels that is
// independent of the ops that fill the params in.
#pragma once

#include <string>

#include "ops/dispatch.h"

namespace gemma4::test {

// Words per storage binding, in the kernel's order; empty for a kernel that is not known here.
std::vector<uint64_t> TouchedWords(const ops::DispatchSpec& spec);

// Every dispatch of a pass stays inside the tensors that it names and has a kernel, workgroups and all bindings; else
// what is wrong with the first that does not.
std::string FindOutOfBounds(const ops::Graph& graph, const std::vector<ops::DispatchSpec>& specs);

}  // namespace gemma4::test
