"""One tiny project is built once; each test works on its own copy of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tiny_project import Project, make_project


@pytest.fixture(scope="session")
def _built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = make_project(tmp_path_factory.mktemp("tiny") / "made here")
    project.scons()
    return project


@pytest.fixture
def built(_built: Project, tmp_path: Path) -> Project:
    """A project whose bundle is up to date, in a folder with a space and letters beyond ASCII."""
    root = tmp_path / "my dir ünï ✓ 'q' $x"
    shutil.copytree(_built.root, root, symlinks=True)
    project = Project(root=root)
    project.calls()
    return project


@pytest.fixture
def fresh(_built: Project, tmp_path: Path) -> Project:
    """A project in which nothing was built yet."""
    root = tmp_path / "fresh"
    shutil.copytree(_built.root, root, ignore=shutil.ignore_patterns("build", ".sconsign*", "compiler.log"))
    return Project(root=root)
