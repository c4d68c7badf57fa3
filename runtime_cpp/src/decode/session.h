// One model on one WebGPU context, from opening the device to giving everything back. Owns Context, Plan, Model and
// Decoder and the state machine over them; one request runs at a time and ends in exactly one event. Never blocks, never
// knows of JavaScript: what happens is told to an EventSink.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "decode/accept.h"
#include "decode/decoder.h"
#include "decode/generation.h"
#include "gpu/context.h"
#include "program/model.h"

namespace gemma4::decode {

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void Done(uint32_t request, std::string_view json) = 0;
  virtual void Failed(uint32_t request, const Status& status) = 0;
  virtual void Tokens(uint32_t request, std::span<const int32_t> tokens) = 0;
  // Of a prompt that runs in several chunks: its rows that have run so far, and all of them.
  virtual void Progress(uint32_t request, uint32_t rows, uint32_t total) = 0;
  virtual void Data(uint32_t request, std::span<const uint8_t> bytes) = 0;
  virtual void Lost(std::string_view reason, std::string_view message) = 0;
};

// What exists. Whether a request is running is a second question (busy()), whether decoding is allowed a third (health).
enum class Stage : uint8_t {
  kEmpty,    // no device
  kOpen,     // a device
  kPlanned,  // a validated program
  kLoading,  // buffers and pipelines; shards arrive
  kReady,    // all weights
};

class Session {
 public:
  // Both outlive the session; `counter` is 0 again when it is gone.
  Session(gpu::ObjectCounter& counter, EventSink& events) : counter_(counter), events_(events) {}
  // Fails a running request.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Requests. An error returned here means that the request never began and no event follows.
  Status Open(uint32_t request);
  Status Load(uint32_t request);        // allocates and compiles; on failure the stage is kOpen again
  Status FinishLoad(uint32_t request);  // all shards are there; clears an unhealthy state
  Status Generate(uint32_t request, std::span<const int32_t> ids, uint32_t max_new_tokens, std::vector<int32_t> stop_ids);
  Status Prefill(uint32_t request, std::span<const int32_t> ids, uint32_t position);
  Status Step(uint32_t request, int32_t token, uint32_t position);
  Status Read(uint32_t request, std::string_view tensor_name);
  // Both wait for a running request, which they cancel. Unload gives back everything, the device too (kEmpty again); it
  // succeeds in every stage, also twice.
  Status Reset(uint32_t request);
  Status Unload(uint32_t request);

  // `route_mask`: the routes that may be taken (ops/route.h); 0: those that suit the adapter.
  Result<std::string> MakePlan(std::span<const uint8_t> program, uint32_t route_mask = 0);
  Status BeginShard(uint32_t shard);
  Status WriteShard(uint32_t shard, std::span<const uint8_t> slice);
  Status EndShard(uint32_t shard, std::string_view sha256_hex);
  // Ends what runs as soon as it can: a generation with finish "cancelled", a prefill as failed (kCancelled).
  void Cancel();

  const Counters& counters() const { return counters_; }
  std::string ProfileJson() const;

 private:
  using Continuation = std::function<void(Status)>;

  Status Begin(uint32_t request, std::string_view what);
  // `then`, unless the running request has ended by the time it is called (the device may be lost in between).
  Continuation WhileRunning(Continuation then);
  Status CheckStage(Stage wanted, std::string_view what) const;
  Status CheckDecoding(std::string_view what) const;
  void Succeed(std::string_view json);
  void Fail(Status status);
  std::optional<uint32_t> EndRequest();
  void RunWaiting();
  Status WhenIdle(uint32_t request, std::string_view what, std::function<void()> action);

  void Opened();
  void Dismantle();
  void DoReset();
  void DoUnload();
  void OnDeviceLost(std::string_view reason, std::string_view message);
  void LatchIfGpu(const Status& status);

  void StartDecoding();
  void OnGeneratedPass(Result<Pass> pass);
  void EnqueueWhatFits();
  void EndGeneration();
  Decoder::RowsCallback TellProgress(size_t total);
  Status RunSingle(const std::function<Status()>& enqueue);

  gpu::ObjectCounter& counter_;
  EventSink& events_;
  Stage stage_ = Stage::kEmpty;
  Status unhealthy_;  // not ok: why decoding is refused until a load or reset succeeds
  std::unique_ptr<gpu::Context> context_;
  std::optional<program::Plan> plan_;
  std::unique_ptr<program::Model> model_;
  std::unique_ptr<Decoder> decoder_;
  Counters counters_;

  std::optional<uint32_t> request_;  // the running one
  uint64_t epoch_ = 0;               // counts requests, so that late callbacks are told apart
  std::string what_;                 // its name, for messages
  std::optional<Generation> generation_;
  Status generation_failure_;
  bool continues_ = false;           // the decoder's state may be continued by Prefill and Step
  std::optional<uint32_t> waiting_request_;
  std::function<void()> waiting_;    // a Reset or Unload, to run when the present request has ended
};

}  // namespace gemma4::decode
