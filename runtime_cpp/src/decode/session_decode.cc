// The decoding requests of a Session: generate, prefill, step, read, cancel.
#include <utility>

#include "base/text.h"
#include "decode/session.h"
#include "gpu/readback.h"
#if GEMMA4_PROFILE
#include "gpu/query_pool.h"
#endif

namespace gemma4::decode {
namespace {

std::string PassJson(const Pass& pass) {
  JsonWriter json;
  json.BeginObject();
  json.Key("tokens").BeginArray();
  for (uint32_t i = 0; i < pass.token_count; ++i) json.Number(pass.tokens[i]);
  json.EndArray();
  json.Key("drafts").BeginArray();
  if (pass.round) {
    for (const int32_t draft : pass.drafts) json.Number(draft);
  }
  json.EndArray();
  json.Key("accepted").Number(pass.accepted);
  json.EndObject();
  return json.Take();
}

}  // namespace

// A new sequence: KV length, counters and profile begin again.
void Session::StartDecoding() {
  decoder_->Reset();
  counters_ = {};
  continues_ = true;
#if GEMMA4_PROFILE
  if (context_->queries() != nullptr) context_->queries()->Reset();
#endif
}

Status Session::Generate(uint32_t request, std::span<const int32_t> ids, uint32_t max_new_tokens,
                         std::vector<int32_t> stop_ids) {
  GEMMA4_RETURN_IF_ERROR(CheckDecoding("generate"));
  const program::Header& header = model_->header();
  GEMMA4_RETURN_IF_ERROR(CheckPrompt(ids, 0, header.context, header.vocab));
  if (max_new_tokens == 0) return InvalidArgument("max_new_tokens is 0; at least 1 is needed");
  GEMMA4_RETURN_IF_ERROR(Begin(request, "generate"));
  StartDecoding();
  continues_ = false;  // passes past the end may have run on the GPU
  generation_.emplace(static_cast<uint32_t>(ids.size()), max_new_tokens, header.context, std::move(stop_ids));
  decoder_->OnPass([this, epoch = epoch_](Result<Pass> pass) {
    if (request_ && epoch_ == epoch) OnGeneratedPass(std::move(pass));
  });
  if (Status status = decoder_->EnqueuePrefill(ids, TellProgress(ids.size())); !status.ok()) {
    LatchIfGpu(status);
    EndRequest();
    return status;
  }
  return {};
}

Decoder::RowsCallback Session::TellProgress(size_t total) {
  return [this, epoch = epoch_, total](uint32_t rows) {
    if (request_ && epoch_ == epoch) events_.Progress(*request_, rows, static_cast<uint32_t>(total));
  };
}

void Session::OnGeneratedPass(Result<Pass> pass) {
  if (!pass.ok()) {
    const bool stopped = pass.status().code() == Code::kCancelled;  // a prefill, by Cancel
    if (generation_failure_.ok() && !stopped) generation_failure_ = pass.status();
  } else if (!generation_->ended() && generation_failure_.ok()) {
    const std::span<const int32_t> tokens = generation_->Take(*pass);
    counters_ = generation_->counters();
    if (!tokens.empty()) events_.Tokens(*request_, tokens);
    EnqueueWhatFits();
  }
  const bool over = generation_->ended() || !generation_failure_.ok();
  if (over && decoder_->in_flight() == 0) EndGeneration();
}

// As many passes as are sure to be wanted unless a stop id comes: each returns at least one token.
void Session::EnqueueWhatFits() {
  while (!generation_->ended() && decoder_->in_flight() < kPassesInFlight &&
         decoder_->in_flight() < generation_->room() && decoder_->StepFits()) {
    generation_failure_ = decoder_->EnqueueStep();
    if (!generation_failure_.ok()) return;
  }
}

void Session::EndGeneration() {
  decoder_->OnPass(nullptr);
  context_->Settle(WhileRunning([this](Status status) {
    if (!generation_failure_.ok()) return Fail(generation_failure_);
    if (!status.ok()) return Fail(std::move(status));
    const std::string json = generation_->ToJson(model_->passes_apart());
    Succeed(json);
  }));
}

// Prefill and step: one pass, told as JSON.
Status Session::RunSingle(const std::function<Status()>& enqueue) {
  decoder_->OnPass([this, epoch = epoch_](Result<Pass> pass) {
    if (!request_ || epoch_ != epoch) return;
    if (!pass.ok()) {
      continues_ = false;
      return Fail(pass.status());
    }
    counters_.Count(*pass, pass->token_count);
    context_->Settle(WhileRunning([this, json = PassJson(*pass)](Status status) {
      if (!status.ok()) return Fail(std::move(status));
      Succeed(json);
    }));
  });
  Status status = enqueue();
  if (!status.ok()) {
    continues_ = false;
    LatchIfGpu(status);
    EndRequest();
  }
  return status;
}

Status Session::Prefill(uint32_t request, std::span<const int32_t> ids, uint32_t position) {
  GEMMA4_RETURN_IF_ERROR(CheckDecoding("prefill"));
  if (request_) return FailedState(Text("prefill must wait: ", what_, " is running"));
  const program::Header& header = model_->header();
  const uint32_t expected = continues_ ? decoder_->length() : 0;
  if (position != expected) {
    return InvalidArgument(Text("a prefill must begin at position ", expected, ", it was given ", position));
  }
  GEMMA4_RETURN_IF_ERROR(CheckPrompt(ids, position, header.context, header.vocab));
  GEMMA4_RETURN_IF_ERROR(Begin(request, "prefill"));
  if (!continues_) StartDecoding();
  return RunSingle([this, ids] { return decoder_->EnqueuePrefill(ids, TellProgress(ids.size())); });
}

Status Session::Step(uint32_t request, int32_t token, uint32_t position) {
  GEMMA4_RETURN_IF_ERROR(CheckDecoding("step"));
  if (request_) return FailedState(Text("step must wait: ", what_, " is running"));
  if (!continues_ || decoder_->pending_token() < 0) return FailedState("a step needs a prefill before it");
  GEMMA4_RETURN_IF_ERROR(CheckContinues(position, token, decoder_->length(), decoder_->pending_token()));
  if (!decoder_->StepFits()) {
    return LimitExceeded(Text("the context is full: position ", position, " of ", model_->header().context));
  }
  GEMMA4_RETURN_IF_ERROR(Begin(request, "step"));
  return RunSingle([this] { return decoder_->EnqueueStep(); });
}

Status Session::Read(uint32_t request, std::string_view tensor_name) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kReady, "read"));
  if (request_) return FailedState(Text("read must wait: ", what_, " is running"));
  if (decoder_->last_rows() == 0) return FailedState("read needs a pass before it");
  program::TensorInfo info;
  GEMMA4_ASSIGN_OR_RETURN(const gpu::Buffer* buffer, model_->Readable(tensor_name, decoder_->last_phase(),
                                                                      decoder_->last_rows(), &info));
  GEMMA4_RETURN_IF_ERROR(Begin(request, "read"));
  gpu::ReadBuffer(*context_, *buffer, 0, info.bytes, [this, epoch = epoch_](Result<std::vector<uint8_t>> bytes) {
    if (!request_ || epoch_ != epoch) return;
    if (!bytes.ok()) return Fail(bytes.status());
    const auto ended = EndRequest();
    events_.Data(*ended, *bytes);
    RunWaiting();
  });
  return {};
}

void Session::Cancel() {
  if (generation_) generation_->Cancel();
  if (request_ && decoder_ != nullptr) decoder_->StopPrefill();
}

}  // namespace gemma4::decode
