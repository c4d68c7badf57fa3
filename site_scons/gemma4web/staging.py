"""Stages a bundle as a whole, and remembers cheaply what a staged one looked like.

The builder owns the folder it is given: it writes a sibling, checks it as strictly as `verify` does, and swaps it in by
rename. Until that moment the old bundle is untouched, whatever fails. Copies are compared with what the build's actions
and the model's receipt recorded, never with themselves, so a file that changed after it was built is caught here.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemma4web import manifest as manifests
from gemma4web.errors import Gemma4WebError, PublishError, UsageError
from gemma4web.files import dump_json, load_json, write_if_changed
from gemma4web.manifest import (
    HOST_FILES,
    HOSTS,
    MODEL_FOLDER,
    NAME,
    RECEIPT_NAME,
    RUNTIME_FOLDER,
    FileIdentity,
    Manifest,
)
from gemma4web.receipts import Receipt, identify, link_of, read_receipt
from gemma4web.variants import VARIANTS
from gemma4web.verification import MODEL_RECEIPT, host_identities, read_model_receipt, verify

_BLOCK_BYTES: Final = 4 << 20
_STAMP_SCHEMA: Final = 1
PAGE: Final = manifests.Page(entry="index.html", runner="run.html")

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Copy:
    """One file on its way into a bundle: where it is, its path there, and what it has to be."""

    source: Path
    path: str
    identity: FileIdentity


def stage(root: Path, receipt_path: Path, model: Path, bundle: Path, *, host: str = "any",
          report: Report | None = None) -> Manifest:
    """Replaces ``bundle`` by the runtime and page of the receipt and the exported ``model``.

    ``root`` is the checkout that the receipt's paths are relative to. Raises PublishError when the receipt or the
    model's receipts are missing or contradict the files, a source is a symbolic link, a path or a size is one that
    ``host`` refuses, or the disk is full; the old bundle then still stands, byte for byte.
    """
    if host not in HOSTS:
        raise UsageError(f"{host!r} is no known host, wanted one of {', '.join(sorted(HOSTS))}")
    if not receipt_path.is_file():
        raise PublishError(f"there is no source receipt at {receipt_path}; nothing is staged without one",
                           advice="build with `scons bundle`, which writes it")
    receipt = read_receipt(receipt_path)
    document, copies = _model_copies(model)
    copies += _runtime_copies(root, receipt)
    copies.append(_Copy(source=receipt_path, path=RECEIPT_NAME, identity=identify(receipt_path)))
    copies.sort(key=lambda copy: copy.path)
    _refuse_faults(copies, HOSTS[host])
    staging = _sibling(bundle, "staging")
    _recover(bundle)
    try:
        try:
            for copy in copies:
                _copy(copy, staging)
                if report is not None and copy.identity.bytes >= _BLOCK_BYTES:
                    report(f"staged {copy.path} ({copy.identity.bytes / 1e6:.0f} MB)")
            for name, data in HOST_FILES.items():
                _write_new(staging / name, data)
            manifest = _manifest(receipt, document, copies)
            _write_new(staging / NAME, manifests.encode(manifest))
            if problems := verify(staging):
                raise PublishError("the staged copy is not what was asked for:\n  " + "\n  ".join(problems))
            _swap(staging, bundle)
        except OSError as error:
            raise _disk_error(error, bundle) from error
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        _recover(bundle)
        raise
    return manifest


def _disk_error(error: OSError, bundle: Path) -> PublishError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(bundle.parent).free
        return PublishError(f"the disk is full while staging {bundle} ({free / 1e6:.0f} MB free); "
                            "the bundle from before is untouched", advice="free some space and stage again")
    return PublishError(f"staging {bundle} failed: {error}; the bundle from before is untouched",
                        advice="correct that and stage again with `scons bundle`")


def _sibling(bundle: Path, purpose: str) -> Path:
    return bundle.with_name(f".{bundle.name}.{purpose}")


def _recover(bundle: Path) -> None:
    """Removes what a killed staging left, after putting back the bundle that it had moved aside."""
    previous = _sibling(bundle, "previous")
    if previous.exists():
        if bundle.exists():
            shutil.rmtree(previous)
        else:
            previous.rename(bundle)
    staging = _sibling(bundle, "staging")
    if staging.exists():
        shutil.rmtree(staging)


def _swap(staging: Path, bundle: Path) -> None:
    previous = _sibling(bundle, "previous")
    if bundle.is_symlink() or (bundle.exists() and not bundle.is_dir()):
        raise PublishError(f"{bundle} is not a folder", advice="remove it and stage again")
    if bundle.exists():
        bundle.rename(previous)
    staging.rename(bundle)
    shutil.rmtree(previous, ignore_errors=True)


def _runtime_copies(root: Path, receipt: Receipt) -> list[_Copy]:
    copies = [_Copy(source=root / asset.source, path=path, identity=FileIdentity(bytes=asset.bytes, sha256=asset.sha256))
              for path, asset in receipt.assets.items()]
    for variant in VARIANTS:
        outputs = link_of(receipt, variant.name).outputs
        files = receipt.modules[variant.name]
        copies += [_Copy(source=root / path, path=f"{RUNTIME_FOLDER}/{variant.stem}.{suffix}", identity=outputs[path])
                   for path, suffix in ((files.js, "js"), (files.wasm, "wasm"))]
    return copies


def _model_copies(model: Path) -> tuple[dict[str, Any], list[_Copy]]:
    """The model's receipt and its files, as the receipt states them; their bytes are checked when copied."""
    path = model / MODEL_RECEIPT
    if not path.is_file():
        raise PublishError(f"{model} holds no {MODEL_RECEIPT}: it is not a finished export",
                           advice="export the model again with `python -m gemma4web export`")
    document = read_model_receipt(path.read_bytes(), str(path))
    files = {name: FileIdentity(bytes=entry["bytes"], sha256=entry["sha256"])
             for name, entry in document["files"].items()}
    present = {entry.name for entry in model.iterdir()} - {MODEL_RECEIPT}
    if present != set(files):
        wrong = ", ".join(sorted(present ^ set(files)))
        raise PublishError(f"{model} does not hold exactly the files that its {MODEL_RECEIPT} lists: {wrong}",
                           advice="export the model again")
    copies = [_Copy(source=model / name, path=f"{MODEL_FOLDER}/{name}", identity=entry)
              for name, entry in files.items()]
    copies.append(_Copy(source=path, path=f"{MODEL_FOLDER}/{MODEL_RECEIPT}", identity=identify(path)))
    return document, copies


def _refuse_faults(copies: Iterable[_Copy], host: manifests.HostLimits) -> None:
    """Path and size rules, before a byte is written."""
    copies = list(copies)
    faults = manifests.path_faults([*(copy.path for copy in copies), *HOST_FILES, NAME])
    faults += manifests.host_faults({copy.path: copy.identity for copy in copies} | host_identities(), host)
    if faults:
        raise PublishError("these files cannot be published:\n  " + "\n  ".join(faults),
                           advice="rename them, or export with smaller shards")


def _copy(copy: _Copy, folder: Path) -> None:
    """Copies one regular file and compares what was read with what it has to be."""
    try:
        descriptor = os.open(copy.source, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise PublishError(f"{copy.source} is a symbolic link; only regular files are staged",
                               advice="put the file itself there") from None
        if error.errno == errno.ENOENT:
            raise PublishError(f"{copy.source} is missing", advice="build or export it again") from None
        raise
    digest, length = hashlib.sha256(), 0
    with os.fdopen(descriptor, "rb") as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
            raise PublishError(f"{copy.source} is not a regular file")
        destination = folder / copy.path
        destination.parent.mkdir(parents=True, exist_ok=True)
        with destination.open("xb") as target:
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                length += len(block)
                target.write(block)
    if (length, digest.hexdigest()) != (copy.identity.bytes, copy.identity.sha256):
        raise PublishError(
            f"{copy.source} is not the file that was built: {length} bytes, sha256 {digest.hexdigest()}, "
            f"wanted {copy.identity.bytes} bytes, sha256 {copy.identity.sha256}",
            advice=f"delete {copy.source} and build or export it again")


def _write_new(path: Path, data: bytes) -> None:
    with path.open("xb") as stream:
        stream.write(data)


def _manifest(receipt: Receipt, model: dict[str, Any], copies: list[_Copy]) -> Manifest:
    files = {copy.path: copy.identity for copy in copies} | host_identities()
    variants: dict[str, manifests.Module] = {}
    for variant in VARIANTS:
        link = link_of(receipt, variant.name)
        js, wasm = f"{RUNTIME_FOLDER}/{variant.stem}.js", f"{RUNTIME_FOLDER}/{variant.stem}.wasm"
        variants[variant.name] = manifests.Module(
            factory=variant.factory, stem=variant.stem,
            js=manifests.PathIdentity(path=js, bytes=files[js].bytes, sha256=files[js].sha256),
            wasm=manifests.PathIdentity(path=wasm, bytes=files[wasm].bytes, sha256=files[wasm].sha256),
            recipe=manifests.Recipe(defines=link.defines, flags=link.flags),
        )
    manifest = Manifest(
        schema=1, provenance="verified", variants=variants, page=PAGE, provider=receipt.provider,
        source_receipt=manifests.SourceReceipt(path=RECEIPT_NAME, sha256=files[RECEIPT_NAME].sha256),
        model={**model, "path": MODEL_FOLDER}, toolchain=receipt.toolchain, files=files,
    )
    if faults := manifests.faults_of(manifest):
        raise PublishError("the manifest would not be valid:\n  " + "\n  ".join(faults))
    return manifest


def write_stamp(bundle: Path, stamp: Path) -> None:
    """Remembers size and modification time of every file, so that a later build sees cheaply that all still stand."""
    write_if_changed(stamp, dump_json({"schema": _STAMP_SCHEMA, "files": _states(bundle)}))


def is_untouched(bundle: Path, stamp: Path) -> bool:
    """Whether the bundle has the stamp's files, with their sizes and times, and no empty folder; reads no content.

    False when in doubt.
    """
    try:
        return bool(load_json(stamp, schema=_STAMP_SCHEMA)["files"] == _states(bundle))
    except (Gemma4WebError, OSError, KeyError):
        return False


def _states(bundle: Path) -> dict[str, list[int]]:
    states: dict[str, list[int]] = {}
    for folder, folders, names in os.walk(bundle):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            states[path.relative_to(bundle).as_posix()] = [status.st_size, status.st_mtime_ns]
        for name in folders:
            path = Path(folder, name)
            if path.is_symlink() or not any(path.iterdir()):
                states[f"{path.relative_to(bundle).as_posix()}/"] = []  # no bundle has such a folder
    return states
