"""Stages a bundle as a whole, and recomputes everything that a staged bundle claims.

The builder owns the folder it is given: it writes a sibling, checks it as strictly as `verify` does, and swaps it in by
rename. Until that moment the old bundle is untouched, whatever fails. Copies are compared with what the build's actions
and the model's receipt recorded, never with themselves, so a file that changed after it was built is caught here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gemma4web import manifest as manifests
from gemma4web.errors import Gemma4WebError, PublishError, RecordError, UsageError, VerifyError
from gemma4web.files import dump_json, load_json, sha256_file, write_if_changed
from gemma4web.manifest import HOSTS, MODEL_FOLDER, NAME, RECEIPT_NAME, RUNTIME_FOLDER, FileIdentity, Manifest
from gemma4web.receipts import Receipt, identify, link_of, parse_receipt, read_receipt
from gemma4web.variants import VARIANTS

_BLOCK_BYTES: Final = 4 << 20
_STAMP_SCHEMA: Final = 1
MODEL_RECEIPT: Final = "model.json"
MODEL_SOURCE: Final = "source.json"
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


def read_model_receipt(data: bytes, name: str) -> dict[str, Any]:
    """Reads model.json strictly, as far as a bundle depends on it.

    Raises RecordError for its form, PublishError when it is bound to no source receipt (X18).
    """
    document = manifests.strict_json(data, name)
    if not isinstance(document, dict) or document.get("schema") != 1 or isinstance(document["schema"], bool):
        raise RecordError(f"{name} is not a model receipt of schema 1")
    files = document.get("files")
    if not isinstance(files, dict) or not files or not all(_is_identity(entry) for entry in files.values()):
        raise RecordError(f"{name} has no valid `files`, wanted name -> {{bytes, sha256}}")
    if not isinstance(document.get("methods"), dict) or not document["methods"]:
        raise RecordError(f"{name} names no method")
    bound = files.get(MODEL_SOURCE)
    if bound is None or bound["sha256"] != document.get("source_sha256"):
        raise PublishError(f"{name} is not bound to a source receipt: `source_sha256` is "
                           f"{document.get('source_sha256')!r}, {MODEL_SOURCE} is {bound and bound['sha256']!r}",
                           advice="export the model again; a model without a source receipt is never staged")
    if faults := manifests.path_faults(files):
        raise PublishError(f"{name} lists files that no bundle may hold:\n  " + "\n  ".join(faults))
    return document


def _is_identity(entry: object) -> bool:
    return (isinstance(entry, dict) and set(entry) == {"bytes", "sha256"} and type(entry["bytes"]) is int
            and entry["bytes"] >= 0 and isinstance(entry["sha256"], str) and len(entry["sha256"]) == 64
            and not set(entry["sha256"]) - set("0123456789abcdef"))


def _refuse_faults(copies: Iterable[_Copy], host: manifests.HostLimits) -> None:
    """Path and size rules, before a byte is written."""
    copies = list(copies)
    faults = manifests.path_faults([*(copy.path for copy in copies), NAME])
    faults += manifests.host_faults({copy.path: copy.identity for copy in copies}, host)
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
    files = {copy.path: copy.identity for copy in copies}
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


def verify(bundle: Path) -> list[str]:
    """Recomputes every claim of a bundle from its bytes; one line for each file that differs, is missing or is extra.

    Every file is hashed, receipts included; the manifest is compared with the source receipt (modules, recipes, page,
    provider, toolchain) and with the model's receipts and programs.
    """
    try:
        manifest = manifests.parse(_bytes_of(bundle / NAME))
        problems = _file_problems(bundle, manifest)
        if problems:
            return problems
        receipt = parse_receipt(_bytes_of(bundle / RECEIPT_NAME), RECEIPT_NAME)
        return _receipt_problems(manifest, receipt) + _model_problems(bundle, manifest)
    except Gemma4WebError as error:
        return str(error).splitlines()


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VerifyError(f"{path.name} cannot be read: {error.strerror}") from None


def _file_problems(bundle: Path, manifest: Manifest) -> list[str]:
    problems: list[str] = []
    present: set[str] = set()
    for folder, folders, names in os.walk(bundle):
        for name in [*folders, *names]:
            path = Path(folder, name)
            relative = path.relative_to(bundle).as_posix()
            if path.is_symlink() or not (path.is_dir() or path.is_file()):
                problems.append(f"{relative} is not a regular file")
            elif path.is_file():
                present.add(relative)
            elif not any(path.iterdir()):
                problems.append(f"{relative} is an extra, empty folder")
    problems += [f"{path} is extra: the manifest does not list it" for path in sorted(present - {NAME, *manifest.files})]
    for listed, wanted in sorted(manifest.files.items()):
        if listed not in present:
            problems.append(f"{listed} is missing")
        elif (found := identify(bundle / listed)) != wanted:
            problems.append(f"{listed} differs: {found.bytes} bytes, sha256 {found.sha256}, the manifest says "
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
    accounted = {*expected, RECEIPT_NAME}
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
    stated = {f"{MODEL_FOLDER}/{path}": FileIdentity(bytes=entry["bytes"], sha256=entry["sha256"])
              for path, entry in document["files"].items()}
    listed = {path: entry for path, entry in manifest.files.items()
              if path.startswith(f"{MODEL_FOLDER}/") and path != name}
    problems += [f"{path} is not what {name} says" for path in sorted({*stated, *listed})
                 if stated.get(path) != listed.get(path)]
    return problems or _program_problems(folder, document)


def _program_problems(folder: Path, document: dict[str, Any]) -> list[str]:
    """Compares each program's own list of shards with the files, so that a program never meets foreign weights."""
    from gemma4web.program import codec  # numpy and the accessors load only when a bundle is verified

    problems = []
    for method, entry in sorted(document["methods"].items()):
        path = entry["program"]
        if path not in document["files"]:
            problems.append(f"{MODEL_FOLDER}/{MODEL_RECEIPT} names the program {path}, which it does not list")
            continue
        program = codec.read(folder / path)
        if program.graph.method != method:
            problems.append(f"{MODEL_FOLDER}/{path} is a program of {program.graph.method!r}, wanted {method!r}")
        stated = {shard.file: (shard.bytes, shard.sha256) for shard in program.shards}
        if sorted(stated) != sorted(entry["shards"]):
            problems.append(f"{MODEL_FOLDER}/{path} names the shards {sorted(stated)}, "
                            f"{MODEL_RECEIPT} says {sorted(entry['shards'])} for {method}")
        for shard, identity in sorted(stated.items()):
            found = document["files"].get(shard)
            if found is None or (found["bytes"], found["sha256"]) != identity:
                problems.append(f"{MODEL_FOLDER}/{shard} is not the shard that {MODEL_FOLDER}/{path} was made for")
    return problems


def write_stamp(bundle: Path, stamp: Path) -> None:
    """Remembers size and modification time of every file, so that a later build sees cheaply that all still stand."""
    write_if_changed(stamp, dump_json({"schema": _STAMP_SCHEMA, "files": _states(bundle)}))


def is_untouched(bundle: Path, stamp: Path) -> bool:
    """Whether the bundle's files have the sizes and times of the stamp; reads no content. False when in doubt."""
    try:
        return bool(load_json(stamp, schema=_STAMP_SCHEMA)["files"] == _states(bundle))
    except (Gemma4WebError, OSError, KeyError):
        return False


def _states(bundle: Path) -> dict[str, list[int]]:
    states: dict[str, list[int]] = {}
    for folder, _, names in os.walk(bundle):
        for name in names:
            path = Path(folder, name)
            status = path.lstat()
            states[path.relative_to(bundle).as_posix()] = [status.st_size, status.st_mtime_ns]
    return states


def verify_or_raise(bundle: Path) -> str:
    """One line about a bundle that holds what it claims. Raises VerifyError with every problem otherwise."""
    if problems := verify(bundle):
        raise VerifyError(f"{bundle} is not what it claims:\n  " + "\n  ".join(problems))
    files = manifests.parse((bundle / NAME).read_bytes()).files
    return (f"{bundle}: {len(files)} files, {sum(entry.bytes for entry in files.values()):,} bytes, all as claimed; "
            f"bundle sha256 {sha256_file(bundle / NAME)}")


def main_verify(argv: list[str]) -> int:
    """`python -m gemma4web verify BUNDLE`: 0 when every claim holds, else the exit code of the error printed."""
    if len(argv) != 1 or argv[0] in ("-h", "--help"):
        print("usage: python -m gemma4web verify BUNDLE\n\nRecomputes every claim of a staged bundle.",
              file=sys.stdout if argv in (["-h"], ["--help"]) else sys.stderr)
        return 0 if argv in (["-h"], ["--help"]) else UsageError.exit_code
    with contextlib.suppress(BrokenPipeError):
        try:
            print(verify_or_raise(Path(argv[0])))
        except Gemma4WebError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return error.exit_code
    return 0
