#include "program/shard_stream.h"

#include <algorithm>

#include "base/text.h"

namespace gemma4::program {

namespace {
constexpr uint64_t kMaxHeaderBytes = uint64_t{100} << 20;
}  // namespace

ShardStream::ShardStream(const std::vector<ShardInfo>& shards, const std::vector<WeightSpan>& spans, WeightSink& sink)
    : shards_(shards), spans_(spans), sink_(sink) {}

Status ShardStream::Fail(Status status) {
  next_shard_ = 0;
  open_ = false;
  span_open_ = false;
  next_span_ = 0;
  return status;
}

Status ShardStream::Begin(uint32_t shard) {
  if (complete()) return FailedState("all shards are loaded already");
  if (open_) return Fail(FailedState(Text("shard ", shard, " begins before shard ", next_shard_, " has ended")));
  if (shard != next_shard_) return Fail(FailedState(Text("shard ", shard, " begins, wanted shard ", next_shard_)));
  open_ = true;
  offset_ = 0;
  span_done_ = 0;
  return {};
}

Status ShardStream::CheckOpen(uint32_t shard) const {
  if (open_ && shard == next_shard_) return {};
  return FailedState(
      Text("shard ", shard, " is not the open one", complete() ? ": all shards are loaded already" : ""));
}

// A safetensors file: u64 header length n, n bytes of JSON, then the data. The program's spans are absolute, so only a
// header that reaches into the first weight can be told to be wrong.
Status ShardStream::ReadHeader(std::span<const uint8_t> slice) {
  if (offset_ >= sizeof(header_)) return {};
  const size_t count = std::min<size_t>(sizeof(header_) - static_cast<size_t>(offset_), slice.size());
  std::copy_n(slice.begin(), count, header_ + offset_);
  if (offset_ + count < sizeof(header_)) return {};
  const ShardInfo& shard = shards_[next_shard_];
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | header_[i];
  const uint64_t room = shard.bytes - 8;
  if (length < 2 || length > kMaxHeaderBytes || length > room) {
    return CorruptData(Text("shard ", shard.file, " has a header of ", length, " bytes, wanted 2 to ",
                            std::min(room, kMaxHeaderBytes)));
  }
  if (header_[8] != '{')
    return CorruptData(Text("shard ", shard.file, " is no safetensors file: its header is not JSON"));
  const bool has_span = next_span_ < spans_.size() && spans_[next_span_].shard == next_shard_;
  if (has_span && 8 + length > spans_[next_span_].begin) {
    return CorruptData(Text("shard ", shard.file, ": its header ends at byte ", 8 + length,
                            ", the first weight begins at ", spans_[next_span_].begin));
  }
  return {};
}

Status ShardStream::DeliverWeights(std::span<const uint8_t> slice) {
  const uint64_t slice_end = offset_ + slice.size();
  while (next_span_ < spans_.size() && spans_[next_span_].shard == next_shard_) {
    const WeightSpan& span = spans_[next_span_];
    const uint64_t position = span.begin + span_done_;
    if (position >= slice_end) return {};
    if (!span_open_) {
      GEMMA4_RETURN_IF_ERROR(sink_.Open(span));
      span_open_ = true;
    }
    const uint64_t count = std::min(span.bytes - span_done_, slice_end - position);
    GEMMA4_RETURN_IF_ERROR(
        sink_.Append(slice.subspan(static_cast<size_t>(position - offset_), static_cast<size_t>(count))));
    span_done_ += count;
    if (span_done_ < span.bytes) return {};
    span_open_ = false;
    span_done_ = 0;
    ++next_span_;
  }
  return {};
}

Status ShardStream::Write(uint32_t shard, std::span<const uint8_t> slice) {
  if (Status status = CheckOpen(shard); !status.ok()) return complete() ? status : Fail(std::move(status));
  const ShardInfo& info = shards_[shard];
  if (slice.size() > info.bytes - offset_) {
    return Fail(CorruptData(Text("shard ", info.file, " is longer than its ", info.bytes, " bytes")));
  }
  if (Status status = ReadHeader(slice); !status.ok()) return Fail(std::move(status));
  if (Status status = DeliverWeights(slice); !status.ok()) return Fail(std::move(status));
  offset_ += slice.size();
  return {};
}

Status ShardStream::End(uint32_t shard, std::string_view sha256_hex) {
  if (Status status = CheckOpen(shard); !status.ok()) return complete() ? status : Fail(std::move(status));
  const ShardInfo& info = shards_[shard];
  if (offset_ != info.bytes) {
    return Fail(CorruptData(Text("shard ", info.file, " ended after ", offset_, " bytes, wanted ", info.bytes)));
  }
  if (sha256_hex != info.sha256) {
    const bool sane = sha256_hex.size() == 64;
    return Fail(CorruptData(
        Text("shard ", info.file, " has sha256 ", sane ? sha256_hex : "of a wrong length", ", wanted ", info.sha256)));
  }
  open_ = false;
  ++next_shard_;
  return {};
}

}  // namespace gemma4::program
