#include "decode/decoder.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace gemma4::decode {
namespace {

using program::InputName;
using program::OutputName;
using program::Phase;

// The outputs of k2_round and where they lie in a readback: the layout of RoundOutput.
struct OutputSlice {
  OutputName name;
  uint32_t offset;
  uint32_t bytes;
};
constexpr OutputSlice kRoundOutputs[] = {
    {OutputName::kCandidates, offsetof(RoundOutput, candidates), 8},
    {OutputName::kTargetGreedy, offsetof(RoundOutput, target_greedy), 12},
    {OutputName::kMatchCount, offsetof(RoundOutput, match_count), 4},
    {OutputName::kBonus, offsetof(RoundOutput, bonus), 4},
    {OutputName::kStateProbe, offsetof(RoundOutput, state_probe), 4},
};

std::span<const uint8_t> AsBytes(std::span<const int32_t> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

}  // namespace

Decoder::Decoder(gpu::Context& context, program::Model& model)
    : context_(context), model_(model), alive_(std::make_shared<bool>(true)) {}

Result<std::unique_ptr<Decoder>> Decoder::Create(gpu::Context& context, program::Model& model) {
  std::unique_ptr<Decoder> decoder(new Decoder(context, model));
  for (Slot& slot : decoder->slots_) {
    GEMMA4_ASSIGN_OR_RETURN(slot.readback, gpu::Readback::Create(context, "round outputs", sizeof(RoundOutput)));
  }
  return decoder;
}

void Decoder::Reset() {
  length_ = 0;
  pending_ = -1;
  last_rows_ = 0;
  failed_ = false;
}

bool Decoder::StepFits() const {
  const uint32_t per_pass = model_.header().mtp() ? kRoundRows : 1;
  const uint64_t furthest = uint64_t{length_} + uint64_t{in_flight()} * per_pass;
  return furthest + 1 <= model_.header().context;
}

Status Decoder::WriteChunk(std::span<const int32_t> ids, uint32_t position) {
  std::vector<int32_t> positions(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) positions[i] = static_cast<int32_t>(position + i);
  GEMMA4_RETURN_IF_ERROR(context_.WriteBuffer(model_.Input(InputName::kIds), 0, AsBytes(ids)));
  GEMMA4_RETURN_IF_ERROR(context_.WriteBuffer(model_.Input(InputName::kPositions), 0, AsBytes(positions)));
  if (!model_.header().mtp()) return {};
  const int32_t flag[] = {0};
  const int32_t donor_length[] = {static_cast<int32_t>(position)};
  GEMMA4_RETURN_IF_ERROR(context_.WriteBuffer(model_.Input(InputName::kRoundFlag), 0, AsBytes(flag)));
  return context_.WriteBuffer(model_.Input(InputName::kDonorLength), 0, AsBytes(donor_length));
}

Status Decoder::CopyOutputs(gpu::CommandRecorder& recorder, const gpu::Readback& readback) const {
  if (!model_.header().mtp()) {
    return recorder.CopyBuffer(model_.Output(OutputName::kNextToken), 0, readback.buffer(), 0, sizeof(int32_t));
  }
  for (const OutputSlice& slice : kRoundOutputs) {
    GEMMA4_RETURN_IF_ERROR(
        recorder.CopyBuffer(model_.Output(slice.name), 0, readback.buffer(), slice.offset, slice.bytes));
  }
  return {};
}

Status Decoder::SubmitPass(Phase phase, uint32_t rows, bool last, Slot* slot) {
  gpu::CommandRecorder recorder(context_, phase == Phase::kRound ? "round" : rows > 1 ? "prefill" : "step");
  GEMMA4_ASSIGN_OR_RETURN(const gpu::Recording* pass, model_.Record(phase, rows));
  recorder.Run(*pass);
  if (last) {
    GEMMA4_ASSIGN_OR_RETURN(const gpu::Recording* commit, model_.RecordCommit(rows));
    recorder.Run(*commit);
    GEMMA4_RETURN_IF_ERROR(CopyOutputs(recorder, *slot->readback));
  }
  GEMMA4_RETURN_IF_ERROR(recorder.Submit());
  last_phase_ = phase;
  last_rows_ = rows;
  if (!last) return {};
  slot->readback->Map(sizeof(RoundOutput), [this, slot](Result<std::span<const uint8_t>> bytes) {
    Arrived(*slot, std::move(bytes));
  });
  return {};
}

// The slot of the next pass, which counts as issued from here on: its answer may come inside the call that asks for it.
Decoder::Slot& Decoder::Issue(bool round, uint32_t rows) {
  Slot& slot = slots_[issued_++ % kPassesInFlight];
  slot.round = round;
  slot.rows = rows;
  slot.arrived = false;
  return slot;
}

Status Decoder::EnqueuePrefill(std::span<const int32_t> ids, RowsCallback on_rows) {
  if (in_flight() != 0 || ids.empty()) return Internal("a prefill was enqueued behind other passes or without tokens");
  failed_ = false;
  prefill_ = Prefill();
  prefill_.ids.assign(ids.begin(), ids.end());
  prefill_.on_rows = std::move(on_rows);
  Issue(false, static_cast<uint32_t>(ids.size()));
  if (Status status = SubmitChunk(); !status.ok()) {
    --issued_;
    return status;
  }
  SubmitChunks();
  return {};
}

Status Decoder::SubmitChunk() {
  const std::span<const int32_t> ids = prefill_.ids;
  const uint32_t start = prefill_.sent;
  const auto part = ids.subspan(start, std::min<size_t>(model_.header().prefill_rows, ids.size() - start));
  const bool last = start + part.size() == ids.size();
  GEMMA4_RETURN_IF_ERROR(WriteChunk(part, length_ + start));
  prefill_.sent += static_cast<uint32_t>(part.size());
  if (!last) ++prefill_.chunks;
  const uint64_t pass = issued_;
  GEMMA4_RETURN_IF_ERROR(SubmitPass(Phase::kAlways, static_cast<uint32_t>(part.size()), last,
                                    &slots_[(pass - 1) % kPassesInFlight]));
  if (last) return {};
  context_.WhenDone([this, alive = alive_, pass, rows = prefill_.sent](Status status) {
    if (*alive && delivered_ < pass) ChunkDone(std::move(status), rows);
  });
  return {};
}

// As many chunks as may be on the GPU. A software adapter has no idle time to fill, and its chunks take long.
void Decoder::SubmitChunks() {
  const uint32_t room = context_.adapter().software ? 1 : kPassesInFlight;
  while (prefill_.stopped.ok() && prefill_.sent < prefill_.ids.size() && prefill_.chunks < room) {
    const uint32_t before = prefill_.chunks;
    if (Status status = SubmitChunk(); !status.ok()) {
      prefill_.chunks = before;
      prefill_.stopped = std::move(status);
    }
  }
  if (prefill_.stopped.ok() || prefill_.chunks > 0) return;
  Slot& slot = slots_[(issued_ - 1) % kPassesInFlight];
  slot.status = prefill_.stopped;
  slot.arrived = true;
  Deliver();
}

void Decoder::ChunkDone(Status status, uint32_t rows) {
  --prefill_.chunks;
  if (!status.ok() && prefill_.sent < prefill_.ids.size()) prefill_.stopped = std::move(status);
  const std::shared_ptr<bool> alive = alive_;
  if (prefill_.stopped.ok()) prefill_.on_rows(rows);
  if (*alive) SubmitChunks();
}

void Decoder::StopPrefill() {
  if (in_flight() == 0 || prefill_.sent == prefill_.ids.size() || !prefill_.stopped.ok()) return;
  prefill_.stopped = Status(Code::kCancelled, "the prefill was stopped before its end; begin again at position 0");
}

Status Decoder::EnqueueStep() {
  if (last_rows_ == 0 || in_flight() == kPassesInFlight || failed_) return Internal("a step was enqueued out of turn");
  const bool mtp = model_.header().mtp();
  if (mtp && in_flight() == 0) GEMMA4_RETURN_IF_ERROR(CheckDonorLength(length_, model_.header().context + kDrafts));
  if (!StepFits()) return LimitExceeded(Text("the context of ", model_.header().context, " positions is full"));
  Slot& slot = Issue(mtp, 1);
  Status status = SubmitPass(mtp ? Phase::kRound : Phase::kAlways, mtp ? kRoundRows : 1, true, &slot);
  if (!status.ok()) --issued_;
  return status;
}

void Decoder::Arrived(Slot& slot, Result<std::span<const uint8_t>> bytes) {
  slot.arrived = true;
  slot.status = bytes.ok() ? Status() : bytes.status();
  if (bytes.ok()) {
    std::memcpy(&slot.output, bytes->data(), sizeof(slot.output));
    std::memcpy(&slot.next_token, bytes->data(), sizeof(slot.next_token));
  }
  Deliver();
}

Result<Pass> Decoder::Judge(const Slot& slot) const {
  const program::Header& header = model_.header();
  GEMMA4_RETURN_IF_ERROR(slot.status);
  if (slot.round) return CheckRound(slot.output, length_, header.vocab);
  if (header.mtp()) return CheckRoundPrefill(slot.output, length_, slot.rows, header.vocab);
  return CheckPlain(slot.next_token, length_, slot.rows, header.vocab);
}

// Readbacks may answer in any order; passes are told in theirs.
void Decoder::Deliver() {
  if (delivering_) return;  // a callback below enqueued or a readback failed at once: the loop goes on by itself
  delivering_ = true;
  const std::shared_ptr<bool> alive = alive_;
  const PassCallback on_pass = on_pass_;
  while (in_flight() > 0 && slots_[delivered_ % kPassesInFlight].arrived) {
    const Slot& slot = slots_[delivered_ % kPassesInFlight];
    Result<Pass> pass = failed_ ? Result<Pass>(BadOutput("an earlier pass failed")) : Judge(slot);
    ++delivered_;
    if (pass.ok()) {
      length_ += pass->rows;
      pending_ = pass->tokens[pass->token_count - 1];
    } else {
      failed_ = true;
    }
    on_pass(std::move(pass));
    if (!*alive) return;
  }
  delivering_ = false;
}

}  // namespace gemma4::decode
