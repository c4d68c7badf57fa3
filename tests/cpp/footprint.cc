#include "footprint.h"

#include <string_view>

#include "base/text.h"
#include "ops/rope.h"

namespace gemma4::test {

namespace {

using ops::BindingRef;
using ops::DispatchSpec;
using Words = std::vector<uint64_t>;

template <typename Params>
Params Read(const DispatchSpec& spec) {
  Params params;
  std::memcpy(&params, spec.params.data(), sizeof(params));
  return params;
}

uint64_t Mul(uint64_t a, uint64_t b) { return a * b; }
uint64_t Q4Values(uint64_t rows, uint64_t k) { return rows * k / 8; }
template <typename Params>
uint64_t Q4Scales(uint64_t rows, const Params& p) {
  const uint64_t scales = rows * ((p.k / 16) >> p.group_shift);
  return (p.flags & 1) != 0 ? scales : (scales + 1) / 2;
}

// The last column of the last row that a part writes, and one.
template <typename Params>
uint64_t Reach(uint64_t rows, const Params& p) {
  return Mul(rows - 1, p.stride) + p.first + p.n;
}

Words Matrices(const DispatchSpec& spec, std::string_view name) {
  if (name == "embedding_f32") {
    const auto p = Read<kernels::EmbeddingF32Params>(spec);
    return {p.rows, Mul(p.count, p.width), Mul(p.rows, p.width)};
  }
  if (name == "embedding_q4") {
    const auto p = Read<kernels::EmbeddingQ4Params>(spec);
    return {p.rows, Q4Values(p.count, p.k), Q4Scales(p.count, p), Mul(p.rows, p.k)};
  }
  if (name == "linear_f32") {
    const auto p = Read<kernels::LinearF32Params>(spec);
    return {Mul(p.rows, p.k), Mul(p.n, p.k), Reach(p.rows, p)};
  }
  if (name == "linear_q4") {
    const auto p = Read<kernels::LinearQ4Params>(spec);
    return {Mul(p.rows, p.k), Q4Values(p.n, p.k), Q4Scales(p.n, p), Reach(p.rows, p)};
  }
  if (name == "to_digits") {
    const auto p = Read<kernels::ToDigitsParams>(spec);
    return {Mul(p.rows, Mul(p.units, 32)), Mul(p.rows, Mul(p.units, 24)), Mul(p.rows, p.units)};
  }
  if (name == "to_halves" || name == "to_halves_f16") {
    const auto p = Read<kernels::ToHalvesParams>(spec);
    const uint64_t numbers = Mul(p.rows, Mul(p.eights, 8));
    return {numbers, name == "to_halves" ? numbers : numbers / 2, p.rows};
  }
  if (name == "linear_q4_matrix" || name == "linear_q4_matrix_f16") {
    const auto p = Read<kernels::LinearQ4MatrixParams>(spec);
    const uint64_t numbers = Mul(p.rows, p.k);
    return {name == "linear_q4_matrix" ? numbers : numbers / 2, p.rows, Q4Values(p.n, p.k), Q4Scales(p.n, p), 0,
            Mul(Mul(p.splits, p.rows), p.n)};
  }
  if (name.starts_with("linear_q4_dp4a")) {
    const auto p = Read<kernels::LinearQ4Dp4aParams>(spec);
    const uint64_t rows = name.find("_m3") != name.npos ? 3 : 1;
    return {Mul(rows, p.k / 32 * 24), Mul(rows, p.k / 32), Q4Values(p.n, p.k), Q4Scales(p.n, p), 0, Reach(rows, p)};
  }
  if (name.starts_with("linear_q4_gated_m")) {
    const auto p = Read<kernels::LinearQ4GatedM1Params>(spec);
    const uint64_t rows = name[17] - '0';
    const bool weights = (p.flags & 4) == 0;
    return {Mul(rows, p.k), Q4Values(p.n, p.k), Q4Scales(p.n, p), weights ? Q4Values(p.n, p.k) : 0,
            weights ? Q4Scales(p.n, p) : 0, weights ? 0 : Mul(rows - 1, p.stride) + p.offset + p.n, Mul(rows, p.n)};
  }
  if (name.starts_with("linear_q4_two_m")) {
    const auto p = Read<kernels::LinearQ4TwoM1Params>(spec);
    const uint64_t rows = name[15] - '0';
    return {Mul(rows, p.k), Q4Values(p.n_0, p.k), Q4Scales(p.n_0, p), Q4Values(p.n_1, p.k), Q4Scales(p.n_1, p),
            Mul(rows, p.n_0), Mul(rows, p.n_1)};
  }
  if (name.starts_with("linear_q4_three_m")) {
    const auto p = Read<kernels::LinearQ4ThreeM1Params>(spec);
    const uint64_t rows = name[17] - '0';
    return {Mul(rows, p.k), Q4Values(p.n_0, p.k), Q4Scales(p.n_0, p), Q4Values(p.n_1, p.k), Q4Scales(p.n_1, p),
            Q4Values(p.n_2, p.k), Q4Scales(p.n_2, p), Mul(rows, p.n_0), Mul(rows, p.n_1), Mul(rows, p.n_2)};
  }
  if (name.starts_with("linear_q4_m")) {
    const auto p = Read<kernels::LinearQ4M1Params>(spec);
    const uint64_t rows = name[11] - '0';
    return {Mul(rows, p.k), Q4Values(p.n, p.k), Q4Scales(p.n, p), 0, Reach(rows, p)};
  }
  if (name == "linear_q4_tiled" || name.starts_with("linear_q4_steel") || name == "linear_q4_bk64") {
    const auto p = Read<kernels::LinearQ4TiledParams>(spec);
    return {Mul(p.rows, p.k), Q4Values(p.n, p.k), Q4Scales(p.n, p), 0, Mul(Mul(p.splits, p.rows), p.n)};
  }
  if (name == "sum_parts") {
    const auto p = Read<kernels::SumPartsParams>(spec);
    return {Mul(p.splits, p.count), 0, p.count};
  }
  if (name == "gather_linear_f32") {
    const auto p = Read<kernels::GatherLinearF32Params>(spec);
    return {p.k, Mul(p.held, p.k), p.count, p.count};
  }
  if (name == "gather_linear_q4") {
    const auto p = Read<kernels::GatherLinearQ4Params>(spec);
    return {p.k, Q4Values(p.held, p.k), Q4Scales(p.held, p), p.count, p.count};
  }
  return {};
}

Words Rows(const DispatchSpec& spec, std::string_view name) {
  if (name == "rms_norm" || name == "rms_norm_wide") {
    const auto p = Read<kernels::RmsNormParams>(spec);
    const uint64_t all = Mul(p.rows, p.width);
    return {all, p.flags & 1 ? p.width : 0, p.flags & 2 ? all : 0, p.flags >> 2 & 1, all};
  }
  if (name == "rms_norm_pair" || name == "rms_norm_pair_wide") {
    const auto p = Read<kernels::RmsNormPairParams>(spec);
    const uint64_t all = Mul(p.rows, p.width);
    return {all, p.flags & 1 ? p.width : 0, p.flags & 2 ? all : 0, p.flags >> 2 & 1, p.width, all, all};
  }
  if (name == "rope") {
    const auto p = Read<kernels::RopeParams>(spec);
    const uint64_t all = Mul(Mul(p.rows, p.heads), p.head_dim);
    return {all, p.rows, p.head_dim / 2, all};
  }
  if (name == "cache_write") {
    const auto p = Read<kernels::CacheWriteParams>(spec);
    return {Mul(p.rows, p.width), p.rows, Mul(p.capacity, p.width)};
  }
  if (name == "cache_write_pair") {
    const auto p = Read<kernels::CacheWritePairParams>(spec);
    const uint64_t all = Mul(p.rows, p.width), cache = Mul(p.capacity, p.width);
    return {all, all, p.rows, cache, cache};
  }
  if (name == "attention") {
    const auto p = Read<kernels::AttentionParams>(spec);
    const uint64_t query = Mul(Mul(p.rows, p.q_heads), p.head_dim);
    const uint64_t cache = Mul(Mul(p.capacity, p.kv_heads), p.head_dim);
    return {query, cache, cache, p.donor ? 1 : p.rows, query};
  }
  if (name == "attention_streaming") {
    const auto p = Read<kernels::AttentionStreamingParams>(spec);
    const uint64_t query = Mul(Mul(p.rows, p.q_heads), p.head_dim);
    const uint64_t cache = Mul(Mul(p.capacity, p.kv_heads), p.head_dim);
    return {query, cache, cache, p.donor ? 1 : p.rows, query};
  }
  if (name == "attention_scores") {
    const auto p = Read<kernels::AttentionScoresParams>(spec);
    const uint64_t heads = Mul(p.rows, p.q_heads);
    return {Mul(heads, p.head_dim), Mul(Mul(p.capacity, p.kv_heads), p.head_dim), p.donor ? 1 : p.rows,
            Mul(heads, p.capacity)};
  }
  if (name == "attention_softmax") {
    const auto p = Read<kernels::AttentionSoftmaxParams>(spec);
    return {p.donor ? 1 : p.rows, Mul(Mul(p.rows, p.q_heads), p.capacity)};
  }
  if (name == "attention_values") {
    const auto p = Read<kernels::AttentionValuesParams>(spec);
    const uint64_t heads = Mul(p.rows, p.q_heads);
    return {Mul(heads, p.capacity), Mul(Mul(p.capacity, p.kv_heads), p.head_dim), p.donor ? 1 : p.rows,
            Mul(heads, p.head_dim)};
  }
  if (name == "attention_decode_split") {
    const auto p = Read<kernels::AttentionDecodeSplitParams>(spec);
    const uint64_t heads = Mul(p.rows, p.q_heads);
    const uint64_t cache = Mul(Mul(p.capacity, p.kv_heads), p.head_dim);
    return {Mul(heads, p.head_dim), cache, cache, p.donor ? 1 : p.rows, Mul(Mul(heads, p.splits), p.head_dim),
            Mul(heads, p.splits) * 4};
  }
  if (name == "attention_combine") {
    const auto p = Read<kernels::AttentionCombineParams>(spec);
    const uint64_t heads = Mul(p.rows, p.q_heads);
    return {Mul(Mul(heads, p.splits), p.head_dim), Mul(heads, p.splits) * 4, p.donor ? 1 : p.rows,
            Mul(heads, p.head_dim)};
  }
  if (name == "gelu_mul") {
    const auto p = Read<kernels::GeluMulParams>(spec);
    const uint64_t last = Mul(p.rows - 1, p.stride) + p.offset + p.width;
    return {Mul(p.rows, p.width), last, Mul(p.rows, p.width)};
  }
  if (name == "ple_combine") {
    const auto p = Read<kernels::PleCombineParams>(spec);
    const uint64_t all = Mul(p.groups, p.width);
    return {all, all, p.width, all};
  }
  if (name == "copy_words") {
    const auto p = Read<kernels::CopyWordsParams>(spec);
    return {uint64_t{p.source_offset} + p.count, p.count};
  }
  if (name == "softcap") {
    const auto p = Read<kernels::SoftcapParams>(spec);
    return {p.count, p.count};
  }
  if (name == "argmax") {
    const auto p = Read<kernels::ArgmaxParams>(spec);
    return {Mul(p.rows, p.width), p.rows};
  }
  if (name == "argmax_parts") {
    const auto p = Read<kernels::ArgmaxPartsParams>(spec);
    return {Mul(p.rows, p.width), Mul(p.rows, 2 * ((uint64_t{p.width} + 2047) / 2048))};
  }
  if (name == "argmax_final") {
    const auto p = Read<kernels::ArgmaxFinalParams>(spec);
    return {Mul(p.rows, uint64_t{p.parts} * 2), p.rows};
  }
  return {};
}

Words Drafts(const DispatchSpec& spec, std::string_view name) {
  if (name == "concat") {
    const auto p = Read<kernels::ConcatParams>(spec);
    return {Mul(p.rows, p.a_width), Mul(p.rows, p.b_width), Mul(p.rows, uint64_t{p.a_width} + p.b_width)};
  }
  if (name == "topk") {
    const auto p = Read<kernels::TopkParams>(spec);
    return {p.n, p.k, p.k};
  }
  if (name == "topk_staged") {
    const auto p = Read<kernels::TopkStagedParams>(spec);
    return {2048, p.k, p.k};
  }
  if (name == "gather_rows") {
    const auto p = Read<kernels::GatherRowsParams>(spec);
    return {Mul(p.table_rows, p.width), p.count, Mul(p.count, p.width)};
  }
  if (name == "amin") return {Read<kernels::AminParams>(spec).count, 1};
  if (name == "fill") return {1, Read<kernels::FillParams>(spec).count};
  if (name == "scatter" || name == "scatter_unique") {
    const auto p = Read<kernels::ScatterParams>(spec);
    return {p.count, p.count, p.size};
  }
  if (name == "offset_integers") {
    const auto p = Read<kernels::OffsetIntegersParams>(spec);
    return {p.count, p.others, p.count};
  }
  // A round reads one entry of ids and positions, a prefill `rows`; prefill passes are no longer than the inputs.
  if (name == "pass_rows")
    return {1, 1, 1, 1, 1, Read<kernels::PassRowsParams>(spec).rows, Read<kernels::PassRowsParams>(spec).rows};
  if (name == "accept") return {1, 1, 1, Read<kernels::AcceptParams>(spec).rows, 2, 3, 1, 1};
  if (name == "seed_write") {
    const auto p = Read<kernels::SeedWriteParams>(spec);
    return {1, Mul(p.rows, p.width), 1, p.width, 1};
  }
  return {};
}

// Words of what a binding refers to, were it bound whole; of an absent input none.
uint64_t AllWords(const ops::Graph& graph, const DispatchSpec& spec, const BindingRef& ref) {
  switch (ref.kind) {
    case BindingRef::Kind::kValues:
      return (graph.tensors[ref.index].values_bytes + 3) / 4;
    case BindingRef::Kind::kScales:
      return (graph.tensors[ref.index].scales_bytes + 3) / 4;
    case BindingRef::Kind::kRopeTable:
      return ops::RopeFrequencies(ops::RopeKeyOf(graph.ops[ref.index])).size();
    case BindingRef::Kind::kScratch:
      return spec.scratch[ref.index] / 4;
    case BindingRef::Kind::kAbsent:
      break;
  }
  return 0;
}

// Words of the range that is bound; none where it is no range of its buffer.
uint64_t AvailableWords(const ops::Graph& graph, const DispatchSpec& spec, const BindingRef& ref) {
  const uint64_t all = AllWords(graph, spec, ref);
  if (ref.offset == 0 && ref.bytes == 0) return all;
  const bool inside = ref.offset % 256 == 0 && ref.bytes % 4 == 0 && ref.offset + ref.bytes <= 4 * all;
  return inside ? ref.bytes / 4 : 0;
}

}  // namespace

std::vector<uint64_t> TouchedWords(const DispatchSpec& spec) {
  const std::string_view name = spec.kernel->name;
  for (const auto family : {&Matrices, &Rows, &Drafts}) {
    if (Words words = family(spec, name); !words.empty()) return words;
  }
  return {};
}

std::string FindOutOfBounds(const ops::Graph& graph, const std::vector<DispatchSpec>& specs) {
  for (const DispatchSpec& spec : specs) {
    const std::string name = spec.kernel->name;
    const Words touched = TouchedWords(spec);
    if (touched.empty()) return name + " is not known to the test";
    if (spec.groups == 0) return name + " has no workgroups";
    if (spec.bindings.size() != touched.size() || spec.kernel->binding_count != touched.size() + 1) {
      return name + " has a wrong number of bindings";
    }
    if (spec.params_bytes != spec.kernel->params_bytes) return name + " has params of a wrong size";
    for (size_t i = 0; i < touched.size(); ++i) {
      const uint64_t available = AvailableWords(graph, spec, spec.bindings[i]);
      if (touched[i] > available)
        return Text(name, " touches ", touched[i], " words of binding ", i, ", which has ", available);
    }
  }
  return {};
}

}  // namespace gemma4::test
