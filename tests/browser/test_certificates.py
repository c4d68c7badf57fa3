"""A model whose certificate is not true of it, in a page: the table of unique scatters is looked at when it comes (X11), and
a digest of the certificate cannot be another than the exporter wrote, as the manifest has the program's hash (V1)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import bundle_with, opened
from tests.support.sites import copy_bundle, replace

from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import open_folder
from gemma4web.program import codec, ir

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

PROGRAM: Final = "model/k2_round.g4p"
TABLE: Final = "assistant.masked_embedding.token_ordering"


@pytest.fixture(scope="module")
def whole(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, source = tmp_path_factory.mktemp("certified"), REPOSITORY / "fixtures/tiny-mix"
    exported = export(ExportOptions(target=source / "target", assistant=source / "assistant", weights="q4",
                                    out=folder / "export", prefill_rows=64, context=128))
    return bundle_with(bundle, exported, folder / "bundle")


def reorder(bundle: Path, change: Callable[[np.ndarray], None]) -> str:
    """Changes the table in its shard, and every hash of that file: program and manifest agree. Returns the shard's name."""
    program = open_folder(bundle / "model").program(ir.K2_ROUND)
    span = next(weight.values for weight in program.weights if program.graph.tensors[weight.tensor].name == TABLE)
    shard = program.shards[span.shard]

    def edit(data: bytes) -> bytes:
        table = np.frombuffer(data, "<i4", span.bytes // 4, span.begin).copy()
        change(table)
        return data[: span.begin] + table.tobytes() + data[span.begin + span.bytes :]

    replace(bundle, f"model/{shard.file}", edit, list_it=True)
    digest = hashlib.sha256((bundle / "model" / shard.file).read_bytes()).hexdigest()
    shards = tuple(changed(one, sha256=digest) if one is shard else one for one in program.shards)
    replace(bundle, PROGRAM, lambda _: codec.to_bytes(changed(program, shards=shards)), list_it=True)
    return shard.file


def _twice(table: np.ndarray) -> None:
    table[-1] = table[0]


def _outside(table: np.ndarray) -> None:
    table[table == 0] = table.size


@pytest.mark.parametrize(("change", "says"), [
    (_twice, r"holds \d+ twice"), (_outside, "holds 1024,"),
])
def test_a_table_that_is_no_permutation_is_refused(chrome: Chrome, whole: Path, tmp_path: Path,
                                                   change: Callable[[np.ndarray], None], says: str) -> None:
    """Every hash fits; two candidates would race for one place of the scores."""
    broken = copy_bundle(whole, tmp_path / "bundle")
    shard = reorder(broken, change)
    with pytest.raises(Exception, match=f"(?s)model/{shard}: weight {TABLE} {says}.*permutation of 0 to 1023"), \
            opened(chrome, broken, "mtp-wall"):
        pytest.fail("it was loaded")


def test_the_same_changes_of_nothing_load(chrome: Chrome, whole: Path, tmp_path: Path) -> None:
    """Another permutation, so that it is the table's fault above and not the hashes'."""
    bundle = copy_bundle(whole, tmp_path / "bundle")
    reorder(bundle, lambda table: np.copyto(table, table[::-1].copy()))
    with opened(chrome, bundle, "mtp-wall") as page:
        assert len(page.generate([2, 17, 4], 8)["tokens"]) == 8


@pytest.mark.parametrize("property_", list(ir.Property))
def test_another_digest_in_the_certificate_is_another_program(chrome: Chrome, whole: Path, tmp_path: Path,
                                                              property_: ir.Property) -> None:
    """One digit of it, in place: the runtime would not tell, the page does."""
    bundle = copy_bundle(whole, tmp_path / "bundle")
    proof = next(proof for proof in codec.read(bundle / PROGRAM).certificate if proof.property is property_)
    other = ("0" if proof.sha256[0] != "0" else "1") + proof.sha256[1:]
    replace(bundle, PROGRAM, lambda data: data.replace(proof.sha256.encode(), other.encode()))
    with pytest.raises(Exception, match=rf"(?s){PROGRAM}.*sha256"), opened(chrome, bundle, "mtp-wall"):
        pytest.fail("it was loaded")
