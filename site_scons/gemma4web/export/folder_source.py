"""The folder of a Hugging Face checkpoint as a model to export."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gemma4web.errors import CheckpointError
from gemma4web.export import config
from gemma4web.export.reading import unreadable
from gemma4web.export.source import Source, spelled_out
from gemma4web.export.tensors import Checkpoint
from gemma4web.program.architecture import Assistant, Target

PREFIXES: Final = ("model.language_model.", "model.")

_TEXT_FILES: Final = ("tokenizer.json", "chat_template.jinja")
_MAX_TEXT_BYTES: Final = 64 << 20
"""Twice the size of Gemma's tokenizer.json."""
CARRIED: Final = ("config.json", "generation_config.json", "model.safetensors.index.json", *_TEXT_FILES,
                   "tokenizer_config.json")


class FolderSource(Checkpoint, Source):
    """Target or assistant as config.json and safetensors."""

    @property
    def name(self) -> str:
        folder = self.path.resolve()
        return spelled_out(folder.parent.name if folder.name == "target" else folder.name)

    def inputs(self) -> list[Path]:
        return sorted({*self.files, *(self.path / name for name in CARRIED if (self.path / name).is_file())})

    def prefix(self) -> str:
        """The prefix of the target's tensor names. Raises CheckpointError when no known one fits."""
        for prefix in PREFIXES:
            if f"{prefix}embed_tokens.weight" in self:
                return prefix
        wanted = " or ".join(f"{prefix}embed_tokens.weight" for prefix in PREFIXES)
        raise CheckpointError(f"{self.path}: tensor {wanted} is missing",
                              advice="name a Gemma 4 text checkpoint with --target")

    def target(self) -> Target:
        sizes = config.read_target(self.path / "config.json", self.prefix())
        self.check_tied("lm_head.weight", f"{self.prefix()}embed_tokens.weight")
        return sizes

    def assistant(self, target: Target) -> Assistant:
        sizes = config.read_assistant(self.path / "config.json", target, self.centroids())
        self.check_tied("lm_head.weight", "model.embed_tokens.weight")
        return sizes

    def special_ids(self, vocab: int) -> tuple[int | None, tuple[int, ...]]:
        return config.special_ids(self.path, vocab)

    def _text(self, path: Path) -> bytes:
        try:
            with path.open("rb") as stream:
                data = stream.read(_MAX_TEXT_BYTES + 1)
        except OSError as error:
            raise unreadable(path, error, missing=config.WHOLE) from None
        if len(data) > _MAX_TEXT_BYTES:
            raise CheckpointError(f"{path} has more than {_MAX_TEXT_BYTES} bytes", advice=config.WHOLE)
        return data

    def text_files(self, vocab: int) -> dict[str, bytes]:
        files = {name: self._text(self.path / name) for name in _TEXT_FILES if (self.path / name).is_file()}
        settings = self.path / "tokenizer_config.json"
        if "chat_template.jinja" not in files and settings.is_file():
            template = config.load(settings).get("chat_template")
            if isinstance(template, str):
                files["chat_template.jinja"] = template.encode()
        return files
