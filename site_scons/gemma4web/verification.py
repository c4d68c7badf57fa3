"""Recomputes everything that a staged bundle claims, from its bytes alone: every hash, and that the receipts agree."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from gemma4web import manifest as manifests
from gemma4web.errors import Gemma4WebError, PublishError, RecordError, VerifyError
from gemma4web.files import sha256_bytes, sha256_file
from gemma4web.manifest import HOST_FILES, MODEL_FOLDER, NAME, RECEIPT_NAME, FileIdentity, Manifest
from gemma4web.receipts import Receipt, identify, link_of, page_assets, parse_receipt
from gemma4web.variants import VARIANTS

MODEL_RECEIPT: Final = "model.json"
MODEL_SOURCE: Final = "source.json"
EXPORT_AGAIN: Final = "export the model again with `python -m gemma4web export`"


def read_model_receipt(data: bytes, name: str) -> dict[str, Any]:
    """Reads model.json strictly, as far as a bundle depends on it.

    Raises RecordError for its form, PublishError when it is bound to no source receipt (X18).
    """
    try:
        document = manifests.strict_json(data, name)
    except RecordError as error:
        raise RecordError(str(error.args[0]), advice=EXPORT_AGAIN) from None
    if not isinstance(document, dict) or document.get("schema") != 1 or isinstance(document["schema"], bool):
        raise RecordError(f"{name} is not a model receipt of schema 1", advice=EXPORT_AGAIN)
    files = document.get("files")
    if not isinstance(files, dict) or not files or not all(_is_identity(entry) for entry in files.values()):
        raise RecordError(f"{name} has no valid `files`, wanted name -> {{bytes, sha256}}", advice=EXPORT_AGAIN)
    if not isinstance(document.get("methods"), dict) or not document["methods"]:
        raise RecordError(f"{name} names no method", advice=EXPORT_AGAIN)
    bound = files.get(MODEL_SOURCE)
    if bound is None or bound["sha256"] != document.get("source_sha256"):
        raise PublishError(f"{name} is not bound to a source receipt: `source_sha256` is "
                           f"{document.get('source_sha256')!r}, {MODEL_SOURCE} is {bound and bound['sha256']!r}",
                           advice="export the model again; a model without a source receipt is never staged")
    if faults := manifests.path_faults(files):
        raise PublishError(f"{name} lists files that no bundle may hold:\n  " + "\n  ".join(faults),
                           advice=EXPORT_AGAIN)
    return document


def _is_identity(entry: object) -> bool:
    return (isinstance(entry, dict) and set(entry) == {"bytes", "sha256"} and type(entry["bytes"]) is int
            and entry["bytes"] >= 0 and isinstance(entry["sha256"], str) and len(entry["sha256"]) == 64
            and not set(entry["sha256"]) - set("0123456789abcdef"))


def host_identities() -> dict[str, FileIdentity]:
    """What the files that speak to a static host have to be."""
    return {name: FileIdentity(bytes=len(data), sha256=sha256_bytes(data)) for name, data in HOST_FILES.items()}


def verify(bundle: Path) -> list[str]:
    """Recomputes every claim of a bundle from its bytes; one line for each file that differs, is missing or is extra.

    Every file is hashed, receipts included; the manifest is compared with the source receipt (modules, recipes, page,
    provider, toolchain) and with the model's receipts and programs.
    """
    try:
        manifest = manifests.parse(_bytes_of(bundle / NAME))
        if problems := _file_problems(bundle, NAME, manifest.files, "the manifest"):
            return problems
        receipt = parse_receipt(_bytes_of(bundle / RECEIPT_NAME), RECEIPT_NAME)
        return _receipt_problems(manifest, receipt) + _model_problems(bundle, manifest)
    except Gemma4WebError as error:
        return str(error.args[0]).splitlines()
    except OSError as error:
        return [_unreadable(error)]


def verify_model(folder: Path) -> list[str]:
    """The same of an exported model that no bundle holds yet: its files, receipts and programs."""
    try:
        document = read_model_receipt(_bytes_of(folder / MODEL_RECEIPT), MODEL_RECEIPT)
        return (_file_problems(folder, MODEL_RECEIPT, _stated(document), MODEL_RECEIPT)
                or _source_problems(folder, document, "") or _program_problems(folder, document, ""))
    except Gemma4WebError as error:
        return str(error.args[0]).splitlines()
    except OSError as error:
        return [_unreadable(error)]


def _unreadable(error: OSError) -> str:
    return f"{error.filename} cannot be read: {error.strerror}"


def _stated(document: dict[str, Any]) -> dict[str, FileIdentity]:
    return {path: FileIdentity(bytes=entry["bytes"], sha256=entry["sha256"]) for path, entry in document["files"].items()}


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VerifyError(f"{path.name} cannot be read: {error.strerror}") from None


def _file_problems(base: Path, receipt: str, files: Mapping[str, FileIdentity], called: str) -> list[str]:
    """What ``base`` holds beside ``receipt`` against the ``files`` that this lists; ``called``: the receipt, in messages."""
    problems: list[str] = []
    present: set[str] = set()
    for folder, folders, names in os.walk(base):
        for name in [*folders, *names]:
            path = Path(folder, name)
            relative = path.relative_to(base).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                problems.append(f"{relative} is not a regular file")
            elif path.is_file():
                present.add(relative)
            elif not any(path.iterdir()):
                problems.append(f"{relative} is an extra, empty folder")
    problems += [f"{path} is extra: {called} does not list it" for path in sorted(present - {receipt, *files})]
    for listed, wanted in sorted(files.items()):
        if listed not in present:
            problems.append(f"{listed} is missing")
        elif (found := identify(base / listed)) != wanted:
            problems.append(f"{listed} differs: {found.bytes} bytes, sha256 {found.sha256}, {called} says "
                            f"{wanted.bytes} bytes, sha256 {wanted.sha256}")
    return problems


def _receipt_problems(manifest: Manifest, receipt: Receipt) -> list[str]:
    problems: list[str] = []
    expected = {path: FileIdentity(bytes=asset.bytes, sha256=asset.sha256) for path, asset in receipt.assets.items()}
    for variant in VARIANTS:
        module, link, files = manifest.variants[variant.name], link_of(receipt, variant.name), \
            receipt.modules[variant.name]
        expected[module.js.path] = link.outputs[files.js]
        expected[module.wasm.path] = link.outputs[files.wasm]
        if (module.recipe.defines, module.recipe.flags) != (link.defines, link.flags):
            problems.append(f"{NAME}: the recipe of {variant.name} is not the one in {RECEIPT_NAME}")
    if manifest.provider != receipt.provider:
        problems.append(f"{NAME}: the provider is not the one in {RECEIPT_NAME}")
    if manifest.toolchain != receipt.toolchain:
        problems.append(f"{NAME}: the toolchain is not the one in {RECEIPT_NAME}")
    problems += [f"{path} is not the file that {RECEIPT_NAME} says was built"
                 for path, wanted in sorted(expected.items()) if manifest.files.get(path) != wanted]
    problems += [f"{path} is not the file that every bundle holds for static hosts"
                 for path, wanted in host_identities().items() if manifest.files.get(path) != wanted]
    accounted = {*expected, *HOST_FILES, RECEIPT_NAME}
    problems += [f"{path} comes neither from {RECEIPT_NAME} nor from the model" for path in sorted(manifest.files)
                 if path not in accounted and not path.startswith(f"{MODEL_FOLDER}/")]
    return problems


def _model_problems(bundle: Path, manifest: Manifest) -> list[str]:
    folder = bundle / MODEL_FOLDER
    name = f"{MODEL_FOLDER}/{MODEL_RECEIPT}"
    document = read_model_receipt(_bytes_of(folder / MODEL_RECEIPT), name)
    problems: list[str] = []
    if {**document, "path": MODEL_FOLDER} != manifest.model:
        problems.append(f"{NAME}: `model` is not the content of {name}")
    stated = {f"{MODEL_FOLDER}/{path}": entry for path, entry in _stated(document).items()}
    listed = {path: entry for path, entry in manifest.files.items()
              if path.startswith(f"{MODEL_FOLDER}/") and path != name}
    problems += [f"{path} is not what {name} says" for path in sorted({*stated, *listed})
                 if stated.get(path) != listed.get(path)]
    problems += _source_problems(folder, document, f"{MODEL_FOLDER}/")
    return problems or _program_problems(folder, document, f"{MODEL_FOLDER}/")


def _source_problems(folder: Path, document: dict[str, Any], inside: str) -> list[str]:
    """Compares the model's receipt with its source receipt; ``inside``: what the names of ``folder``'s files begin with."""
    source = manifests.strict_json(_bytes_of(folder / MODEL_SOURCE), f"{inside}{MODEL_SOURCE}")
    if not isinstance(source, dict) or source.get("inputs") != document.get("acquisition"):
        return [f"{inside}{MODEL_RECEIPT}: `acquisition` is not what {inside}{MODEL_SOURCE} says of the inputs"]
    return []


def _program_problems(folder: Path, document: dict[str, Any], inside: str) -> list[str]:
    """Compares each program's own list of shards with the files, so that a program never meets foreign weights."""
    from gemma4web.program import codec  # numpy and the accessors load only when a bundle is verified

    problems = []
    for method, entry in sorted(document["methods"].items()):
        path = entry["program"]
        if path not in document["files"]:
            problems.append(f"{inside}{MODEL_RECEIPT} names the program {path}, which it does not list")
            continue
        program = codec.read(folder / path)
        if program.graph.method != method:
            problems.append(f"{inside}{path} is a program of {program.graph.method!r}, wanted {method!r}")
        if program.source_sha256 != document["source_sha256"]:
            problems.append(f"{inside}{path} was exported from other inputs than {inside}{MODEL_SOURCE} states")
        stated = {shard.file: (shard.bytes, shard.sha256) for shard in program.shards}
        if sorted(stated) != sorted(entry["shards"]):
            problems.append(f"{inside}{path} names the shards {sorted(stated)}, "
                            f"{MODEL_RECEIPT} says {sorted(entry['shards'])} for {method}")
        for shard, identity in sorted(stated.items()):
            found = document["files"].get(shard)
            if found is None or (found["bytes"], found["sha256"]) != identity:
                problems.append(f"{inside}{shard} is not the shard that {inside}{path} was made for")
    return problems


def source_changes(root: Path, bundle: Path) -> list[str]:
    """Files of the checkout ``root`` that are not as they were when a verified bundle was built, in name order."""
    receipt = parse_receipt(_bytes_of(bundle / RECEIPT_NAME), RECEIPT_NAME)
    changed = {path for path, entry in receipt.sources.items()
               if not (root / path).is_file() or identify(root / path) != entry}
    return sorted(changed | {source for path, source in page_assets(root).items() if path not in receipt.assets})


def verify_or_raise(bundle: Path, *, advice: str | None = None) -> str:
    """One line about a bundle that holds what it claims. Raises VerifyError with every problem otherwise."""
    if not os.path.isdir(bundle):
        raise VerifyError(f"there is no bundle at {bundle}", advice=advice)
    if problems := verify(bundle):
        raise VerifyError(f"{bundle} is not what it claims:\n  " + "\n  ".join(problems), advice=advice)
    files = manifests.parse((bundle / NAME).read_bytes()).files
    return (f"{bundle}: {len(files)} files, {sum(entry.bytes for entry in files.values()):,} bytes, all as claimed; "
            f"bundle sha256 {sha256_file(bundle / NAME)}")


def verify_model_or_raise(folder: Path) -> str:
    """One line about an exported model that holds what it claims. Raises VerifyError with every problem otherwise."""
    if problems := verify_model(folder):
        raise VerifyError(f"{folder} is not what it claims:\n  " + "\n  ".join(problems), advice=EXPORT_AGAIN)
    files = _stated(read_model_receipt(_bytes_of(folder / MODEL_RECEIPT), MODEL_RECEIPT))
    return (f"{folder}: {len(files)} files, {sum(entry.bytes for entry in files.values()):,} bytes, all as claimed; "
            f"model sha256 {sha256_file(folder / MODEL_RECEIPT)}")


def main_verify(argv: Sequence[str]) -> int:
    """`python -m gemma4web verify`: 0 when every claim holds. Raises VerifyError with every problem otherwise."""
    parser = argparse.ArgumentParser(
        prog="gemma4web verify", description="Recomputes every claim of a staged bundle, or of an exported model.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/bundle"), metavar="FOLDER",
                        help="folder of a staged bundle or of an exported model (default: build/bundle)")
    folder = parser.parse_args(argv).folder
    is_bundle, is_model = (os.path.lexists(folder / name) for name in (NAME, MODEL_RECEIPT))
    if os.path.isdir(folder) and not is_bundle and not is_model:
        raise VerifyError(f"{folder} has neither {NAME} nor {MODEL_RECEIPT}: it is neither a bundle nor an exported model",
                          advice="name a folder that `scons bundle` staged, or that `python -m gemma4web export` made")
    print(verify_model_or_raise(folder) if is_model and not is_bundle else verify_or_raise(folder))
    return 0
