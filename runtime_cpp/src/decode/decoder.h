// Runs passes of a loaded model and reads what they decided. Owns the small readbacks, the KV length and the pending
// token. The next inputs are made on the GPU, so passes can be enqueued before earlier ones are read. Chunks of a prompt
// are handed over one by one, so that a prefill can be stopped between them. Never decides when to stop: that is
// Generation's and the session's work.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "decode/accept.h"
#include "gpu/context.h"
#include "gpu/pass.h"
#include "gpu/readback.h"
#include "program/model.h"

namespace gemma4::decode {

// Passes, or chunks of a prompt, that may be on the GPU at once: while the host reads one, the next already runs.
inline constexpr uint32_t kPassesInFlight = 2;

class Decoder {
 public:
  // Called for every enqueued pass, in order; after the first error all further ones are errors too. It may enqueue.
  using PassCallback = std::function<void(Result<Pass>)>;

  static Result<std::unique_ptr<Decoder>> Create(gpu::Context& context, program::Model& model);
  ~Decoder() { *alive_ = false; }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  void OnPass(PassCallback callback) { on_pass_ = std::move(callback); }

  // Told after every chunk but the last: the rows of the prompt that have run.
  using RowsCallback = std::function<void(uint32_t)>;

  // Runs ids (checked by CheckPrompt) from position length() on, in chunks of prefill_rows. One pass is reported, for
  // all chunks together. Only when nothing is in flight.
  Status EnqueuePrefill(std::span<const int32_t> ids, RowsCallback on_rows);
  // Hands over no further chunk; when those on the GPU have ended the pass is reported as kCancelled. Nothing happens
  // when the last chunk is already there, or when no prefill runs.
  void StopPrefill();
  // A plain decode step, or a speculative round where the program is k2_round. Only after a prefill.
  Status EnqueueStep();
  // Whether one more step is sure to stay inside the caches, whatever the passes in flight accept.
  bool StepFits() const;

  uint32_t in_flight() const { return static_cast<uint32_t>(issued_ - delivered_); }
  uint32_t length() const { return length_; }         // KV rows known to be valid
  int32_t pending_token() const { return pending_; }  // emitted, without a KV row; -1 before a prefill
  program::Phase last_phase() const { return last_phase_; }
  uint32_t last_rows() const { return last_rows_; }   // of the last enqueued pass; 0: none yet
  // Forgets the sequence. Only when nothing is in flight.
  void Reset();

 private:
  // Where one pass's outputs land, and what is needed to judge them.
  struct Slot {
    std::unique_ptr<gpu::Readback> readback;
    bool round = false;
    uint32_t rows = 0;
    bool arrived = false;
    Status status;
    RoundOutput output;
    int32_t next_token = 0;
  };
  // The prompt being run.
  struct Prefill {
    std::vector<int32_t> ids;
    RowsCallback on_rows;
    uint32_t sent = 0;      // ids handed to the GPU
    uint32_t chunks = 0;    // handed over, not known to have ended; the last one is not counted
    Status stopped;         // not ok: why no further chunk is handed over
  };

  Decoder(gpu::Context& context, program::Model& model);
  Status WriteChunk(std::span<const int32_t> ids, uint32_t position);
  Slot& Issue(bool round, uint32_t rows);
  Status SubmitChunk();
  void SubmitChunks();
  void ChunkDone(Status status, uint32_t rows);
  Status SubmitPass(program::Phase phase, uint32_t rows, bool last, Slot* slot);
  Status CopyOutputs(gpu::CommandRecorder& recorder, const gpu::Readback& readback) const;
  void Arrived(Slot& slot, Result<std::span<const uint8_t>> bytes);
  void Deliver();
  Result<Pass> Judge(const Slot& slot) const;

  gpu::Context& context_;
  program::Model& model_;
  PassCallback on_pass_;
  Slot slots_[kPassesInFlight];
  Prefill prefill_;
  uint64_t issued_ = 0;
  uint64_t delivered_ = 0;
  bool delivering_ = false;
  bool failed_ = false;
  uint32_t length_ = 0;
  int32_t pending_ = -1;
  program::Phase last_phase_ = program::Phase::kAlways;
  uint32_t last_rows_ = 0;
  std::shared_ptr<bool> alive_;  // on_pass_ may destroy the Decoder
};

}  // namespace gemma4::decode
