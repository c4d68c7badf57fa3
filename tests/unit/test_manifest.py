"""The manifest's strict reader, path rules and identities. Contract codes: V8, X20, P48, P49, P50, B2."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from bundle_case import manifest_document

from gemma4web import manifest as manifests
from gemma4web.errors import PublishError, RecordError
from gemma4web.files import dump_json
from gemma4web.manifest import FileIdentity, path_fault, path_faults

FILE = FileIdentity(bytes=1, sha256="0" * 64)


def parse(document: dict[str, Any]) -> manifests.Manifest:
    return manifests.parse(dump_json(document).encode())


def test_a_good_manifest_is_read_and_written_alike() -> None:
    document = manifest_document()
    manifest = parse(document)
    assert manifests.encode(manifest) == dump_json(document).encode()
    assert manifest.variants["mtp-wall"].factory == "createGemma4Mtp"


@pytest.mark.parametrize("path", [
    "a.js", "model/target-00001-of-00002.safetensors", "a b/c d.txt", "a.b.c/..d/e", "ünï/✓.js", "com0", "console.js",
    "-x", "_x", ".nojekyll", "x" * 200,
])
def test_ordinary_paths_stand(path: str) -> None:
    assert path_fault(path) is None


@pytest.mark.parametrize("path", [
    "../x", "/etc/passwd", "a/../../x", "C:\\x", "C:x", "a\\..\\x", "a\0b", "", ".", "..", "a/./b", "a//b", "a/", "/",
    "a.", "a ", "a./b", " a", "a\n", "nul", "NUL.txt", "a/Com1/b", "lpt9.tar.gz", "aux .x", "x" * 300, "é" * 101,
    "/".join(["abcdefgh"] * 40), "e\u0301", "a?b", "a#b", "a%2f..%2fb", "a:b", "a*b", 'a"b', "a<b", "a|b", "\x7f",
    "\ud800",
])
def test_dangerous_paths_are_refused(path: str) -> None:
    """P49: nothing that leaves the folder, or that some file system or host reads as another name."""
    assert path_fault(path) is not None


@pytest.mark.parametrize(("paths", "said"), [
    (["a.js", "a.js"], "listed twice"), (["a.js", "A.js"], "differ only in case"),
    (["straße", "STRASSE"], "differ only in case or Unicode"), (["a/x", "A/y"], "differ only in case"),
    (["a", "a/b"], "both a file and a folder"), (["a/b", "a"], "both a file and a folder"),
])
def test_paths_that_cannot_stand_together(paths: list[str], said: str) -> None:
    faults = path_faults(paths)
    assert faults
    assert said in faults[0]


def test_paths_that_can_stand_together() -> None:
    assert path_faults(["a/b", "a/c", "ab", "a.js", "b/a"]) == []


@pytest.mark.parametrize(("data", "said"), [
    (b'{"schema": 1, "schema": 1}', "the key 'schema' twice"),
    (b'{"schema": 1, "files": {"a": 1, "a": 2}}', "the key 'a' twice"),
    (b'\xef\xbb\xbf{"schema": 1}', "byte order mark"),
    ('{"schema": 1}'.encode("utf-16"), "not JSON in UTF-8"),
    (b'{"schema": 1, "x": NaN}', "NaN"), (b'{"schema": 1, "x": Infinity}', "Infinity"),
    (b'{"schema": 1, "x": 1e400}', "1e400, which is not finite"),
    (b'{"schema": 1} {}', "Extra data"), (b'{"schema": 1}x', "Extra data"), (b"", "not JSON"), (b"\xff", "not JSON"),
    (b'{"schema": 1, "x": "\\ud800"}', "surrogates not allowed"),
    (b'{"schema": 1, "__proto__": {}}', "__proto__"), (b"[" * 100_000, "not JSON"), (b"[1]", "schema 'list'"),
    (b'{"schema": 2}', "schema 2, wanted 1"), (b'{"schema": true}', "schema True"), (b'{"schema": "1"}', "schema '1'"),
    (b'{"schema": 1.0}', "schema 1.0"), (b'{"schema": 1}\n', "does not follow schema 1"),
], ids=lambda value: None if isinstance(value, str) else repr(value[:24]))
def test_other_readings_are_refused(data: bytes, said: str) -> None:
    """P50: whatever two JSON readers could take for two documents is refused."""
    with pytest.raises(RecordError) as caught:
        manifests.parse(data)
    assert said in str(caught.value)


def set_file(document: dict[str, Any], field: str, value: object) -> None:
    document["files"]["index.html"][field] = value


@pytest.mark.parametrize("value", ["123", 1.0, True, -1, None])
def test_lengths_are_whole_numbers(value: object) -> None:
    document = manifest_document()
    set_file(document, "bytes", value)
    with pytest.raises(RecordError, match="does not follow schema 1"):
        parse(document)


@pytest.mark.parametrize("value", ["A" * 64, "0" * 63, "0" * 65, "g" * 64, 0, None, "0" * 64 + "\n"])
def test_hashes_are_lower_case_hexadecimal(value: object) -> None:
    document = manifest_document()
    set_file(document, "sha256", value)
    with pytest.raises(RecordError, match="does not follow schema 1"):
        parse(document)


@pytest.mark.parametrize("change", ["extra", "missing"])
def test_fields_are_exactly_the_schemas(change: str) -> None:
    document = manifest_document()
    if change == "extra":
        document["accepted"] = True
    else:
        del document["page"]
    with pytest.raises(RecordError, match="does not follow schema 1"):
        parse(document)


@pytest.mark.parametrize("label", ["pending", "accepted", "legacy", ""])
def test_provenance_has_no_other_label(label: str) -> None:
    """X20: a manifest that is not verified is no manifest of a bundle."""
    document = manifest_document()
    document["provenance"] = label
    with pytest.raises(RecordError, match="provenance"):
        parse(document)


def test_reformatted_manifest_is_refused() -> None:
    text = json.dumps(manifest_document(), sort_keys=True)
    with pytest.raises(RecordError, match="not in canonical form"):
        manifests.parse(text.encode())


def break_variant(document: dict[str, Any], case: str) -> None:
    variants, files = document["variants"], document["files"]
    if case == "missing variant":
        del variants["mtp-profile"]
    elif case == "foreign variant":
        variants["mtp-fast"] = variants["mtp-wall"]
    elif case == "wall wasm is profile wasm":
        for entry in (variants["plain-profile"]["wasm"], files["runtime/gemma4_profile.wasm"]):
            entry["sha256"] = variants["plain-wall"]["wasm"]["sha256"]
    elif case == "js is another js":
        for entry in (variants["mtp-wall"]["js"], files["runtime/gemma4_mtp.js"]):
            entry["sha256"] = variants["plain-wall"]["js"]["sha256"]
    elif case == "same recipe":
        variants["mtp-wall"]["recipe"] = variants["plain-wall"]["recipe"]
    elif case == "factories swapped":
        variants["plain-wall"]["factory"], variants["mtp-wall"]["factory"] = "createGemma4Mtp", "createGemma4"
    elif case == "stem of another":
        variants["plain-wall"]["stem"] = "gemma4_mtp"
    elif case == "path of another":
        variants["plain-wall"]["wasm"]["path"] = "runtime/gemma4_mtp.wasm"
    elif case == "hash unlike files":
        variants["plain-wall"]["wasm"]["sha256"] = "f" * 64


@pytest.mark.parametrize(("case", "said"), [
    ("missing variant", "mtp-profile is missing"), ("foreign variant", "mtp-fast is not a variant"),
    ("wall wasm is profile wasm", "plain-profile wasm has the same bytes as plain-wall wasm"),
    ("js is another js", "mtp-wall js has the same bytes as plain-wall js"),
    ("same recipe", "mtp-wall has the same recipe as plain-wall"),
    ("factories swapped", "plain-wall names createGemma4Mtp/gemma4, wanted createGemma4/gemma4"),
    ("stem of another", "plain-wall names createGemma4/gemma4_mtp"),
    ("path of another", "plain-wall names runtime/gemma4_mtp.wasm, wanted runtime/gemma4.wasm"),
    ("hash unlike files", "runtime/gemma4.wasm of plain-wall differs from its entry in `files`"),
])
def test_eight_distinct_identities(case: str, said: str) -> None:
    """V8: all eight present and distinct, wall and profile apart, each the one that the matrix names."""
    document = manifest_document()
    break_variant(document, case)
    with pytest.raises(PublishError) as caught:
        parse(document)
    assert said in str(caught.value)


@pytest.mark.parametrize(("field", "value", "said"), [
    (("source_receipt", "sha256"), "f" * 64, "receipt.json is missing from `files` or has another hash"),
    (("source_receipt", "path"), "model/source.json", "wanted 'receipt.json'"),
    (("model", "path"), "elsewhere", "wanted 'model'"), (("page", "entry"), "gone.html", "the page gone.html"),
    (("files", "manifest.json"), {"bytes": 1, "sha256": "0" * 64}, "manifest.json"),
    (("files", "../escape"), {"bytes": 1, "sha256": "0" * 64}, "'../escape' holds the segment '..'"),
])
def test_other_claims_are_checked(field: tuple[str, str], value: object, said: str) -> None:
    document = manifest_document()
    document[field[0]][field[1]] = value
    with pytest.raises(PublishError) as caught:
        parse(document)
    assert said in str(caught.value)


def test_host_limits() -> None:
    """P48: each offender with its limit."""
    files = {"a.bin": FileIdentity(bytes=101 << 20, sha256="0" * 64), "_x.js": FILE, "b/_c/d": FILE}
    github = manifests.host_faults(files, manifests.HOSTS["github-pages"])
    assert [fault.split()[0] for fault in github] == ["a.bin", "_x.js", "b/_c/d"]
    assert "105906176 bytes, github-pages serves at most 104857600" in github[0]
    assert len(manifests.host_faults({**files, ".nojekyll": FILE}, manifests.HOSTS["github-pages"])) == 1
    assert manifests.host_faults(files, manifests.HOSTS["any"]) == []


def test_documents_are_plain_data() -> None:
    assert msgspec.to_builtins(parse(manifest_document())) == manifest_document()
