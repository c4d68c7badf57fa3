"""A model whose tensors lie in several shards by rows: in a page like any other, and refused when a part is not its own.

Static hosts limit the size of a file, so large tensors are split everywhere (X22, B2); here the limit is tiny instead.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.browser.conftest import REPOSITORY
from tests.support.chrome import Chrome
from tests.support.models import bundle_with, opened
from tests.support.sites import copy_bundle, edit_manifest, replace

from gemma4web.errors import ProgramError, PublishError
from gemma4web.export.exporter import ExportOptions, export
from gemma4web.export.folder import load_weights, open_folder
from gemma4web.files import dump_json
from gemma4web.program import ir

pytestmark = [pytest.mark.browser, pytest.mark.emcc]

MODEL: Final = "tiny-mix"
LIMITS: Final = {"q4": 30_000, "f32": 200_000}
"""Bytes of a shard file: the table of embeddings, which is the head too, and wide matrices take two to four."""
Split = Callable[[str], Path]


def golden(form: str) -> dict[str, Any]:
    name = "golden.json" if form == "f32" else "golden_q4.json"
    entries: list[dict[str, Any]] = json.loads((REPOSITORY / "fixtures" / MODEL / name).read_bytes())
    return entries[2]


@pytest.fixture(scope="module")
def split(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Split:
    """A staged bundle of the split model in a weight form, made once."""
    made: dict[str, Path] = {}

    def make(form: str) -> Path:
        if form not in made:
            folder, source = tmp_path_factory.mktemp("split"), REPOSITORY / "fixtures" / MODEL
            exported = export(ExportOptions(target=source / "target", assistant=source / "assistant", weights=form,
                                            out=folder / "export", prefill_rows=64, context=128,
                                            max_shard_bytes=LIMITS[form]))
            made[form] = bundle_with(bundle, exported, folder / "bundle")
        return made[form]

    return make


def parts(program: ir.Program) -> dict[str, int]:
    """Shards that each weight lies in, of those that lie in several."""
    counted = Counter(program.graph.tensors[weight.tensor].name for weight in program.weights)
    return {name: count for name, count in counted.items() if count > 1}


@pytest.mark.parametrize("variant", ["plain-wall", "mtp-wall"])
@pytest.mark.parametrize("form", list(LIMITS))
def test_a_split_model_has_the_golden_tokens(chrome: Chrome, split: Split, form: str, variant: str) -> None:
    """R12, R3: rows from several files reach their places in one buffer; tokens and rounds are the golden's."""
    wanted, folder = golden(form), split(form)
    program = open_folder(folder / "model").program(ir.K2_ROUND if variant == "mtp-wall" else ir.TEXT_DECODER)
    several = parts(program)
    tables = [name for name in several if "embed_tokens" in name]
    assert {name.split(".")[-2] for name in tables} >= {"embed_tokens", "embed_tokens_per_layer"}
    assert 2 <= several[next(name for name in tables if name.endswith("embed_tokens.weight"))] <= 4
    assert any("mlp" in name for name in several)
    assert len(program.shards) > 10
    with opened(chrome, folder, variant) as page:
        found = page.generate(wanted["prompt"], len(wanted["plain"]))
    assert found["tokens"] == wanted["plain"]
    if variant == "mtp-wall":
        assert found["rounds"] == wanted["rounds_clean"]


def twins(folder: Path) -> tuple[str, str]:
    """Two parts of one tensor whose files have equal lengths, so that nothing but their contents tells them apart."""
    program = open_folder(folder / "model").program(ir.TEXT_DECODER)
    largest = next(name for name, count in parts(program).items() if "per_layer.weight" in name and count > 2)
    shards = [program.shards[weight.values.shard] for weight in program.weights
              if program.graph.tensors[weight.tensor].name == largest]
    one, other = next((one, other) for one in shards for other in shards
                      if one.file != other.file and one.bytes == other.bytes)
    return f"model/{one.file}", f"model/{other.file}"


def exchange(bundle: Path, *, list_it: bool) -> None:
    one, other = twins(bundle)
    first, second = (bundle / one).read_bytes(), (bundle / other).read_bytes()
    replace(bundle, one, lambda _: second, list_it=list_it)
    replace(bundle, other, lambda _: first, list_it=list_it)


def _unlisted(bundle: Path, path: str) -> None:
    edit_manifest(bundle, lambda document: document["files"].pop(path))


def _of_no_method(bundle: Path, path: str) -> None:
    edit_manifest(bundle, lambda document: document["model"]["methods"]["text_decoder"]["shards"].remove(Path(path).name))


DAMAGES: Final[dict[str, tuple[Callable[[Path, str], object], str]]] = {
    "not on the server": (lambda bundle, path: (bundle / path).unlink(), "{path} is missing on the server"),
    "not in the manifest": (_unlisted, "manifest.json does not list {path}"),
    "not of the method": (_of_no_method, "{path}: the program has weights in it"),
    "swapped": (lambda bundle, _: exchange(bundle, list_it=False), "{path}.*sha256"),
    "swapped and listed": (lambda bundle, _: exchange(bundle, list_it=True), "{path}: the program wants .* the manifest lists"),
}


@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_part_that_is_missing_or_another_is_named(chrome: Chrome, split: Split, tmp_path: Path, damage: str) -> None:
    """V1, B3: whoever notices, the page says which file."""
    broken = copy_bundle(split("q4"), tmp_path / "bundle")
    path = twins(broken)[0]
    edit, says = DAMAGES[damage]
    edit(broken, path)
    with pytest.raises(Exception, match=says.format(path=path)), opened(chrome, broken, "plain-wall"):
        pytest.fail("it was loaded")


def test_a_receipt_with_a_missing_or_swapped_part_is_refused(split: Split, tmp_path: Path) -> None:
    """X15, V1: the folder's own receipt, and a receipt that was made to agree with swapped files."""
    missing = copy_bundle(split("q4"), tmp_path / "missing")
    path = twins(missing)[0]
    (missing / path).unlink()
    with pytest.raises(PublishError, match=f"{Path(path).name} is missing"):
        open_folder(missing / "model")
    swapped = copy_bundle(split("q4"), tmp_path / "swapped")
    exchange(swapped, list_it=False)
    with pytest.raises(PublishError, match=f"{Path(path).name} differs from its receipt"):
        open_folder(swapped / "model")
    place = swapped / "model/model.json"
    receipt = json.loads(place.read_bytes())
    one, other = (Path(name).name for name in twins(split("q4")))
    receipt["files"][one], receipt["files"][other] = receipt["files"][other], receipt["files"][one]
    place.unlink()
    place.write_text(dump_json(receipt))
    folder = open_folder(swapped / "model")
    with pytest.raises(ProgramError, match="is not the shard that the program was made with"):
        load_weights(folder.program(ir.TEXT_DECODER), folder.path)
