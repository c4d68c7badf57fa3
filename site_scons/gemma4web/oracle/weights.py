"""Weights for the whole-model reference: straight from a checkpoint, or from an exported folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gemma4web.errors import CheckpointError
from gemma4web.export.folder import ModelFolder, Packed, Stored, load_weights
from gemma4web.export.folder_source import FolderSource
from gemma4web.export.quantise import quantise
from gemma4web.export.tensors import Checkpoint
from gemma4web.oracle.faults import Fault
from gemma4web.oracle.ops import Array, unpack_q4
from gemma4web.program.architecture import Assistant, Target
from gemma4web.program.decoder import ASSISTANT_PREFIX
from gemma4web.program.ir import K2_ROUND, Q4_GROUPS, TEXT_DECODER, ScaleDtype

TOKEN_ORDERING = "masked_embedding.token_ordering"


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Sizes and plain floating weights (q4 unpacked), target names as they are, assistant names behind their prefix."""

    target: Target
    assistant: Assistant | None
    weights: dict[str, Array]


def _float(stored: Stored, dtype: npt.DTypeLike, faults: Collection[Fault]) -> Array:
    if isinstance(stored, Packed):
        return unpack_q4(stored.values, stored.scales, dtype=dtype, swap_nibbles=Fault.NIBBLE_ORDER in faults)
    return stored if np.issubdtype(stored.dtype, np.integer) else stored.astype(dtype)


def from_folder(folder: ModelFolder, *, dtype: npt.DTypeLike = np.float64, faults: Collection[Fault] = ()) -> Model:
    """The model of an exported folder, q4 weights unpacked exactly."""
    method = K2_ROUND if K2_ROUND in folder.receipt["methods"] else TEXT_DECODER
    stored: Mapping[str, Stored] = load_weights(folder.program(method), folder.path)
    return Model(target=folder.target(), assistant=folder.assistant(),
                 weights={name: _float(value, dtype, faults) for name, value in stored.items()})


def _read(checkpoint: Checkpoint, *, form: str, prefix: str, dtype: npt.DTypeLike, faults: Collection[Fault], group: int,
          scale_dtype: ScaleDtype) -> dict[str, Array]:
    weights: dict[str, Array] = {}
    for name in checkpoint.names():
        entry = checkpoint.find(name)
        stored: Stored
        if name == TOKEN_ORDERING:
            stored = checkpoint.integers(name, entry.shape)
        else:
            values = checkpoint.float_rows(name, entry.shape, slice(None))
            stored = values
            if form == "q4" and len(entry.shape) == 2:
                # The largest groups that divide the columns, as in an export.
                fitting = max(size for size in Q4_GROUPS if size <= group and entry.shape[1] % size == 0)
                codes, scales = quantise(values, name=name, group=fitting, scale_dtype=scale_dtype)
                stored = Packed(values=codes, scales=scales)
        weights[prefix + name] = _float(stored, dtype, faults)
    return weights


def from_checkpoint(
    target: Path, assistant: Path | None = None, *, form: str = "f32", dtype: npt.DTypeLike = np.float64,
    faults: Collection[Fault] = (), group: int = Q4_GROUPS[0], scale_dtype: ScaleDtype = ScaleDtype.F16,
) -> Model:
    """The model of Hugging Face checkpoint folders; ``form`` q4 packs and unpacks every matrix first, in groups of at
    most ``group`` columns."""
    if form not in ("f32", "q4"):
        raise CheckpointError(f"weight form {form!r}, wanted f32 or q4")
    how: dict[str, Any] = {"form": form, "dtype": dtype, "faults": faults, "group": group, "scale_dtype": scale_dtype}
    with FolderSource(target) as source:
        sizes = source.target()
        weights = _read(source, prefix="", **how)
    if assistant is None:
        return Model(target=sizes, assistant=None, weights=weights)
    with FolderSource(assistant) as source:
        weights |= _read(source, prefix=ASSISTANT_PREFIX, **how)
        return Model(target=sizes, assistant=source.assistant(sizes), weights=weights)
