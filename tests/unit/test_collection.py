"""Every folder of tests is one that pytest goes into (V11): a name that it leaves out would drop them without a word."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_no_folder_of_tests_is_left_out() -> None:
    left_out = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]["norecursedirs"]
    folders = {path.parent for path in (ROOT / "tests").rglob("test_*.py")}
    assert ROOT / "tests/build" in folders
    assert not [folder for folder in folders for part in folder.relative_to(ROOT).parts
                if any(fnmatch(part, pattern) for pattern in left_out)]
