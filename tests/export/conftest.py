"""Exports that several tests read: a micro model in both weight forms, and the fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from micro_checkpoint import write_pair

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import ModelFolder, open_folder

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"


@pytest.fixture(scope="session")
def micro_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(target, assistant) checkpoint folders; read only."""
    return write_pair(tmp_path_factory.mktemp("micro"))


def _export(out: Path, target: Path, assistant: Path, weights: str, **options: object) -> ModelFolder:
    return open_folder(export(ExportOptions(target=target, assistant=assistant, out=out, weights=weights, **options)))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def micro_folders(micro_pair: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    """Micro exports by weight form, prefill rows 4, context 32; read only."""
    return {form: _export(tmp_path_factory.mktemp("export") / form, *micro_pair, form, prefill_rows=4, context=32)
            for form in ("f32", "q4")}


@pytest.fixture(scope="session")
def fixture_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModelFolder]:
    """Exports of the fixtures by "name-form": prefill rows 3, so that rings wrap at every chunk, context 112."""
    base = tmp_path_factory.mktemp("fixtures")
    return {f"{name}-{form}": _export(base / f"{name}-{form}", FIXTURES / name / "target", FIXTURES / name / "assistant",
                                      form, prefill_rows=3, context=112)
            for name in ("tiny-rand", "tiny-mix", "tiny-unified") for form in ("f32", "q4")}
