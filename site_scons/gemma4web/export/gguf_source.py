"""A GGUF file as a model to export."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gemma4web.errors import CheckpointError
from gemma4web.export import config, gguf_tokenizer
from gemma4web.export.config import Fields
from gemma4web.export.gguf_file import PREFIX, ROPE_FREQS, GgufTensors
from gemma4web.export.gguf_sizes import ARCHITECTURE, ASSISTANT, TARGET, assistant_fields, target_fields
from gemma4web.export.source import Source, spelled_out
from gemma4web.program.architecture import Assistant, Decoder, LayerType, Target

_ROLE = {TARGET: "it is a target: name it with --target", ASSISTANT: "it is an assistant: name it with --assistant"}


class GgufSource(GgufTensors, Source):
    """Target or assistant in the layout of the official files."""

    @property
    def name(self) -> str:
        name = self.metadata.get("general.name")
        return name if isinstance(name, str) and name else spelled_out(self.path.stem)

    def inputs(self) -> list[Path]:
        return [self.path]

    def _fields(self) -> Fields:
        return Fields(path=self.path, values=self.metadata)

    def _check_architecture(self, wanted: str) -> None:
        found = self.metadata.get(ARCHITECTURE)
        advice = _ROLE.get(str(found), "name a Gemma 4 text model or its assistant")
        self._fields().only(ARCHITECTURE, wanted, why=advice)

    def _vocab(self) -> int:
        return self.find(f"{PREFIX}embed_tokens.weight").shape[0]

    def _check_rope(self, model: Decoder) -> None:
        """The tensor that says which pairs of a full head turn: divisor 1, or one so large that the angle is 0."""
        for head_dim in sorted({layer.head_dim for layer in model.layers if layer.type is LayerType.FULL}):
            turning, pairs = model.rope[LayerType.FULL].rotated_pairs(head_dim), head_dim // 2
            found = self.float_rows(ROPE_FREQS, (pairs,), slice(None))
            wanted = np.repeat(np.array([1, 1e30], np.float32), [turning, pairs - turning])
            if not np.array_equal(found, wanted):
                bad = int(np.flatnonzero(found != wanted)[0])
                raise CheckpointError(f"{self.path}: {ROPE_FREQS} is {found[bad]:g} at {bad}, wanted {turning} times 1, "
                                      f"then {pairs - turning} times 1e30",
                                      advice="other rotary embeddings than Gemma 4's are not supported")

    def has_values(self, layer: int) -> bool:
        """Whether a layer has a matrix for its values."""
        return f"{PREFIX}layers.{layer}.self_attn.v_proj.weight" in self

    def target(self) -> Target:
        self._check_architecture(TARGET)
        self.check_tied("output.weight", f"{PREFIX}embed_tokens.weight")
        fields = target_fields(self.path, self.metadata, self._vocab(), self.has_values)
        sizes = config.target_sizes(fields, PREFIX)
        self._check_rope(sizes)
        return sizes

    def assistant(self, target: Target) -> Assistant:
        self._check_architecture(ASSISTANT)
        self.check_tied("output.weight", f"{PREFIX}embed_tokens.weight")
        centroids = self.centroids()
        fields = assistant_fields(self.path, self.metadata, self._vocab(), centroids)
        sizes = config.assistant_sizes(fields, target, centroids)
        self._check_rope(sizes)
        return sizes

    def special_ids(self, vocab: int) -> tuple[int | None, tuple[int, ...]]:
        return gguf_tokenizer.special_ids(self._fields(), vocab)

    def text_files(self, vocab: int) -> dict[str, bytes]:
        files = {"tokenizer.json": gguf_tokenizer.tokenizer_json(self._fields(), vocab)}
        template = gguf_tokenizer.chat_template(self._fields())
        return files if template is None else {**files, "chat_template.jinja": template}
