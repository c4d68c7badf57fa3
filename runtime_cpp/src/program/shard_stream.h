// Shard files arriving in slices. Owns the position in the stream, the check of each file's header, order, length and
// digest; hands the bytes of every weight to a sink. Any slice length works, weights may be cut anywhere. Never hashes
// (the page does, while it streams) and never touches the GPU: the sink does.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "program/plan.h"

namespace gemma4::program {

// Where the bytes of one weight go. Open, then Append until span.bytes have come.
class WeightSink {
 public:
  virtual ~WeightSink() = default;
  virtual Status Open(const WeightSpan& span) = 0;
  virtual Status Append(std::span<const uint8_t> slice) = 0;
};

class ShardStream {
 public:
  // `shards` and `spans` (ascending by shard and begin) and `sink` outlive the stream.
  ShardStream(const std::vector<ShardInfo>& shards, const std::vector<WeightSpan>& spans, WeightSink& sink);

  // Shards in order, each once. After any failure before the last shard has ended nothing counts as loaded: the next
  // shard is 0 again.
  Status Begin(uint32_t shard);
  Status Write(uint32_t shard, std::span<const uint8_t> slice);
  Status End(uint32_t shard, std::string_view sha256_hex);
  bool complete() const { return next_shard_ == shards_.size(); }

 private:
  Status Fail(Status status);
  Status CheckOpen(uint32_t shard) const;
  Status ReadHeader(std::span<const uint8_t> slice);
  Status DeliverWeights(std::span<const uint8_t> slice);

  const std::vector<ShardInfo>& shards_;
  const std::vector<WeightSpan>& spans_;
  WeightSink& sink_;
  uint32_t next_shard_ = 0;
  bool open_ = false;
  uint64_t offset_ = 0;     // bytes of the open shard seen so far
  uint8_t header_[9] = {};  // u64 length of the JSON header, and its first character
  size_t next_span_ = 0;    // first span that is not complete
  uint64_t span_done_ = 0;  // bytes of it that went to the sink
  bool span_open_ = false;
};

}  // namespace gemma4::program
