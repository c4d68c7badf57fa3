"""A GGUF file: its metadata as plain values, its tensors under the names that Hugging Face checkpoints give them.

Container: magic, version, counts, metadata, a list of tensors, then their data, each at a multiple of the alignment.
The list gives a matrix's input dimension first; ``Entry.shape`` is [out, in] as everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError
from gemma4web.export.gguf_header import BROKEN, Header, read_header
from gemma4web.export.tensors import BLOCKS, Entry, Tensors

PREFIX: Final = "model."
"""Of the names of a decoder's tensors, as in text-only checkpoints."""
ROPE_FREQS: Final = "rope_freqs.weight"

_DTYPES: Final = ("F32", "F16", "BF16", "I32", *BLOCKS)
_OUTSIDE: Final = {
    "pre_projection.weight": "nextn.pre_projection.weight",
    "post_projection.weight": "nextn.post_projection.weight",
    "masked_embedding.centroids.weight": "masked_embd_centroids.weight",
    "masked_embedding.token_ordering": "masked_embd_ordering",
    ROPE_FREQS: ROPE_FREQS,
}
_MODEL: Final = {
    "embed_tokens.weight": "token_embd.weight",
    "embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
    "norm.weight": "output_norm.weight",
}
_LAYER: Final = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "per_layer_input_gate.weight": "inp_gate.weight",
    "per_layer_projection.weight": "proj.weight",
    "post_per_layer_input_norm.weight": "post_norm.weight",
    "layer_scalar": "layer_output_scale.weight",
}


def gguf_name(name: str) -> str:
    """A checkpoint's tensor name in GGUF; a name that the format does not have stays as it is."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name):
        return f"blk.{match[1]}.{_LAYER[match[2]]}" if match[2] in _LAYER else name
    return _OUTSIDE.get(name) or _MODEL.get(name.removeprefix(PREFIX), name)


def _entries(path: Path, header: Header) -> dict[str, Entry]:
    """Tensors by GGUF name; they fill the rest of the file in order, with nothing but padding between them."""
    entries, place = {}, header.data_begin
    for tensor in header.tensors:
        shape = tuple(reversed(tensor.dims))
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} is {tensor.dtype}, wanted one of {', '.join(_DTYPES)}",
                advice="name a file whose matrices are Q4_0, Q6_K, Q8_0, BF16, F16 or F32, or the safetensors checkpoint")
        matrix = tensor.dtype in BLOCKS
        if tensor.begin != place or (matrix and len(shape) != 2):
            raise CheckpointError(f"{path}: tensor {tensor.name} {tensor.dtype}{list(shape)} begins at byte "
                                  f"{tensor.begin}, wanted a {'matrix' if matrix else 'tensor'} at {place}", advice=BROKEN)
        entries[tensor.name] = Entry(name=tensor.name, dtype=tensor.dtype, shape=shape, file=path, begin=tensor.begin,
                                     end=tensor.end)
        place = tensor.end + -tensor.end % header.alignment
    if header.file_bytes > place:
        raise CheckpointError(f"{path} has {header.file_bytes} bytes, wanted no more than the {place} that it describes",
                              advice=BROKEN)
    return entries


class GgufTensors(Tensors):
    """The tensors and metadata of one GGUF file. Raises CheckpointError when it is damaged."""

    mismatch = "the file's metadata say so: it is incomplete, or its converter is not known to this project"

    def __init__(self, path: Path) -> None:
        super().__init__(path, [path])
        header = read_header(path)
        self._entries = _entries(path, header)
        self.metadata = header.metadata
        parts = self.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise CheckpointError(f"{path} is one of {parts} parts, wanted a whole model",
                                  advice="join them with llama.cpp's gguf-split --merge")

    def spelled(self, name: str) -> str:
        return gguf_name(name)
