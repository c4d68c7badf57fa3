"""fixtures/tiny-unified as GGUF, in the layout that llama.cpp's converter gives the 12B and 31B models.

KV heads are a list with a number for each layer, full layers have no attn_v, the target names no per-layer embeddings, the
assistant has no masked_embd tensors.
"""

from __future__ import annotations

from typing import Any, Final

from fixtures.story.training import pack
from tiny_story import FIXTURES, checkpoint_tensors, first_pieces

FOLDER: Final = FIXTURES / "tiny-unified"
_VOCAB: Final = 512
_COMMON: Final = {"heads": 4, "head_dim": 32, "global_head_dim": 64, "window": 8}


def _file(role: str, architecture: str, hidden: int, intermediate: int, sliding: list[bool], **more: Any) -> pack.File:
    tensors = {name.removeprefix("model."): values for name, values in checkpoint_tensors(FOLDER / role).items()}
    own = {**_COMMON, "hidden": hidden, "layers": len(sliding)}
    shared = 0 if role == "target" else len(sliding)
    metadata = pack.general("Unified", "In the form of 12B") | pack.decoder_metadata(
        architecture, own, own, sliding=sliding, shared=shared) | pack.tokenizer_metadata(first_pieces(_VOCAB))
    metadata |= {f"{architecture}.{key}": value for key, value in more.items()}
    metadata[f"{architecture}.feed_forward_length"] = intermediate
    metadata[f"{architecture}.attention.head_count_kv"] = [2 if part else 1 for part in sliding]
    del metadata[f"{architecture}.embedding_length_per_layer_input"]
    return pack.File(architecture=architecture, metadata=metadata, tensors=pack.stored(tensors, len(sliding)) | {
        "rope_freqs.weight": (pack.rope_freqs(64), pack.Type.F32)})


def unified_files() -> tuple[pack.File, pack.File]:
    """(target, assistant) as they would be written; tensors and keys may be replaced."""
    return (_file("target", "gemma4", 64, 128, [True, True, False, True, False], final_logit_softcapping=30.0),
            _file("assistant", "gemma4-assistant", 64, 64, [True, False], embedding_length_out=64, nextn_predict_layers=2))
