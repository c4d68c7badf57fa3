// The C ABI of the module, the only extern "C" (exports.txt lists it): handles, pointers and numbers in, a status out,
// results as events through g4_event (events.js). This is the one file with static state: a module instance has one
// WebGPU context, so there is one slot, and C callers have nothing but a number to name it by.
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/text.h"
#include "decode/generation.h"
#include "decode/session.h"
#include "gpu/handle.h"

// JavaScript's side of every event. Text (kinds 1, 2, 4) is UTF-8 of `bytes` bytes; the memory is valid during the call.
extern "C" void g4_event(uint32_t handle, uint32_t request, uint32_t kind, const void* data, uint32_t bytes);

namespace {

using gemma4::Code;
using gemma4::FailedState;
using gemma4::InvalidArgument;
using gemma4::JsonWriter;
using gemma4::Result;
using gemma4::Status;
using gemma4::decode::Session;

enum EventKind : uint32_t { kDone = 1, kFailed = 2, kTokens = 3, kDeviceLost = 4, kData = 5, kProgress = 6 };

class Events final : public gemma4::decode::EventSink {
 public:
  explicit Events(uint32_t handle) : handle_(handle) {}

  void Done(uint32_t request, std::string_view json) override { Send(request, kDone, json.data(), json.size()); }
  void Failed(uint32_t request, const Status& status) override {
    JsonWriter json;
    json.BeginObject();
    json.Key("code").String(CodeName(status.code()));
    json.Key("message").String(status.message());
    json.EndObject();
    const std::string text = json.Take();
    Send(request, kFailed, text.data(), text.size());
  }
  void Tokens(uint32_t request, std::span<const int32_t> tokens) override {
    Send(request, kTokens, tokens.data(), tokens.size_bytes());
  }
  void Progress(uint32_t request, uint32_t rows, uint32_t total) override {
    const uint32_t pair[] = {rows, total};
    Send(request, kProgress, pair, sizeof(pair));
  }
  void Data(uint32_t request, std::span<const uint8_t> bytes) override {
    Send(request, kData, bytes.data(), bytes.size());
  }
  void Lost(std::string_view reason, std::string_view message) override {
    JsonWriter json;
    json.BeginObject();
    json.Key("reason").String(reason);
    json.Key("message").String(message);
    json.EndObject();
    const std::string text = json.Take();
    Send(0, kDeviceLost, text.data(), text.size());
  }
  // JavaScript runs inside an event and may call back; closing would then destroy what is below it on the stack.
  bool sending() const { return depth_ > 0; }

 private:
  void Send(uint32_t request, EventKind kind, const void* data, size_t bytes) {
    ++depth_;
    g4_event(handle_, request, kind, data, static_cast<uint32_t>(bytes));
    --depth_;
  }

  uint32_t handle_;
  int depth_ = 0;
};

// What a handle names. The session is destroyed before the events it reports to.
struct Owner {
  explicit Owner(uint32_t handle, gemma4::gpu::ObjectCounter& counter) : events(handle), session(counter, events) {}
  Events events;
  Session session;
};

std::atomic<uint32_t> owner_handle = 0;  // 0: nobody owns the context
uint32_t last_handle = 0;
std::unique_ptr<Owner> owner;
gemma4::gpu::ObjectCounter counter;      // outlives every owner: it shows that nothing was left behind
std::string last_error;
std::string last_text;

int32_t Report(const Status& status) {
  if (status.ok()) return 0;
  last_error = status.message();
  return static_cast<int32_t>(status.code());
}

const char* ReportText(Result<std::string> text) {
  if (!text.ok()) {
    Report(text.status());
    return nullptr;
  }
  last_text = std::move(text).value();
  return last_text.c_str();
}

// The session of a handle, or null with the error recorded.
Session* Find(uint32_t handle) {
  if (owner != nullptr && handle != 0 && owner_handle.load() == handle) return &owner->session;
  Report(InvalidArgument(gemma4::Text("handle ", handle, " names no open runtime")));
  return nullptr;
}

constexpr auto kNoHandle = static_cast<int32_t>(Code::kInvalidArgument);

// A C array as a span; a null pointer is good for no elements only.
template <typename T>
Result<std::span<const T>> Array(const T* data, uint32_t count, std::string_view what) {
  if (data == nullptr && count > 0) return InvalidArgument(gemma4::Text(what, " is a null pointer"));
  return std::span<const T>(data, count);
}

}  // namespace

extern "C" {

uint32_t g4_create() {
  uint32_t nobody = 0;
  const uint32_t handle = last_handle + 1;
  if (!owner_handle.compare_exchange_strong(nobody, handle)) {
    Report(FailedState(gemma4::Text("this module's WebGPU context is owned by handle ", nobody, "; close it first")));
    return 0;
  }
  last_handle = handle;
  owner = std::make_unique<Owner>(handle, counter);
  return handle;
}

const char* g4_error() { return last_error.c_str(); }

int32_t g4_open(uint32_t handle, uint32_t request) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->Open(request));
}

// route_mask: bits of ops/route.h; 0: the routes that suit the adapter.
const char* g4_plan(uint32_t handle, const uint8_t* program, uint32_t bytes, uint32_t route_mask) {
  Session* session = Find(handle);
  if (session == nullptr) return nullptr;
  const auto view = Array(program, bytes, "program");
  return ReportText(view.ok() ? session->MakePlan(*view, route_mask) : Result<std::string>(view.status()));
}

int32_t g4_load(uint32_t handle, uint32_t request) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->Load(request));
}

int32_t g4_shard_begin(uint32_t handle, uint32_t shard) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->BeginShard(shard));
}

int32_t g4_shard_write(uint32_t handle, uint32_t shard, const uint8_t* data, uint32_t bytes) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  const auto slice = Array(data, bytes, "shard slice");
  return Report(slice.ok() ? session->WriteShard(shard, *slice) : slice.status());
}

int32_t g4_shard_end(uint32_t handle, uint32_t shard, const char* sha256_hex) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  if (sha256_hex == nullptr) return Report(InvalidArgument("sha256_hex is a null pointer"));
  return Report(session->EndShard(shard, sha256_hex));
}

int32_t g4_finish_load(uint32_t handle, uint32_t request) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->FinishLoad(request));
}

int32_t g4_generate(uint32_t handle, uint32_t request, const int32_t* ids, uint32_t count, uint32_t max_new_tokens,
                    const int32_t* stop_ids, uint32_t stop_count) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  const auto prompt = Array(ids, count, "ids");
  const auto stops = Array(stop_ids, stop_count, "stop_ids");
  if (!prompt.ok()) return Report(prompt.status());
  if (!stops.ok()) return Report(stops.status());
  return Report(session->Generate(request, *prompt, max_new_tokens, {stops->begin(), stops->end()}));
}

int32_t g4_prefill(uint32_t handle, uint32_t request, const int32_t* ids, uint32_t count, uint32_t position) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  const auto prompt = Array(ids, count, "ids");
  return Report(prompt.ok() ? session->Prefill(request, *prompt, position) : prompt.status());
}

int32_t g4_step(uint32_t handle, uint32_t request, int32_t token, uint32_t position) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->Step(request, token, position));
}

int32_t g4_cancel(uint32_t handle) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  session->Cancel();
  return 0;
}

int32_t g4_read(uint32_t handle, uint32_t request, const char* name) {
  Session* session = Find(handle);
  if (session == nullptr) return kNoHandle;
  if (name == nullptr) return Report(InvalidArgument("the tensor name is a null pointer"));
  return Report(session->Read(request, name));
}

const char* g4_counters(uint32_t handle) {
  Session* session = Find(handle);
  return session == nullptr ? nullptr : ReportText(gemma4::decode::ToJson(session->counters()));
}

const char* g4_profile(uint32_t handle) {
  Session* session = Find(handle);
  return session == nullptr ? nullptr : ReportText(session->ProfileJson());
}

int32_t g4_reset(uint32_t handle, uint32_t request) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->Reset(request));
}

int32_t g4_unload(uint32_t handle, uint32_t request) {
  Session* session = Find(handle);
  return session == nullptr ? kNoHandle : Report(session->Unload(request));
}

int32_t g4_close(uint32_t handle) {
  if (Find(handle) == nullptr) return kNoHandle;
  if (owner->events.sending()) {
    return Report(FailedState("close does not fit now: an event is being handled; close after it has returned"));
  }
  owner.reset();
  uint32_t expected = handle;
  owner_handle.compare_exchange_strong(expected, 0);
  return 0;
}

// Of the whole module, so that it can be asked after a close: the handle is not looked at.
int32_t g4_objects(uint32_t) { return counter.objects; }

}  // extern "C"
