"""The bundle's manifest: its types, its strict reader, and the rules that every path in a bundle obeys.

A manifest is closed-world: it lists every file of the bundle but itself. It is read in one way only (`parse`), which
refuses duplicate keys, byte order marks, NaN, unknown fields, numbers of the wrong kind and any text that is not the
canonical rendering of what it says, so that two readers can never see two different documents.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from gemma4web.errors import PublishError, RecordError
from gemma4web.files import dump_json
from gemma4web.variants import VARIANTS

SCHEMA: Final = 1
NAME: Final = "manifest.json"
RECEIPT_NAME: Final = "receipt.json"
MODEL_FOLDER: Final = "model"
RUNTIME_FOLDER: Final = "runtime"
HOST_FILES: Final[dict[str, bytes]] = {
    ".nojekyll": b"GitHub Pages drops files whose names begin with an underscore, unless this file exists.\n"}
"""Files of every bundle that speak to a static host; the modules vendored for the page have such names."""

Sha256 = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Bytes = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")

_MAX_PATH_CHARACTERS: Final = 240
_MAX_SEGMENT_BYTES: Final = 200
_RESERVED: Final = frozenset({"con", "prn", "aux", "nul", *(f"{device}{n}" for device in ("com", "lpt")
                                                          for n in range(1, 10))})
_FORBIDDEN: Final = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|#%]')


class FileIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one file is: its length and the SHA-256 of its bytes."""

    bytes: Bytes
    sha256: Sha256


class PathIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the bundle, by its path relative to the bundle's folder."""

    path: str
    bytes: Bytes
    sha256: Sha256


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was asked of the compiler and linker, without any absolute path."""

    defines: list[str]
    flags: list[str]


class Module(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant: two identities and the factory that the JS exports by default."""

    factory: str
    stem: str
    js: PathIdentity
    wasm: PathIdentity
    recipe: Recipe


class SourceReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    path: str
    sha256: Sha256


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    entry: str
    runner: str


class Provider(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which implementation of webgpu.h the modules were linked to, and the hash of its content."""

    kind: str
    sha256: Sha256


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole document. ``model`` is the content of model/model.json plus its ``path``."""

    schema: Literal[1]
    provenance: Literal["verified"]
    source_receipt: SourceReceipt
    variants: dict[str, Module]
    model: dict[str, Any]
    page: Page
    provider: Provider
    toolchain: dict[str, Any]
    files: dict[str, FileIdentity]


class HostLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a static host refuses. Sources: the hosts' own public documentation of limits."""

    name: str
    max_file_bytes: int
    underscore_names: bool


HOSTS: Final[dict[str, HostLimits]] = {limits.name: limits for limits in (
    HostLimits(name="any", max_file_bytes=(1 << 31) - 1, underscore_names=True),
    HostLimits(name="github-pages", max_file_bytes=100 * 1024 * 1024, underscore_names=False),
    HostLimits(name="cloudflare-pages", max_file_bytes=25 * 1024 * 1024, underscore_names=True),
)}


def strict_json(data: bytes, name: str) -> Any:
    """Reads JSON that every other reader would read in the same way.

    Raises RecordError for a byte order mark, another encoding, a duplicate key, `__proto__`, NaN, an infinite number, a
    lone surrogate, trailing data or nesting that no document of ours has.
    """
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in items]
        repeated = sorted({key for key in keys if keys.count(key) > 1}) if len(set(keys)) != len(keys) else []
        if repeated:
            raise RecordError(f"{name} has the key {repeated[0]!r} twice")
        if "__proto__" in keys:
            raise RecordError(f"{name} has the key '__proto__'")
        return dict(items)

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise RecordError(f"{name} holds the number {text}, which is not finite")
        return value

    def constant(text: str) -> float:
        raise RecordError(f"{name} holds {text}, which is not JSON")

    if data.startswith(b"\xef\xbb\xbf"):
        raise RecordError(f"{name} starts with a byte order mark, wanted plain UTF-8")
    try:
        text = data.decode("utf-8")
        document = json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_constant=constant)
        json.dumps(document, ensure_ascii=False).encode("utf-8")  # a lone surrogate cannot be encoded
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{name} is not JSON in UTF-8: {error}") from None
    return document


def decode(data: bytes, kind: type[T], name: str, schema: int) -> T:
    """Reads a document of the given ``schema`` into ``kind``, and insists on the canonical rendering.

    Raises RecordError with the document's name, what was found and what was wanted.
    """
    document = strict_json(data, name)
    if not isinstance(document, dict) or type(document.get("schema")) is not int or document["schema"] != schema:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise RecordError(f"{name} has schema {found!r}, wanted {schema}")
    try:
        value = msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise RecordError(f"{name} does not follow schema {schema}: {error}") from None
    if dump_json(document).encode() != data:
        raise RecordError(f"{name} is not in canonical form (sorted keys, two spaces, final newline); "
                          "it was edited after it was written")
    return value


def encode(value: msgspec.Struct) -> bytes:
    """Canonical bytes of a document, the only form that `decode` accepts."""
    document = msgspec.to_builtins(value)
    assert isinstance(document, dict)
    return dump_json(document).encode()


def path_fault(path: str) -> str | None:
    """Why ``path`` may not name a file of a bundle, or None when it may.

    A path is relative, in NFC, separated by `/`, without empty, `.` or `..` segments, without names that some file
    system reserves or trims, and without characters that a URL or a shell of some host treats as its own.
    """
    if not path:
        return "is empty"
    if len(path) > _MAX_PATH_CHARACTERS:
        return f"has {len(path)} characters, the limit is {_MAX_PATH_CHARACTERS}"
    if path.startswith("/"):
        return "is absolute"
    if found := _FORBIDDEN.search(path):
        return f"holds the character {found[0]!r}"
    if unicodedata.normalize("NFC", path) != path:
        return "is not in Unicode normal form C"
    for segment in path.split("/"):
        if segment in ("", ".", ".."):
            return f"holds the segment {segment!r}"
        if segment[0] == " " or segment[-1] in " .":
            return f"holds the segment {segment!r}, which starts with a space or ends with a space or a dot"
        if segment.split(".")[0].rstrip().lower() in _RESERVED:
            return f"holds the reserved name {segment!r}"
        try:
            length = len(segment.encode())
        except UnicodeEncodeError:
            return "holds a lone surrogate"
        if length > _MAX_SEGMENT_BYTES:
            return f"holds a name of {length} bytes, the limit is {_MAX_SEGMENT_BYTES}"
    return None


def path_faults(paths: Iterable[str]) -> list[str]:
    """Every reason why these paths cannot stand together in one folder on any file system; empty when they can."""
    faults: list[str] = []
    spelled: dict[str, str] = {}
    files: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        if (fault := path_fault(path)) is not None:
            faults.append(f"{path!r} {fault}")
            continue
        if path in files:
            faults.append(f"{path!r} is listed twice")
        parts = path.split("/")
        prefixes = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        files.add(path)
        folders.update(prefixes[:-1])
        for prefix in prefixes:
            other = spelled.setdefault(unicodedata.normalize("NFC", prefix.casefold()), prefix)
            if other != prefix:
                faults.append(f"{prefix!r} and {other!r} differ only in case or Unicode form")
    return faults + [f"{path!r} is both a file and a folder" for path in sorted(files & folders)]


def host_faults(files: dict[str, FileIdentity], host: HostLimits) -> list[str]:
    """Every file that ``host`` would refuse to serve, with the limit it breaks."""
    faults = [f"{path} has {entry.bytes} bytes, {host.name} serves at most {host.max_file_bytes}"
              for path, entry in sorted(files.items()) if entry.bytes > host.max_file_bytes]
    if not host.underscore_names and ".nojekyll" not in files:
        faults += [f"{path} has a name that starts with `_`, which {host.name} drops"
                   for path in sorted(files) if any(part.startswith("_") for part in path.split("/"))]
    return faults


def variant_faults(variants: dict[str, Module], files: dict[str, FileIdentity]) -> list[str]:
    """Checks the eight identities (V8): all present, all distinct, each the one that the matrix names.

    Wall and profile must differ in wasm and in recipe; a JS and a WASM file belong to one variant only.
    """
    faults: list[str] = []
    wanted = {variant.name: variant for variant in VARIANTS}
    faults += [f"the variant {name} is missing" for name in wanted if name not in variants]
    faults += [f"{name} is not a variant" for name in variants if name not in wanted]
    present = [name for name in wanted if name in variants]
    for name in present:
        module, variant = variants[name], wanted[name]
        if (module.factory, module.stem) != (variant.factory, variant.stem):
            faults.append(f"{name} names {module.factory}/{module.stem}, wanted {variant.factory}/{variant.stem}")
        for part, suffix in ((module.js, "js"), (module.wasm, "wasm")):
            path = f"{RUNTIME_FOLDER}/{variant.stem}.{suffix}"
            if part.path != path:
                faults.append(f"{name} names {part.path}, wanted {path}")
            listed = files.get(part.path)
            if listed is None or (listed.bytes, listed.sha256) != (part.bytes, part.sha256):
                faults.append(f"{part.path} of {name} differs from its entry in `files`")
    faults += _repeated([(f"{name} {part}", getattr(variants[name], part).sha256)
                         for name in present for part in ("js", "wasm")], "bytes")
    faults += _repeated([(name, msgspec.json.encode(variants[name].recipe).decode()) for name in present], "recipe")
    return faults


def _repeated(items: Sequence[tuple[str, str]], what: str) -> list[str]:
    first: dict[str, str] = {}
    faults = []
    for name, value in items:
        if value in first:
            faults.append(f"{name} has the same {what} as {first[value]}")
        first.setdefault(value, name)
    return faults


def faults_of(manifest: Manifest, host: HostLimits = HOSTS["any"]) -> list[str]:
    """Everything that the manifest says wrongly about itself; it reads no file."""
    faults = path_faults([*manifest.files, NAME])
    faults += host_faults(manifest.files, host)
    faults += variant_faults(manifest.variants, manifest.files)
    if manifest.source_receipt.path != RECEIPT_NAME:
        faults.append(f"the source receipt is {manifest.source_receipt.path!r}, wanted {RECEIPT_NAME!r}")
    if NAME in manifest.files:
        faults.append(f"{NAME} lists itself")
    if manifest.model.get("path") != MODEL_FOLDER:
        faults.append(f"the model's path is {manifest.model.get('path')!r}, wanted {MODEL_FOLDER!r}")
    receipt = manifest.files.get(RECEIPT_NAME)
    if receipt is None or receipt.sha256 != manifest.source_receipt.sha256:
        faults.append(f"{RECEIPT_NAME} is missing from `files` or has another hash there than in `source_receipt`")
    faults += [f"the page {path} is missing from `files`" for path in (manifest.page.entry, manifest.page.runner)
               if path not in manifest.files]
    return faults


def parse(data: bytes, name: str = NAME) -> Manifest:
    """Reads and validates a manifest. Raises RecordError for its form, PublishError for what it claims."""
    manifest = decode(data, Manifest, name, SCHEMA)
    if faults := faults_of(manifest):
        raise PublishError(f"{name} is not valid:\n  " + "\n  ".join(faults),
                           advice="stage the bundle again with `scons bundle`")
    return manifest
