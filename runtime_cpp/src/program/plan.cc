#include "program/plan.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace gemma4::program {

bool Plan::Proves(ops::schema::Property property) const {
  return std::any_of(certificate.begin(), certificate.end(),
                     [&](const Proof& proof) { return proof.property == property; });
}

std::string Plan::ToJson() const {
  JsonWriter json;
  json.BeginObject();
  json.Key("method").String(header.method);
  json.Key("vocab").Number(header.vocab);
  json.Key("hidden").Number(header.hidden);
  json.Key("context").Number(header.context);
  json.Key("prefill_rows").Number(header.prefill_rows);
  json.Key("window").Number(header.window);
  json.Key("query_positions").String(header.progressive_queries ? "progressive" : "constant");
  json.Key("stop_ids").BeginArray();
  for (const int32_t id : header.stop_ids) json.Number(id);
  json.EndArray();
  json.Key("source_sha256").String(header.source_sha256);
  json.Key("certificate").BeginArray();
  for (const Proof& proof : certificate) {
    json.BeginObject();
    json.Key("property").String(ops::schema::EnumNameProperty(proof.property));
    json.Key("subject").String(proof.subject);
    json.Key("sha256").String(proof.sha256);
    json.EndObject();
  }
  json.EndArray();
  json.Key("ops").Number(static_cast<uint64_t>(graph.ops.size()));
  json.Key("tensors").Number(static_cast<uint64_t>(graph.tensors.size()));
  json.Key("weight_bytes").Number(memory.weight_bytes);
  json.Key("cache_bytes").Number(memory.cache_bytes);
  json.Key("activation_bytes").Number(memory.shared_bytes + memory.owned_bytes);
  json.Key("scratch_bytes").Number(std::accumulate(memory.scratch_bytes.begin(), memory.scratch_bytes.end(), uint64_t{0}));
  json.Key("activation_buffers").Number(static_cast<uint64_t>(memory.slot_bytes.size()));
  json.Key("total_bytes").Number(memory.total_bytes);
  json.Key("largest_binding").BeginObject();
  json.Key("tensor").String(memory.largest_tensor);
  json.Key("bytes").Number(memory.largest_binding_bytes);
  json.EndObject();
  json.Key("shards").BeginArray();
  for (const ShardInfo& shard : shards) {
    json.BeginObject();
    json.Key("file").String(shard.file);
    json.Key("bytes").Number(shard.bytes);
    json.Key("sha256").String(shard.sha256);
    json.Key("role").String(shard.assistant ? "assistant" : "target");
    json.EndObject();
  }
  json.EndArray();
  json.Key("routes");
  routes.Tell(graph, json);
  json.EndObject();
  return json.Take();
}

}  // namespace gemma4::program
