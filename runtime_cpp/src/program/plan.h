// A validated program and what it will need of the GPU, computed before any download and without GPU work. Owns a copy
// of the program's bytes, the decoded graph and the memory plan. Never creates a GPU object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "ops/graph.h"
#include "program/planner.h"
#include "program/routes.h"

namespace gemma4::program {

// Scalars of the program that decoding needs.
struct Header {
  std::string method;  // "text_decoder" or "k2_round"
  uint32_t vocab = 0;  // token ids are below this
  uint32_t hidden = 0;
  uint32_t context = 0;              // positions; a full cache holds context + 2 rows
  uint32_t prefill_rows = 0;         // largest row count of a prefill pass
  uint32_t window = 0;               // sliding window in positions
  bool progressive_queries = false;  // draft step j queries at P + j instead of P
  bool dense_drafts = false;         // drafts are chosen among all tokens, without centroids
  std::vector<int32_t> stop_ids;
  std::string source_sha256;

  bool mtp() const { return method == "k2_round"; }
};

struct ShardInfo {
  std::string file;
  uint64_t bytes = 0;
  std::string sha256;
  bool assistant = false;
};

// What the exporter proved, and the SHA-256 of what it looked at: the weight `subject`, or the graph.
struct Proof {
  ops::schema::Property property = ops::schema::Property_UniqueScatter;
  std::string subject;
  std::string sha256;
};

// A piece of a shard that goes to one GPU buffer, to its start unless the weight's rows lie in several pieces. `scales`:
// the second buffer of a 4-bit weight.
struct WeightSpan {
  uint32_t tensor = 0;
  bool scales = false;
  uint32_t shard = 0;
  uint64_t begin = 0;  // absolute offset in the shard file
  uint64_t bytes = 0;
  uint64_t to = 0;  // offset in the buffer, a multiple of 4
};

struct Plan {
  Plan() = default;
  Plan(Plan&&) = default;
  Plan& operator=(Plan&&) = default;
  Plan(const Plan&) = delete;  // the graph points into `bytes`
  Plan& operator=(const Plan&) = delete;

  std::vector<uint8_t> bytes;
  Header header;
  std::vector<Proof> certificate;  // each property at most once
  ops::Graph graph;
  std::vector<ShardInfo> shards;
  std::vector<WeightSpan> spans;  // ascending by (shard, begin), never overlapping
  std::vector<uint32_t> inputs;   // tensor indices, contract order
  std::vector<uint32_t> outputs;
  gpu::Limits limits;  // of the device that it was planned for
  RouteTable routes;
  MemoryPlan memory;

  bool Proves(ops::schema::Property property) const;

  // {"method", "certificate": [{"property", "subject", "sha256"}], "weight_bytes", "cache_bytes", "activation_bytes",
  //  "total_bytes", "largest_binding": {"tensor", "bytes"},
  //  "shards": [{"file", "bytes", "sha256"}], "routes": RouteTable::Tell, ...}
  std::string ToJson() const;
};

}  // namespace gemma4::program
