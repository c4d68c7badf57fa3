"""Receipts: what every output was made from. One action log beside each output, one source receipt for the build.

An action log holds the hashes of one action's inputs and outputs, its flags and the toolchain's identity. The source
receipt joins the logs into a closed graph: every input is either a source, whose hash it states, or the output of
another action in it. Paths are relative to the checkout, so the same commit gives the same bytes in any folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from gemma4web.errors import PublishError, RecordError, ToolchainError
from gemma4web.files import sha256_bytes, sha256_file, write_atomic, write_if_changed
from gemma4web.manifest import FileIdentity, Provider, Sha256, decode, encode, path_fault, strict_json
from gemma4web.variants import VARIANTS

SCHEMA: Final = 1
LOG_SCHEMA: Final = 1

WEB_FOLDER: Final = "web"
VENDOR_LIST: Final = f"{WEB_FOLDER}/vendor.json"
BUILD_FOLDER: Final = "build"
VENDOR_LOG: Final = f"{BUILD_FOLDER}/vendor.json"
_WEB_INTERNAL: Final = frozenset({"tests", "templates", "node_modules", "tsconfig.json", "vendor.json"})

Kind = Literal["generate", "compile", "link", "vendor"]


class Action(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One step of the build. ``toolchain`` is the hash of the toolchain's identity, None for steps that use none."""

    schema: Literal[1] = 1
    kind: Kind
    variant: str | None
    defines: list[str]
    flags: list[str]
    inputs: dict[str, Sha256]
    outputs: dict[str, FileIdentity]
    toolchain: Sha256 | None


class Asset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that goes into the bundle as it stands: where it comes from, and what it is."""

    source: str
    bytes: Annotated[int, msgspec.Meta(ge=0)]
    sha256: Sha256


class ModuleFiles(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The two outputs of a variant's link, by path in the checkout."""

    js: str
    wasm: str


class Vendored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of an npm package and its path in the bundle (``as`` in the list)."""

    package: str
    file: str
    target: str = msgspec.field(name="as")


class _VendorList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal[1]
    files: list[Vendored]


class Receipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source receipt of one build. ``assets`` is keyed by the path in the bundle."""

    schema: Literal[1]
    toolchain: dict[str, Any]
    provider: Provider
    sources: dict[str, FileIdentity]
    actions: list[Action]
    modules: dict[str, ModuleFiles]
    assets: dict[str, Asset]


def identify(path: Path) -> FileIdentity:
    """Length and hash of a file as it stands now."""
    return FileIdentity(bytes=path.stat().st_size, sha256=sha256_file(path))


def identity_sha256(identity: Mapping[str, Any]) -> str:
    """Hash of a toolchain's identity, whatever the order in which it was put together."""
    return sha256_bytes(msgspec.json.encode(dict(identity), order="deterministic"))


def log_path(output: Path) -> Path:
    """Where the action that made ``output`` writes its log."""
    return output.with_name(output.name + ".json")


def write_action(root: Path, *, kind: Kind, inputs: Iterable[str], outputs: Sequence[str], log: str,
                 flags: Sequence[str] = (), defines: Sequence[str] = (), variant: str | None = None,
                 toolchain: str | None = None) -> Action:
    """Hashes an action's inputs and outputs, all given relative to ``root``, and writes its log.

    Raises RecordError for a path that does not stay inside the checkout, and OSError when a file is gone.
    """
    for path in (*inputs, *outputs):
        if (fault := path_fault(path)) is not None:
            raise RecordError(f"the path {path!r} of an action {fault}")
    action = Action(
        kind=kind, variant=variant, defines=list(defines), flags=list(flags), toolchain=toolchain,
        inputs={path: sha256_file(root / path) for path in sorted(set(inputs))},
        outputs={path: identify(root / path) for path in sorted(outputs)},
    )
    write_atomic(root / log, encode(action))
    return action


def read_action(path: Path) -> Action:
    """Reads one action log. Raises RecordError when it is missing, malformed or not canonical."""
    return decode(_read(path), Action, str(path), LOG_SCHEMA)


def read_receipt(path: Path) -> Receipt:
    """Reads a source receipt and insists that it is closed.

    Raises RecordError for its form, PublishError when its graph has a gap.
    """
    return parse_receipt(_read(path), str(path))


def parse_receipt(data: bytes, name: str) -> Receipt:
    receipt = decode(data, Receipt, name, SCHEMA)
    if faults := closure_faults(receipt):
        raise PublishError(f"{name} is not closed:\n  " + "\n  ".join(faults),
                           advice="build again with `scons bundle`; a receipt is never edited by hand")
    return receipt


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None


def page_assets(root: Path) -> dict[str, str]:
    """Path in the bundle -> file in the checkout, for the page and the modules vendored for it.

    What only the project itself needs stays out: tests, report templates, types and settings of the type checker.
    """
    assets: dict[str, str] = {}
    for path in sorted((root / WEB_FOLDER).rglob("*")):
        inner = path.relative_to(root / WEB_FOLDER)
        if path.is_dir() or inner.parts[0] in _WEB_INTERNAL or inner.name in _WEB_INTERNAL:
            continue
        if not inner.name.endswith((".d.ts", ".md")):
            assets[inner.as_posix()] = f"{WEB_FOLDER}/{inner.as_posix()}"
    for entry in read_vendor_list(root / VENDOR_LIST):
        if entry.target in assets:
            raise PublishError(f"{VENDOR_LIST} wants {entry.target}, which is also a file of {WEB_FOLDER}/")
        assets[entry.target] = f"{BUILD_FOLDER}/{entry.target}"
    return assets


def read_vendor_list(path: Path) -> list[Vendored]:
    """Which file of which npm package becomes which file of the bundle. Raises RecordError when malformed."""
    if not path.is_file():
        return []
    document = strict_json(path.read_bytes(), str(path))
    try:
        return msgspec.convert(document, _VendorList, strict=True).files
    except msgspec.ValidationError as error:
        raise RecordError(f"{path} is not a list of vendored files: {error}") from None


def copy_vendored(root: Path, node_modules: Path, toolchain: str) -> Action:
    """Copies what the vendor list names from ``node_modules`` to build/, and writes one action log for all.

    The packages' versions are recorded as flags; their content is pinned by the toolchain's identity, whose hash
    ``toolchain`` is. Raises ToolchainError when a package or a file in it is missing.
    """
    entries = read_vendor_list(root / VENDOR_LIST)
    for entry in entries:
        if (fault := path_fault(entry.file) or path_fault(entry.target)) is not None:
            raise RecordError(f"{VENDOR_LIST}: {entry.file!r} -> {entry.target!r}: a path {fault}")
        try:
            write_if_changed(root / BUILD_FOLDER / entry.target, (node_modules / entry.package / entry.file).read_bytes())
        except FileNotFoundError:
            raise ToolchainError(f"the npm package {entry.package} has no file {entry.file}, "
                                 f"which {VENDOR_LIST} names") from None
    versions = {f"{entry.package}@{_version(node_modules / entry.package)}" for entry in entries}
    return write_action(root, kind="vendor", flags=sorted(versions), inputs=[VENDOR_LIST], log=VENDOR_LOG,
                        outputs=[f"{BUILD_FOLDER}/{entry.target}" for entry in entries], toolchain=toolchain)


def _version(package: Path) -> str:
    version = strict_json((package / "package.json").read_bytes(), str(package / "package.json")).get("version")
    if not isinstance(version, str):
        raise ToolchainError(f"{package}/package.json states no version")
    return version


def assemble(root: Path, *, logs: Sequence[Path], toolchain: Mapping[str, Any], assets: Mapping[str, str]) -> Receipt:
    """Joins action logs into a source receipt.

    ``toolchain`` is the identity of the tools, with the WebGPU provider's kind and hash under `provider`; ``assets``
    maps a path in the bundle to its file in the checkout. Every file is hashed again here, so a receipt
    states what exists, not what a log remembers. Raises PublishError when an output changed after its action ended, or
    when a compiled output was made by another toolchain than this one.
    """
    actions = sorted((read_action(path) for path in logs), key=lambda action: sorted(action.outputs))
    made = {path: entry for action in actions for path, entry in action.outputs.items()}
    for path, entry in made.items():
        if not (root / path).is_file() or identify(root / path) != entry:
            raise PublishError(f"{path} is not what its action wrote: it was changed or removed afterwards",
                               advice=f"delete {path} and build again")
    wanted = identity_sha256(toolchain)
    for action in actions:
        if action.toolchain not in (None, wanted):
            raise PublishError(f"{', '.join(action.outputs)} was made by another toolchain than build/toolchain.json")
    leaves = {path for action in actions for path in action.inputs} | set(assets.values())
    receipt = Receipt(
        schema=SCHEMA, toolchain=dict(toolchain), actions=actions,
        provider=Provider(kind=toolchain["provider"]["kind"], sha256=toolchain["provider"]["sha256"]),
        sources={path: identify(root / path) for path in sorted(leaves - set(made))},
        modules={action.variant: _module(action) for action in actions if action.kind == "link" and action.variant},
        assets={path: Asset(source=source, bytes=(entry := identify(root / source)).bytes, sha256=entry.sha256)
                for path, source in sorted(assets.items())},
    )
    if faults := closure_faults(receipt):
        raise PublishError("the action logs do not form a closed graph:\n  " + "\n  ".join(faults),
                           advice="a source changed while the build ran; build again")
    return receipt


def _module(action: Action) -> ModuleFiles:
    by_suffix = {Path(path).suffix: path for path in action.outputs}
    return ModuleFiles(js=by_suffix[".js"], wasm=by_suffix[".wasm"])


def closure_faults(receipt: Receipt) -> list[str]:
    """Every gap in a receipt's graph, naming the file.

    An input has to be a source or an output with the very same hash; no file is both or made twice; what lies in the
    build folder is an output; each variant is linked once; an asset is a source or an output.
    """
    faults: list[str] = []
    made: dict[str, FileIdentity] = {}
    for action in receipt.actions:
        for path, entry in action.outputs.items():
            if path in made:
                faults.append(f"{path} is made by two actions")
            made[path] = entry
    faults += [f"{path} is both a source and an output" for path in receipt.sources if path in made]
    faults += [f"{path} is in {BUILD_FOLDER}/, but no action made it" for path in receipt.sources
               if path.startswith(f"{BUILD_FOLDER}/") and path not in made]
    known = {**receipt.sources, **made}
    for action in receipt.actions:
        name = ", ".join(action.outputs)
        for path, sha256 in action.inputs.items():
            if path not in known:
                faults.append(f"{path}, an input of {name}, is neither a source nor an output")
            elif known[path].sha256 != sha256:
                faults.append(f"{path} changed between the actions that read it (input of {name})")
    for path, asset in receipt.assets.items():
        entry_or_none = known.get(asset.source)
        if entry_or_none != FileIdentity(bytes=asset.bytes, sha256=asset.sha256):
            faults.append(f"{path} is copied from {asset.source}, which the receipt does not hold with that hash")
    if receipt.provider.sha256 != receipt.toolchain.get("provider", {}).get("sha256"):
        faults.append("the provider's hash differs from the one in the toolchain's identity")
    return faults + _module_faults(receipt)


def _module_faults(receipt: Receipt) -> list[str]:
    faults = []
    links = [action for action in receipt.actions if action.kind == "link"]
    for variant in VARIANTS:
        mine = [action for action in links if action.variant == variant.name]
        files = receipt.modules.get(variant.name)
        if len(mine) != 1 or files is None:
            faults.append(f"{variant.name} is linked {len(mine)} times, wanted once")
        elif {files.js, files.wasm} != set(mine[0].outputs):
            faults.append(f"the files of {variant.name} are not the outputs of its link")
    return faults


def link_of(receipt: Receipt, variant: str) -> Action:
    """The link action of a variant; a parsed receipt has exactly one."""
    return next(action for action in receipt.actions if action.kind == "link" and action.variant == variant)
