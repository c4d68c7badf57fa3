"""The story model's training scripts explain themselves on a machine that cannot train."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TRAINING = Path(__file__).resolve().parents[2] / "fixtures/story/training"


@pytest.mark.parametrize("script", ["train.py", "agree.py", "pack.py"])
def test_help_needs_no_torch(script: str, tmp_path: Path) -> None:
    for package in ("torch", "transformers"):
        (tmp_path / f"{package}.py").write_text("raise ImportError('imported for --help')\n", encoding="utf-8")
    finished = subprocess.run([sys.executable, TRAINING / script, "--help"], env={**os.environ, "PYTHONPATH": str(tmp_path)},
                              capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "--out" in finished.stdout
