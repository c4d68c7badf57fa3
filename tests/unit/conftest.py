"""What the tests of staging and of verification share: a small checkout, and the same with its bundle staged."""

from __future__ import annotations

from pathlib import Path

import pytest
from bundle_case import Checkout, copy_checkout, make_checkout, read_program, stage

from gemma4web.program import codec


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(tmp_path_factory.mktemp("template") / "checkout")


@pytest.fixture
def checkout(template: Checkout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkout:
    monkeypatch.setattr(codec, "read", read_program)
    return copy_checkout(template, tmp_path / "checkout")


@pytest.fixture
def staged(checkout: Checkout) -> Checkout:
    stage(checkout)
    return checkout
