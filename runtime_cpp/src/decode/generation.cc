#include "decode/generation.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace gemma4::decode {
namespace {

void Write(JsonWriter& json, const Counters& counters) {
  json.BeginObject();
  json.Key("rounds").Number(counters.rounds);
  json.Key("drafted").Number(counters.drafted);
  json.Key("accepted").Number(counters.accepted);
  json.Key("emitted").Number(counters.emitted);
  json.Key("cut").Number(counters.cut);
  json.Key("buffered").Number(counters.buffered);
  json.EndObject();
}

}  // namespace

Generation::Generation(uint32_t prompt_tokens, uint32_t max_new_tokens, uint32_t context, std::vector<int32_t> stop_ids)
    : stop_ids_(std::move(stop_ids)) {
  const uint64_t fits = uint64_t{context} + 1 - std::min(prompt_tokens, context);
  context_bound_ = fits < max_new_tokens;
  room_ = std::min<uint64_t>(fits, max_new_tokens);
}

std::span<const int32_t> Generation::Take(const Pass& pass) {
  const Cut cut = CutRun({pass.tokens.data(), pass.token_count}, room_, stop_ids_);
  counters_.Count(pass, cut.kept);
  room_ -= cut.kept;
  ending_ = cut.ending;
  if (pass.round) rounds_.push_back(pass);
  return {pass.tokens.data(), cut.kept};
}

const char* Generation::finish() const {
  if (ending_ == Ending::kStop) return "stop";
  if (ending_ == Ending::kFull) return context_bound_ ? "context" : "length";
  return cancelled_ ? "cancelled" : "none";
}

std::string Generation::ToJson(std::string_view passes_apart) const {
  JsonWriter json;
  json.BeginObject();
  json.Key("finish").String(finish());
  json.Key("counters");
  Write(json, counters_);
  json.Key("rounds").BeginArray();
  for (const Pass& round : rounds_) {
    json.BeginObject();
    json.Key("pos").Number(round.position);
    json.Key("drafts").BeginArray();
    for (const int32_t draft : round.drafts) json.Number(draft);
    json.EndArray();
    json.Key("accepted").Number(round.accepted);
    json.Key("emitted").BeginArray();
    for (uint32_t i = 0; i < round.token_count; ++i) json.Number(round.tokens[i]);
    json.EndArray();
    json.EndObject();
  }
  json.EndArray();
  json.Key("passes").BeginObject();
  json.Key("single").Bool(passes_apart.empty());
  json.Key("reason").String(passes_apart);
  json.EndObject();
  json.EndObject();
  return json.Take();
}

std::string ToJson(const Counters& counters) {
  JsonWriter json;
  Write(json, counters);
  return json.Take();
}

}  // namespace gemma4::decode
