"""Action logs and the source receipt. Contract codes: N1, V1, V13, X18, P12."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from bundle_case import IDENTITY, Checkout, copy_checkout, make_checkout, put

from gemma4web import receipts
from gemma4web.errors import Gemma4WebError, PublishError, RecordError, ToolchainError
from gemma4web.files import dump_json
from gemma4web.manifest import encode


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return make_checkout(tmp_path_factory.mktemp("template") / "checkout")


@pytest.fixture
def checkout(template: Checkout, tmp_path: Path) -> Checkout:
    return copy_checkout(template, tmp_path / "checkout")


def test_receipt_closes_the_graph(checkout: Checkout) -> None:
    """N1: every input is a source or an output; the receipt says where each published file comes from."""
    receipt = receipts.read_receipt(checkout.receipt)
    assert set(receipt.sources) == {"runtime_cpp/src/a.cc", "runtime_cpp/exports.txt", "runtime_cpp/kernels/k.wgsl",
                                    "web/index.html", "web/run.html", "web/app.js"}
    assert set(receipt.assets) == {"index.html", "run.html", "app.js"}
    assert len(receipt.actions) == 9
    assert receipts.link_of(receipt, "mtp-wall").outputs.keys() == {"build/mtp-wall/gemma4_mtp.js",
                                                                     "build/mtp-wall/gemma4_mtp.wasm"}


def test_receipt_does_not_depend_on_the_folder(checkout: Checkout, tmp_path: Path) -> None:
    """P12: the same files elsewhere give the same bytes, and no path of this machine is in them."""
    other = make_checkout(tmp_path / "an other ünï place")
    assert other.receipt.read_bytes() == checkout.receipt.read_bytes()
    assert str(tmp_path) not in checkout.receipt.read_text(encoding="utf-8")


def test_tool_identity_hash_ignores_order() -> None:
    assert receipts.identity_sha256({"a": 1, "b": {"c": 2, "d": 3}}) == \
        receipts.identity_sha256({"b": {"d": 3, "c": 2}, "a": 1})
    assert receipts.identity_sha256({"a": 1}) != receipts.identity_sha256({"a": 2})


@pytest.mark.parametrize("name", ["build/plain-wall/a.o", "build/gen/kernels.h", "build/mtp-profile/gemma4_mtp_profile.wasm"])
def test_output_changed_after_its_action(checkout: Checkout, name: str) -> None:
    put(checkout.root, name, "tampered")
    with pytest.raises(PublishError, match=f"{name} is not what its action wrote"):
        checkout.write_receipt()


def test_output_removed_after_its_action(checkout: Checkout) -> None:
    (checkout.root / "build/plain-wall/gemma4.js").unlink()
    with pytest.raises(PublishError, match=r"gemma4\.js is not what its action wrote"):
        checkout.write_receipt()


def test_source_changed_between_actions(checkout: Checkout) -> None:
    """A source edited while the build ran would make a receipt that no build can repeat."""
    put(checkout.root, "runtime_cpp/src/a.cc", "int b;")
    with pytest.raises(PublishError, match=r"runtime_cpp/src/a\.cc changed between the actions"):
        checkout.write_receipt()


def test_actions_of_two_toolchains(checkout: Checkout) -> None:
    with pytest.raises(PublishError, match="made by another toolchain"):
        receipts.assemble(checkout.root, logs=checkout.logs(), toolchain={**IDENTITY, "emcc": "6.0.6"}, assets={})


def test_missing_log(checkout: Checkout) -> None:
    """An object whose log is gone is no source: nothing says what it was made from."""
    (checkout.root / "build/plain-wall/a.o.json").unlink()
    with pytest.raises(PublishError, match=r"build/plain-wall/a\.o is in build/, but no action made it"):
        checkout.write_receipt()


def edit(checkout: Checkout, change: Any) -> bytes:
    document = json.loads(checkout.receipt.read_bytes())
    change(document)
    return dump_json(document).encode()


def drop_link(document: dict[str, Any]) -> None:
    document["actions"] = [entry for entry in document["actions"]
                           if (entry["kind"], entry["variant"]) != ("link", "mtp-wall")]


CHANGES: dict[str, tuple[Any, str]] = {
    "source hash": (lambda d: d["sources"]["runtime_cpp/src/a.cc"].update(sha256="0" * 64), "changed between the actions"),
    "source gone": (lambda d: d["sources"].pop("runtime_cpp/exports.txt"), "neither a source nor an output"),
    "source is output": (lambda d: d["sources"].update(
        {"build/gen/kernels.h": d["actions"][0]["outputs"]["build/gen/kernels.h"]}), "both a source and an output"),
    "made twice": (lambda d: d["actions"].append(d["actions"][0]), "is made by two actions"),
    "asset hash": (lambda d: d["assets"]["index.html"].update(sha256="0" * 64), "index.html is copied from web/index.html"),
    "asset from nowhere": (lambda d: d["assets"]["index.html"].update(source="web/other.html"), "does not hold"),
    "link gone": (drop_link, "mtp-wall is linked 0 times"),
    "module swapped": (lambda d: d["modules"]["plain-wall"].update(js="build/mtp-wall/gemma4_mtp.js"),
                       "files of plain-wall are not the outputs of its link"),
    "provider": (lambda d: d["provider"].update(sha256="0" * 64), "provider's hash differs"),
    "output hash": (lambda d: d["actions"][1]["outputs"]["build/mtp-profile/a.o"].update(sha256="0" * 64),
                    "changed between the actions"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_edited_receipt_is_not_closed(checkout: Checkout, case: str) -> None:
    """V1, V13: a receipt that was written over by hand contradicts itself somewhere, and that is found."""
    change, said = CHANGES[case]
    with pytest.raises(PublishError) as caught:
        receipts.parse_receipt(edit(checkout, change), "receipt.json")
    assert said in str(caught.value)


@pytest.mark.parametrize(("change", "said"), [
    (lambda d: d.update(schema=2), "schema 2, wanted 1"), (lambda d: d.pop("sources"), "does not follow schema"),
    (lambda d: d["actions"][0].update(kind="guess"), "does not follow schema"),
    (lambda d: d["actions"][0].update(note=""), "does not follow schema"),
    (lambda d: d["actions"][0]["inputs"].update(x="00"), "does not follow schema"),
], ids=["schema", "field missing", "unknown kind", "unknown field", "short hash"])
def test_malformed_receipt(checkout: Checkout, change: Any, said: str) -> None:
    with pytest.raises(RecordError, match=said):
        receipts.parse_receipt(edit(checkout, change), "receipt.json")


def test_missing_receipt_and_log(tmp_path: Path) -> None:
    for read in (receipts.read_receipt, receipts.read_action):
        with pytest.raises(RecordError, match="does not exist"):
            read(tmp_path / "none.json")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b"])
def test_actions_stay_in_the_checkout(tmp_path: Path, path: str) -> None:
    with pytest.raises(RecordError, match="of an action"):
        receipts.write_action(tmp_path, kind="generate", inputs=[path], outputs=[], log="log.json")


def vendor(root: Path, listing: object) -> Path:
    put(root, "web/vendor.json", json.dumps(listing))
    put(root, "node_modules/@a/b/dist/x.js", "export {};")
    put(root, "node_modules/@a/b/package.json", '{"version": "1.2.3"}')
    return root / "node_modules"


ENTRY = {"package": "@a/b", "file": "dist/x.js", "as": "vendor/b/x.js"}


def test_vendored_files_are_copied_and_logged(checkout: Checkout) -> None:
    modules = vendor(checkout.root, {"schema": 1, "files": [ENTRY]})
    action = receipts.copy_vendored(checkout.root, modules, "0" * 64)
    assert (checkout.root / "build/vendor/b/x.js").read_text(encoding="utf-8") == "export {};"
    assert action.flags == ["@a/b@1.2.3"]
    assert receipts.page_assets(checkout.root)["vendor/b/x.js"] == "build/vendor/b/x.js"
    shutil.rmtree(modules)
    with pytest.raises(ToolchainError, match=r"@a/b has no file dist/x\.js"):
        receipts.copy_vendored(checkout.root, modules, "0" * 64)


@pytest.mark.parametrize("entry", [
    {**ENTRY, "as": "../x.js"}, {**ENTRY, "file": "../../secret"}, {**ENTRY, "file": "/etc/passwd"}, {**ENTRY, "x": 1},
    {"package": "@a/b"}, {**ENTRY, "as": "app.js"},
])
def test_bad_vendor_lists_are_refused(checkout: Checkout, entry: dict[str, str]) -> None:
    """P49: neither end of a copy may leave its folder, and no page file is shadowed."""
    modules = vendor(checkout.root, {"schema": 1, "files": [entry]})
    with pytest.raises(Gemma4WebError):
        receipts.copy_vendored(checkout.root, modules, "0" * 64)
        receipts.page_assets(checkout.root)


def test_logs_are_canonical(checkout: Checkout) -> None:
    path = checkout.root / "build/plain-wall/a.o.json"
    action = receipts.read_action(path)
    assert path.read_bytes() == encode(action)
    path.write_text(json.dumps(json.loads(path.read_bytes())), encoding="utf-8")
    with pytest.raises(RecordError, match="canonical form"):
        receipts.read_action(path)
