// Weights arriving in slices, P22: any slice length, weights of odd lengths between neighbours, headers, order, lengths
// and digests; what fails leaves nothing loaded, R2.
#include <algorithm>

#include "check.h"
#include "program/shard_stream.h"

namespace gemma4 {
namespace {

using program::ShardInfo;
using program::ShardStream;
using program::WeightSpan;
using test::Random;

const std::string kDigest(64, 'a');

// Keeps what it is given and counts what it is told.
class Recorder final : public program::WeightSink {
 public:
  Status Open(const WeightSpan& span) override {
    if (fail_at == opened.size()) return Internal("the sink refuses");
    opened.push_back(span);
    received.emplace_back();
    return {};
  }
  Status Append(std::span<const uint8_t> slice) override {
    CHECK(!slice.empty());
    received.back().insert(received.back().end(), slice.begin(), slice.end());
    return {};
  }

  std::vector<WeightSpan> opened;
  std::vector<std::vector<uint8_t>> received;
  size_t fail_at = SIZE_MAX;
};

// A safetensors file of a 16-byte header and weights of odd lengths with gaps between some of them.
struct File {
  std::vector<uint8_t> bytes;
  std::vector<WeightSpan> spans;
};

File MakeFile(uint32_t shard, std::span<const uint32_t> lengths) {
  File file;
  file.bytes = {16, 0, 0, 0, 0, 0, 0, 0, '{'};
  file.bytes.resize(24, ' ');
  Random random(shard + 3);
  uint32_t tensor = 0;
  for (const uint32_t length : lengths) {
    if (tensor % 3 == 2) file.bytes.push_back(0xee);  // a gap that belongs to no weight
    file.spans.push_back({tensor++, false, shard, file.bytes.size(), length});
    for (uint32_t i = 0; i < length; ++i) file.bytes.push_back(static_cast<uint8_t>(random.Next()));
  }
  return file;
}

constexpr uint32_t kLengths[] = {1, 2, 3, 5, 255, 257, 4, 64, 1000};

struct Setup {
  File first = MakeFile(0, kLengths);
  File second = MakeFile(1, std::span(kLengths).first(4));
  std::vector<ShardInfo> shards = {{"first", first.bytes.size(), kDigest, false},
                                   {"second", second.bytes.size(), kDigest, false}};
  std::vector<WeightSpan> spans;
  Recorder sink;

  Setup() {
    spans = first.spans;
    spans.insert(spans.end(), second.spans.begin(), second.spans.end());
  }
};

Status Feed(ShardStream& stream, uint32_t shard, std::span<const uint8_t> bytes, auto next_length) {
  for (size_t at = 0; at < bytes.size();) {
    const size_t count = std::min<size_t>(next_length(), bytes.size() - at);
    GEMMA4_RETURN_IF_ERROR(stream.Write(shard, bytes.subspan(at, count)));
    at += count;
  }
  return {};
}

void CheckDelivery(auto next_length) {
  Setup setup;
  ShardStream stream(setup.shards, setup.spans, setup.sink);
  for (const uint32_t shard : {0u, 1u}) {
    const File& file = shard == 0 ? setup.first : setup.second;
    CHECK(!stream.complete());
    CHECK_OK(stream.Begin(shard));
    CHECK_OK(Feed(stream, shard, file.bytes, next_length));
    CHECK_OK(stream.End(shard, kDigest));
  }
  CHECK(stream.complete());
  CHECK_EQ(setup.sink.opened.size(), setup.spans.size());
  for (size_t i = 0; i < setup.spans.size(); ++i) {
    const WeightSpan& span = setup.spans[i];
    const std::vector<uint8_t>& bytes = (span.shard == 0 ? setup.first : setup.second).bytes;
    CHECK(setup.sink.opened[i].begin == span.begin && setup.sink.opened[i].shard == span.shard);
    CHECK(std::equal(setup.sink.received[i].begin(), setup.sink.received[i].end(),
                     bytes.begin() + static_cast<ptrdiff_t>(span.begin),
                     bytes.begin() + static_cast<ptrdiff_t>(span.begin + span.bytes)));
  }
}

GEMMA4_TEST(StreamTakesAnySliceLength) {
  for (const size_t length : {1, 2, 3, 4, 5, 7, 23, 24, 25, 255, 256, 257, 100000}) {
    CheckDelivery([&] { return length; });
  }
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    CheckDelivery([&] { return 1 + random.Below(random.Below(2) == 0 ? 6 : 400); });
  }
}

GEMMA4_TEST(StreamTakesEmptySlices) {
  Setup setup;
  ShardStream stream(setup.shards, setup.spans, setup.sink);
  CHECK_OK(stream.Begin(0));
  CHECK_OK(stream.Write(0, {}));
  CHECK_OK(stream.Write(0, setup.first.bytes));
  CHECK_OK(stream.Write(0, {}));
  CHECK_OK(stream.End(0, kDigest));
}

// After any failure the load starts again from nothing, and can succeed.
void CheckFailure(Setup& setup, ShardStream& stream, const Status& status, std::vector<std::string> parts) {
  test::Refused(__FILE__, __LINE__, status, std::move(parts));
  CHECK(!stream.complete());
  test::Refused(__FILE__, __LINE__, stream.Write(0, setup.first.bytes), {"not the open one"});
  setup.sink = Recorder();
  for (const uint32_t shard : {0u, 1u}) {
    CHECK_OK(stream.Begin(shard));
    CHECK_OK(stream.Write(shard, (shard == 0 ? setup.first : setup.second).bytes));
    CHECK_OK(stream.End(shard, kDigest));
  }
  CHECK(stream.complete());
  CHECK_EQ(setup.sink.received.size(), setup.spans.size());
}

GEMMA4_TEST(StreamRefusesWrongOrder) {
  for (const bool finish_first : {false, true}) {
    Setup setup;
    ShardStream stream(setup.shards, setup.spans, setup.sink);
    if (finish_first) {
      CHECK_OK(stream.Begin(0));
      CHECK_OK(stream.Write(0, setup.first.bytes));
      CHECK_OK(stream.End(0, kDigest));
    }
    CheckFailure(setup, stream, stream.Begin(finish_first ? 0 : 1), {"wanted shard"});
  }
  Setup setup;
  ShardStream stream(setup.shards, setup.spans, setup.sink);
  CHECK_OK(stream.Begin(0));
  CheckFailure(setup, stream, stream.Begin(1), {"before shard 0 has ended"});
}

GEMMA4_TEST(StreamRefusesWrongLengthAndDigest) {
  {
    Setup setup;
    ShardStream stream(setup.shards, setup.spans, setup.sink);
    CHECK_OK(stream.Begin(0));
    CHECK_OK(stream.Write(0, std::span(setup.first.bytes).first(setup.first.bytes.size() - 1)));
    CheckFailure(setup, stream, stream.End(0, kDigest), {"first", "ended after"});
  }
  {
    Setup setup;
    ShardStream stream(setup.shards, setup.spans, setup.sink);
    CHECK_OK(stream.Begin(0));
    CHECK_OK(stream.Write(0, setup.first.bytes));
    CheckFailure(setup, stream, stream.Write(0, std::span(setup.first.bytes).first(1)), {"longer than"});
  }
  for (const std::string& digest : {std::string(64, 'b'), std::string(63, 'a'), std::string(64, 'A'), std::string()}) {
    Setup setup;
    ShardStream stream(setup.shards, setup.spans, setup.sink);
    CHECK_OK(stream.Begin(0));
    CHECK_OK(stream.Write(0, setup.first.bytes));
    CheckFailure(setup, stream, stream.End(0, digest), {"sha256"});
  }
}

GEMMA4_TEST(StreamRefusesBadHeaders) {
  const std::pair<std::array<uint8_t, 9>, const char*> cases[] = {
      {{0, 0, 0, 0, 0, 0, 0, 0, '{'}, "header of 0"},
      {{255, 255, 255, 255, 255, 255, 255, 255, '{'}, "18446744073709551615"},
      {{0, 0, 0, 0, 1, 0, 0, 0, '{'}, "header of 4294967296"},
      {{16, 0, 0, 0, 0, 0, 0, 0, '['}, "not JSON"},
      {{17, 0, 0, 0, 0, 0, 0, 0, '{'}, "ends at byte 25"},
  };
  for (const auto& [header, message] : cases) {
    for (const size_t cut : {size_t{1}, size_t{8}, size_t{100000}}) {
      Setup setup;
      ShardStream stream(setup.shards, setup.spans, setup.sink);
      std::vector<uint8_t> bytes = setup.first.bytes;
      std::copy(header.begin(), header.end(), bytes.begin());
      CHECK_OK(stream.Begin(0));
      CheckFailure(setup, stream, Feed(stream, 0, bytes, [&] { return cut; }), {message});
    }
  }
}

GEMMA4_TEST(StreamPassesOnTheSinksError) {
  for (size_t at = 0; at < std::size(kLengths); ++at) {
    Setup setup;
    setup.sink.fail_at = at;
    ShardStream stream(setup.shards, setup.spans, setup.sink);
    CHECK_OK(stream.Begin(0));
    CheckFailure(setup, stream, stream.Write(0, setup.first.bytes), {"the sink refuses"});
  }
}

GEMMA4_TEST(StreamStaysCompleteAfterAStrayCall) {
  Setup setup;
  ShardStream stream(setup.shards, setup.spans, setup.sink);
  for (const uint32_t shard : {0u, 1u}) {
    CHECK_OK(stream.Begin(shard));
    CHECK_OK(stream.Write(shard, (shard == 0 ? setup.first : setup.second).bytes));
    CHECK_OK(stream.End(shard, kDigest));
  }
  CHECK_REFUSED(stream.Begin(0), "loaded already");
  CHECK_REFUSED(stream.Write(0, setup.first.bytes), "loaded already");
  CHECK_REFUSED(stream.End(1, kDigest), "loaded already");
  CHECK(stream.complete());
}

}  // namespace
}  // namespace gemma4
