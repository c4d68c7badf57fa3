"""What the exporter asks of a model, whatever the format of its files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from gemma4web.export.tensors import Tensors
from gemma4web.program.architecture import Assistant, Target


class Source(Tensors, ABC):
    """A target or an assistant: tensors, sizes, ids and text files. Everything raises CheckpointError."""

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
