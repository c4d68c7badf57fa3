#include "decode/session.h"

#include <utility>

#include "base/text.h"
#if GEMMA4_PROFILE
#include "gpu/query_pool.h"
#endif

namespace gemma4::decode {
namespace {

constexpr const char* kMethod = GEMMA4_MTP ? "k2_round" : "text_decoder";

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kEmpty: return "nothing is open";
    case Stage::kOpen: return "a device is open, no program is planned";
    case Stage::kPlanned: return "a program is planned, nothing is loaded";
    case Stage::kLoading: return "the weights are being loaded";
    case Stage::kReady: return "a model is loaded";
  }
  return "";
}

const char* StageRemedy(Stage wanted) {
  switch (wanted) {
    case Stage::kEmpty: return "unload first";
    case Stage::kOpen: return "open a device first, after an unload of what is loaded";
    case Stage::kPlanned: return "plan a program first";
    case Stage::kLoading: return "load first";
    case Stage::kReady: return "load the model first";
  }
  return "";
}

std::string AdapterJson(const gpu::Context& context) {
  const gpu::AdapterInfo& info = context.adapter();
  const gpu::Limits& limits = context.limits();
  JsonWriter json;
  json.BeginObject();
  json.Key("vendor").String(info.vendor);
  json.Key("architecture").String(info.architecture);
  json.Key("device").String(info.device);
  json.Key("description").String(info.description);
  json.Key("software").Bool(info.software);
  json.Key("features").BeginArray();
  for (const std::string& feature : info.features) json.String(feature);
  json.EndArray();
  json.Key("limits").BeginObject();
  json.Key("maxBufferSize").Number(limits.max_buffer_bytes);
  json.Key("maxStorageBufferBindingSize").Number(limits.max_storage_binding_bytes);
  json.Key("maxUniformBufferBindingSize").Number(limits.max_uniform_binding_bytes);
  json.Key("maxStorageBuffersPerShaderStage").Number(limits.max_storage_buffers_per_stage);
  json.Key("maxComputeWorkgroupSizeX").Number(limits.max_workgroup_size_x);
  json.Key("maxComputeWorkgroupSizeY").Number(limits.max_workgroup_size_y);
  json.Key("maxComputeWorkgroupSizeZ").Number(limits.max_workgroup_size_z);
  json.Key("maxComputeInvocationsPerWorkgroup").Number(limits.max_invocations_per_workgroup);
  json.Key("maxComputeWorkgroupStorageSize").Number(limits.max_workgroup_storage_bytes);
  json.Key("maxComputeWorkgroupsPerDimension").Number(limits.max_workgroups_per_dimension);
  json.EndObject();
  json.EndObject();
  return json.Take();
}

}  // namespace

Session::~Session() {
  if (const auto request = EndRequest()) {
    events_.Failed(*request, Status(Code::kCancelled, "the runtime was closed"));
  }
  if (waiting_request_) events_.Failed(*waiting_request_, Status(Code::kCancelled, "the runtime was closed"));
  Dismantle();
}

// ---- Requests in general

Status Session::Begin(uint32_t request, std::string_view what) {
  if (request_) return FailedState(Text(what, " must wait: ", what_, " is running"));
  request_ = request;
  ++epoch_;
  what_ = what;
  return {};
}

Session::Continuation Session::WhileRunning(Continuation then) {
  return [this, epoch = epoch_, then = std::move(then)](Status status) {
    if (request_ && epoch_ == epoch) then(std::move(status));
  };
}

Status Session::CheckStage(Stage wanted, std::string_view what) const {
  if (stage_ == wanted) return {};
  return FailedState(Text(what, " does not fit now: ", StageName(stage_), "; ", StageRemedy(wanted)));
}

Status Session::CheckDecoding(std::string_view what) const {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kReady, what));
  if (unhealthy_.ok()) return {};
  if (context_->lost()) return unhealthy_;  // no reset helps
  return Status(Code::kUnhealthy, Text(what, " is refused after an earlier failure (", unhealthy_.message(), "); reset or load again"));
}

std::optional<uint32_t> Session::EndRequest() {
  generation_.reset();
  generation_failure_ = Status();
  what_.clear();
  return std::exchange(request_, std::nullopt);
}

void Session::Succeed(std::string_view json) {
  if (const auto request = EndRequest()) events_.Done(*request, json);
  RunWaiting();
}

void Session::Fail(Status status) {
  LatchIfGpu(status);
  if (const auto request = EndRequest()) events_.Failed(*request, status);
  RunWaiting();
}

void Session::RunWaiting() {
  if (request_ || !waiting_) return;
  request_ = std::exchange(waiting_request_, std::nullopt);
  ++epoch_;
  std::exchange(waiting_, nullptr)();
}

Status Session::WhenIdle(uint32_t request, std::string_view what, std::function<void()> action) {
  if (!request_) {
    GEMMA4_RETURN_IF_ERROR(Begin(request, what));
    action();
    return {};
  }
  if (waiting_) return FailedState(Text(what, " must wait: another reset or unload is already waiting"));
  waiting_request_ = request;
  waiting_ = std::move(action);
  Cancel();
  return {};
}

void Session::LatchIfGpu(const Status& status) {
  const bool gpu = status.code() == Code::kGpuError || status.code() == Code::kOutOfMemory ||
                   status.code() == Code::kDeviceLost;
  if (gpu && unhealthy_.ok()) unhealthy_ = status;
}

// ---- Device

Status Session::Open(uint32_t request) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kEmpty, "open"));
  GEMMA4_RETURN_IF_ERROR(Begin(request, "open"));
  Result<std::unique_ptr<gpu::Context>> made = gpu::Context::Create(counter_);
  if (!made.ok()) {
    EndRequest();
    return made.status();
  }
  context_ = std::move(made).value();
  context_->Open([this](Status status) {
    if (status.ok()) return Opened();
    context_.reset();
    Fail(std::move(status));
  });
  return {};
}

void Session::Opened() {
  stage_ = Stage::kOpen;
  context_->OnLost([this](std::string reason, std::string message) { OnDeviceLost(reason, message); });
  Succeed(AdapterJson(*context_));
}

void Session::OnDeviceLost(std::string_view reason, std::string_view message) {
  unhealthy_ = context_->status();
  continues_ = false;
  const auto request = EndRequest();
  const auto waiting = std::exchange(waiting_request_, std::nullopt);
  waiting_ = nullptr;
  events_.Lost(reason, message);
  if (request) events_.Failed(*request, unhealthy_);
  if (waiting) events_.Failed(*waiting, unhealthy_);
}

void Session::Dismantle() {
  decoder_.reset();
  model_.reset();
  plan_.reset();
  continues_ = false;
  if (context_ != nullptr) stage_ = Stage::kOpen;
}

// ---- Loading

Result<std::string> Session::MakePlan(std::span<const uint8_t> program, uint32_t route_mask) {
  if (request_) return FailedState(Text("plan must wait: ", what_, " is running"));
  if (stage_ != Stage::kPlanned) GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kOpen, "plan"));
  plan_.reset();
  stage_ = Stage::kOpen;
  if (route_mask == 0) route_mask = ops::RoutesFor(context_->adapter());
  GEMMA4_ASSIGN_OR_RETURN(program::Plan plan, program::Model::MakePlan(program, kMethod, context_->limits(),
                                                                       route_mask));
  std::string json = plan.ToJson();
  plan_ = std::move(plan);
  stage_ = Stage::kPlanned;
  return json;
}

Status Session::Load(uint32_t request) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kPlanned, "load"));
  GEMMA4_RETURN_IF_ERROR(Begin(request, "load"));
  context_->ClearError();
  const auto give_up = [this](Status status) {
    Dismantle();
    Fail(std::move(status));
  };
  Result<std::unique_ptr<program::Model>> model = program::Model::Create(*context_, *std::exchange(plan_, std::nullopt));
  if (!model.ok()) {
    Dismantle();
    EndRequest();
    return model.status();
  }
  model_ = std::move(model).value();
  stage_ = Stage::kLoading;
  // Settled first: a device that has no room for the buffers should say so before minutes go into pipelines.
  context_->Settle(WhileRunning([this, give_up](Status status) {
    if (!status.ok()) return give_up(std::move(status));
    model_->CompilePipelines(WhileRunning([this, give_up](Status compiled) {
      if (!compiled.ok()) return give_up(std::move(compiled));
      Succeed("{}");
    }));
  }));
  return {};
}

Status Session::BeginShard(uint32_t shard) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kLoading, "shard_begin"));
  if (request_) return FailedState(Text("shard_begin must wait: ", what_, " is running"));
  return model_->BeginShard(shard);
}

Status Session::WriteShard(uint32_t shard, std::span<const uint8_t> slice) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kLoading, "shard_write"));
  GEMMA4_RETURN_IF_ERROR(context_->status());
  return model_->WriteShard(shard, slice);
}

Status Session::EndShard(uint32_t shard, std::string_view sha256_hex) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kLoading, "shard_end"));
  return model_->EndShard(shard, sha256_hex);
}

Status Session::FinishLoad(uint32_t request) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kLoading, "finish_load"));
  if (!request_ && !model_->AllShardsLoaded()) {
    return FailedState("finish_load does not fit now: not all weight shards were written");
  }
  GEMMA4_RETURN_IF_ERROR(Begin(request, "finish_load"));
  Result<std::unique_ptr<Decoder>> decoder = Decoder::Create(*context_, *model_);
  if (decoder.ok()) decoder_ = std::move(decoder).value();
  context_->Settle(WhileRunning([this, made = decoder.status()](Status status) {
    if (status.ok()) status = made;
    if (!status.ok()) {
      Dismantle();
      return Fail(std::move(status));
    }
    stage_ = Stage::kReady;
    unhealthy_ = Status();
    StartDecoding();
    Succeed("{}");
  }));
  return {};
}

// ---- Giving back

Status Session::Reset(uint32_t request) {
  GEMMA4_RETURN_IF_ERROR(CheckStage(Stage::kReady, "reset"));
  return WhenIdle(request, "reset", [this] { DoReset(); });
}

void Session::DoReset() {
  if (stage_ != Stage::kReady) return Fail(CheckStage(Stage::kReady, "reset"));
  if (!context_->lost()) context_->ClearError();
  context_->Settle(WhileRunning([this](Status status) {
    if (!status.ok()) {
      unhealthy_ = status;
      return Fail(std::move(status));
    }
    unhealthy_ = Status();
    StartDecoding();
    Succeed("{}");
  }));
}

Status Session::Unload(uint32_t request) {
  return WhenIdle(request, "unload", [this] { DoUnload(); });
}

void Session::DoUnload() {
  if (context_ == nullptr) return Succeed("{}");
  context_->Settle(WhileRunning([this](Status) {
    Dismantle();
    context_.reset();
    stage_ = Stage::kEmpty;
    counters_ = {};
    unhealthy_ = Status();
    Succeed("{}");
  }));
}

std::string Session::ProfileJson() const {
  JsonWriter json;
  json.BeginObject();
  json.Key("schema").Number(1);
#if GEMMA4_PROFILE
  const gpu::QueryPool* queries = context_ == nullptr ? nullptr : context_->queries();
  const gpu::Profile profile = queries == nullptr ? gpu::Profile{} : queries->profile();
  const bool fresh = profile.collected > 0 && profile.pending == 0;
  json.Key("supported").Bool(queries != nullptr);
  json.Key("generation").Number(profile.generation);
  json.Key("fresh").Bool(fresh);
  json.Key("valid").Bool(fresh && profile.broken_pairs == 0);
  json.Key("timestamp_quantum_ns").Number(profile.quantum_ns);
  json.Key("total_ns").Number(profile.total_ns);
  json.Key("kernels").BeginArray();
  for (const auto& [name, time] : profile.kernels) {
    json.BeginObject();
    json.Key("name").String(name);
    json.Key("calls").Number(time.calls);
    json.Key("total_ns").Number(time.total_ns);
    json.EndObject();
  }
  json.EndArray();
#else
  json.Key("supported").Bool(false);
  json.Key("generation").Number(0);
  json.Key("fresh").Bool(false);
  json.Key("valid").Bool(false);
  json.Key("timestamp_quantum_ns").Number(0);
  json.Key("total_ns").Number(0);
  json.Key("kernels").BeginArray().EndArray();
#endif
  json.EndObject();
  return json.Take();
}

}  // namespace gemma4::decode
