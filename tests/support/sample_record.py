"""A small honest record, for tests that break it in one place at a time."""

from __future__ import annotations

from typing import Any


def sample_record() -> dict[str, Any]:
    """Two prompts on all four variants, as a document; every call gives a fresh one."""
    tokens = {"first": [5, 6, 7, 8], "second": [9]}
    runs: list[dict[str, Any]] = []
    for variant in ("plain-wall", "plain-profile", "mtp-wall", "mtp-profile"):
        for prompt_id, emitted in tokens.items():
            long = len(emitted) > 1
            runs.append({
                "variant": variant, "prompt_id": prompt_id, "prompt_tokens": 3 if prompt_id == "first" else 1,
                "tokens": list(emitted), "text": None, "prefill_ms": 12.5, "decode_tokens_per_s": 40.0 if long else 0.0,
                "heap_bytes": 1 << 24,
                "passes": {"single": variant.endswith("wall"),
                           "reason": "" if variant.endswith("wall") else "timestamps need a compute pass for each dispatch"},
                "mtp": None if variant.startswith("plain") else {
                    "rounds": 2 if long else 0, "drafted": 4 if long else 0, "accepted": 2 if long else 0,
                    "emitted": len(emitted), "cut": 1 if long else 0},
                "profile": None if variant.endswith("wall") else {"timestamp_quantum_ns": 100.0, "kernels": [
                    {"name": "rms_norm", "calls": 6, "total_ns": 600_000},
                    {"name": "linear_f32", "calls": 4, "total_ns": 1_800_000}]},
            })
    return {
        "schema": 1, "bundle_sha256": "a" * 64, "prompts_sha256": "b" * 64,
        "browser": {"name": "chromium", "version": "156.0.1"},
        "adapter": {"vendor": "google", "architecture": "swiftshader", "software": True,
                    "features": ["timestamp-query"], "limits": {"maxBufferSize": 1073741824}},
        "routes": {variant: {"mask": 255, "refused": [{"route": "linear_q4_bk64", "reason": "no shader-f16"}], "sites": [
            {"op": "Linear", "count": 25, "round": "linear_q4_m3" if variant.startswith("mtp") else None, "rows": [
                {"first": 1, "last": 1, "route": "linear_q4_m1"}, {"first": 2, "last": 512, "route": "generic"}]}],
            "fusions": [{"fusion": "norm_pair", "count": 12,
                         "round": "rms_norm_pair" if variant.startswith("mtp") else None,
                         "rows": [{"first": 1, "last": 512, "route": "rms_norm_pair"}]}]}
            for variant in ("plain-wall", "plain-profile", "mtp-wall", "mtp-profile")},
        "runs": runs,
    }
