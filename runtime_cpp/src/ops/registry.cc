#include "ops/registry.h"

#include "ops/argmax.h"
#include "ops/attention.h"
#include "ops/attention_routes.h"
#include "ops/cache_write.h"
#include "ops/embedding.h"
#include "ops/gelu_mul.h"
#include "ops/linear.h"
#include "ops/linear_routes.h"
#include "ops/ple_combine.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/softcap.h"
#include "ops/tail_rows.h"
#if GEMMA4_MTP
#include "ops/accept.h"
#include "ops/add_scalar.h"
#include "ops/amin.h"
#include "ops/concat.h"
#include "ops/donor_view.h"
#include "ops/fill.h"
#include "ops/gather_linear.h"
#include "ops/gather_rows.h"
#include "ops/pass_rows.h"
#include "ops/scatter.h"
#include "ops/seed_write.h"
#include "ops/subtract.h"
#include "ops/topk.h"
#else
#include "ops/copy_last.h"
#endif

namespace gemma4::ops {

namespace {

constexpr OpEntry kOps[] = {
    // kind, inputs, optional inputs, outputs, check, record, routes
    {schema::OpKind_Embedding, 2, 0, 1, &CheckEmbedding, &RecordEmbedding, kEmbeddingRoutes},
    {schema::OpKind_RmsNorm, 4, 0b1110, 1, &CheckRmsNorm, &RecordRmsNorm, kNormRoutes},
    {schema::OpKind_Linear, 2, 0, 1, &CheckLinear, &RecordLinear, kLinearRoutes},
    {schema::OpKind_Rope, 2, 0, 1, &CheckRope, &RecordRope},
    {schema::OpKind_CacheWrite, 2, 0, 1, &CheckCacheWrite, &RecordCacheWrite},
    {schema::OpKind_Attention, 4, 0, 1, &CheckAttention, &RecordAttention, kAttentionRoutes},
    {schema::OpKind_GeluMul, 2, 0, 1, &CheckGeluMul, &RecordGeluMul},
    {schema::OpKind_PleCombine, 3, 0, 1, &CheckPleCombine, &RecordPleCombine},
    {schema::OpKind_TailRows, 1, 0, 1, &CheckTailRows, &RecordTailRows},
    {schema::OpKind_Softcap, 1, 0, 1, &CheckSoftcap, &RecordSoftcap},
    {schema::OpKind_Argmax, 1, 0, 1, &CheckArgmax, &RecordArgmax, kArgmaxRoutes},
#if GEMMA4_MTP
    {schema::OpKind_DonorView, 2, 0, 1, &CheckDonorView, &RecordDonorView},
    {schema::OpKind_Concat, 2, 0, 1, &CheckConcat, &RecordConcat},
    {schema::OpKind_TopK, 1, 0, 2, &CheckTopK, &RecordTopK, kTopKRoutes},
    {schema::OpKind_GatherRows, 2, 0, 1, &CheckGatherRows, &RecordGatherRows},
    {schema::OpKind_GatherLinear, 3, 0, 1, &CheckGatherLinear, &RecordGatherLinear, kGatherLinearRoutes},
    {schema::OpKind_Amin, 1, 0, 1, &CheckAmin, &RecordAmin},
    {schema::OpKind_Fill, 1, 0, 1, &CheckFill, &RecordFill},
    {schema::OpKind_Scatter, 3, 0, 1, &CheckScatter, &RecordScatter},
    {schema::OpKind_ScatterUnique, 3, 0, 1, &CheckScatter, &RecordScatterUnique},
    {schema::OpKind_AddScalar, 1, 0, 1, &CheckAddScalar, &RecordAddScalar},
    {schema::OpKind_Subtract, 2, 0, 1, &CheckSubtract, &RecordSubtract},
    {schema::OpKind_PassRows, 5, 0, 2, &CheckPassRowsOp, &RecordPassRowsOp},
    {schema::OpKind_Accept, 4, 0, 4, &CheckAccept, &RecordAccept},
    {schema::OpKind_SeedWrite, 3, 0, 2, &CheckSeedWrite, &RecordSeedWrite},
#else
    {schema::OpKind_CopyLast, 1, 0, 1, &CheckCopyLast, &RecordCopyLast},
#endif
};

}  // namespace

const OpEntry* FindOp(schema::OpKind kind) {
  for (const OpEntry& entry : kOps) {
    if (entry.kind == kind) return &entry;
  }
  return nullptr;
}

const char* KindName(schema::OpKind kind) {
  const char* name = schema::EnumNameOpKind(kind);
  return *name == '\0' ? "unknown op" : name;
}

}  // namespace gemma4::ops
