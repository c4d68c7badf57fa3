"""What the exporter asks of a model, whatever the format of its files."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError
from gemma4web.export.tensors import Tensors
from gemma4web.program.architecture import Assistant, Target

CENTROID_HEAD: Final = ("masked_embedding.centroids.weight", "masked_embedding.token_ordering")


def spelled_out(name: str) -> str:
    """A file's name as a receipt can hold it: bytes that are no UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


class Source(Tensors, ABC):
    """A target or an assistant: tensors, sizes, ids and text files. Everything raises CheckpointError."""

    def centroids(self) -> int:
        """Rows of an assistant's table of centroids; 0 when its head is dense, so that neither tensor of the other head is
        there. Half a centroid head is refused."""
        if not any(name in self for name in CENTROID_HEAD):
            return 0
        table, _ = (self.find(name) for name in CENTROID_HEAD)
        if not table.shape or table.shape[0] < 1:
            raise CheckpointError(f"{self.path}: tensor {table.name} has no rows", advice=self.mismatch)
        return table.shape[0]

    @property
    @abstractmethod
    def name(self) -> str:
        """What the exported model is called unless the user says otherwise."""

    @abstractmethod
    def inputs(self) -> list[Path]:
        """Every file that the export depends on."""

    @abstractmethod
    def target(self) -> Target:
        """Sizes of a target. Anything that is not implemented is refused, and so is an assistant."""

    @abstractmethod
    def assistant(self, target: Target) -> Assistant:
        """Sizes of an assistant, which has to fit its target."""

    @abstractmethod
    def special_ids(self, vocab: int) -> tuple[int | None, tuple[int, ...]]:
        """(bos id or None, stop ids in ascending order)."""

    @abstractmethod
    def text_files(self, vocab: int) -> dict[str, bytes]:
        """tokenizer.json and chat_template.jinja, as far as the model has them."""
