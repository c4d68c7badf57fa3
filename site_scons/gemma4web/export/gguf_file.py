"""A GGUF file: its metadata as plain values, its tensors under the names that Hugging Face checkpoints give them.

Container: magic, version, counts, metadata, a list of tensors, then their data, each at a multiple of the alignment.
The list gives a matrix's input dimension first; ``Entry.shape`` is [out, in] as everywhere.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFEndian, GGUFReader
from gguf.gguf_reader import READER_SUPPORTED_VERSIONS

from gemma4web.errors import CheckpointError
from gemma4web.export.tensors import BLOCKS, BROKEN, Entry, Tensors

MAGIC: Final = b"GGUF"
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


class _Header(GGUFReader):
    """The package's reader takes what lies beyond the end of a file for empty, and may then count for ever.

    Slicing its memmap is slow, too: with plain views 262 144 pieces and their merges take 7 s instead of 35.
    """

    def _get(self, offset: int, dtype: npt.DTypeLike, count: int = 1,
             override_order: Literal["I", "S", "<"] | None = None) -> npt.NDArray[Any]:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"it has {len(self.data)} bytes, wanted {end}")
        if self.byte_order == "S":
            return super()._get(offset, dtype, count, override_order)
        return np.frombuffer(self.data, dtype, int(count), int(offset))


def _read_header(path: Path) -> _Header:
    try:
        with path.open("rb") as stream:
            magic, version = stream.read(len(MAGIC)), int.from_bytes(stream.read(4), "little")
        if magic != MAGIC:
            raise CheckpointError(f"{path} begins with {magic!r}, wanted {MAGIC!r}",
                                  advice="name a GGUF file, or the folder of a Hugging Face checkpoint")
        if 0 < version < 1 << 16 and version not in READER_SUPPORTED_VERSIONS:  # read from the wrong end it is huge
            raise CheckpointError(f"{path} is a GGUF file of version {version}, wanted one of "
                                  f"{', '.join(map(str, READER_SUPPORTED_VERSIONS))}",
                                  advice="convert the model again with llama.cpp's own converter")
        header = _Header(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path} is no complete GGUF file: {error}", advice=BROKEN) from None
    if header.endianess is not GGUFEndian.LITTLE:
        raise CheckpointError(f"{path} is a big-endian GGUF file, wanted a little-endian one",
                              advice="convert the model again, without --bigendian")
    return header


def _entries(path: Path, header: _Header) -> dict[str, Entry]:
    """Tensors by GGUF name; they fill the rest of the file in order, with nothing but padding between them."""
    entries, place, alignment = {}, int(header.data_offset), int(header.alignment)
    for tensor in header.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        dtype = GGMLQuantizationType(tensor.tensor_type).name
        if dtype not in _DTYPES:
            raise CheckpointError(
                f"{path}: tensor {tensor.name} is {dtype}, wanted one of {', '.join(_DTYPES)}",
                advice="name a file whose matrices are Q4_0, Q6_K, Q8_0, BF16, F16 or F32, or the safetensors checkpoint")
        if tensor.data_offset != place or (dtype in BLOCKS and len(shape) != 2):
            raise CheckpointError(f"{path}: tensor {tensor.name} {dtype}{list(shape)} begins at byte "
                                  f"{tensor.data_offset}, wanted a {'matrix' if dtype in BLOCKS else 'tensor'} at {place}",
                                  advice=BROKEN)
        end = place + tensor.n_bytes
        entries[tensor.name] = Entry(name=tensor.name, dtype=dtype, shape=shape, file=path, begin=place, end=end)
        place = end + -end % alignment
    size = path.stat().st_size
    if size > place:
        raise CheckpointError(f"{path} has {size} bytes, wanted no more than the {place} that it describes", advice=BROKEN)
    return entries


class GgufTensors(Tensors):
    """The tensors and metadata of one GGUF file. Raises CheckpointError when it is damaged."""

    mismatch = "the file's metadata say so: it is incomplete, or its converter is not known to this project"

    def __init__(self, path: Path) -> None:
        super().__init__(path, [path])
        header = _read_header(path)
        self._entries = _entries(path, header)
        try:
            self.metadata = {key: field.contents() for key, field in header.fields.items()}
        except ValueError as error:
            raise CheckpointError(f"{path}: the metadata are no UTF-8: {error}", advice=BROKEN) from None
        parts = self.metadata.get("split.count", 1)
        if parts not in (0, 1):
            raise CheckpointError(f"{path} is one of {parts} parts, wanted a whole model",
                                  advice="join them with llama.cpp's gguf-split --merge")

    def spelled(self, name: str) -> str:
        return gguf_name(name)
