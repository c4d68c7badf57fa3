"""Compiling and linking a variant: flags as functions from tables to text, and the two steps that run the compiler.

Flags never hold an absolute path: what depends on the machine (include folders of the tools, the provider's port, the
prefix maps) is added when the command is run, so that action logs and hashes are the same in every folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemma4web.errors import CompileError, Gemma4WebError
from gemma4web.files import write_atomic
from gemma4web.process import run
from gemma4web.receipts import Action, identity_sha256, log_path, read_action, write_action
from gemma4web.variants import Variant

if TYPE_CHECKING:
    from gemma4web.toolchain import Toolchain

Settings = Mapping[str, str | tuple[str, ...]]

_TIMEOUT_S: Final = 900.0
INCLUDE_FOLDERS: Final = ("runtime_cpp/src", "build/gen")


class Mode(StrEnum):
    RELEASE = "release"
    DEBUG = "debug"


_COMPILE_FLAGS: Final = ("-std=c++20", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror")
_MODE_FLAGS: Final[Mapping[Mode, tuple[str, ...]]] = {
    Mode.RELEASE: ("-Oz",),
    Mode.DEBUG: ("-O1", "-g"),
}
_MODE_DEFINES: Final[Mapping[Mode, tuple[str, ...]]] = {Mode.RELEASE: ("NDEBUG=1",), Mode.DEBUG: ()}
_LINK_FLAGS: Final[Mapping[Mode, tuple[str, ...]]] = {
    Mode.RELEASE: ("-Oz", "-fno-exceptions", "-fno-rtti", "-Werror", "--no-entry", "--closure", "1"),
    Mode.DEBUG: ("-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Werror", "--no-entry"),
}
# What the page reads and writes on a module: heap views for copies, and the two UTF-8 conversions.
RUNTIME_METHODS: Final = ("HEAP32", "HEAPU8", "UTF8ToString", "lengthBytesUTF8", "stringToUTF8")
_SETTINGS: Final[Settings] = {
    "MODULARIZE": "1",
    "EXPORT_ES6": "1",
    "ENVIRONMENT": ("node", "web", "worker"),
    "ALLOW_MEMORY_GROWTH": "1",
    "FILESYSTEM": "0",
    "STRICT": "1",
    "EXPORTED_RUNTIME_METHODS": RUNTIME_METHODS,
    # What the page passes to a factory; STRICT would leave out the code that reads it.
    "INCOMING_MODULE_JS_API": ("locateFile", "onAbort", "print", "printErr", "wasmBinary"),
}
_MODE_SETTINGS: Final[Mapping[Mode, Settings]] = {
    Mode.RELEASE: {"ASSERTIONS": "0"},
    Mode.DEBUG: {"ASSERTIONS": "2", "STACK_OVERFLOW_CHECK": "2"},
}


def merge_settings(*layers: Settings) -> dict[str, str | tuple[str, ...]]:
    """Joins linker settings: lists become sorted unions, since emcc lets the last `-s` of a list replace the others.

    Raises CompileError when two layers give one scalar two values, or a list and a scalar.
    """
    merged: dict[str, str | tuple[str, ...]] = {}
    for layer in layers:
        for name, value in layer.items():
            old = merged.get(name, value)
            if isinstance(old, tuple) and isinstance(value, tuple):
                merged[name] = tuple(sorted({*old, *value}))
            elif old != value:
                raise CompileError(f"the linker setting {name} is given as {old!r} and as {value!r}",
                                   advice="keep one of them")
            else:
                merged[name] = value
    return merged


def read_exports(text: str, name: str = "exports.txt") -> tuple[str, ...]:
    """The exported C functions, one a line; `#` starts a comment. Raises CompileError for a bad or repeated name."""
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", entry) is None:
            raise CompileError(f"{name}:{number}: {entry!r} is not the name of a C function")
        if entry in names:
            raise CompileError(f"{name}:{number}: {entry} is listed twice")
        names.append(entry)
    if not names:
        raise CompileError(f"{name} lists no function")
    return tuple(names)


def defines(variant: Variant, mode: Mode, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Preprocessor definitions of a variant, `NAME=VALUE` each; a name is defined once."""
    merged: dict[str, str] = {}
    for entry in (*variant.defines, *_MODE_DEFINES[mode], *extra):
        name, separator, value = entry.partition("=")
        if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is None or not separator:
            raise CompileError(f"{entry!r} is not a definition, wanted NAME=VALUE")
        if merged.setdefault(name, value) != value:
            raise CompileError(f"{name} is defined as {merged[name]!r} and as {value!r} for {variant.name}")
    return tuple(f"{name}={value}" for name, value in merged.items())


def compile_flags(variant: Variant, mode: Mode, extra_defines: Sequence[str] = ()) -> tuple[str, ...]:
    """Everything that changes an object file, in the order in which the compiler gets it."""
    return (*_COMPILE_FLAGS, *_MODE_FLAGS[mode],
            *(f"-D{entry}" for entry in defines(variant, mode, extra_defines)),
            *(f"-I{folder}" for folder in INCLUDE_FOLDERS))


def link_flags(variant: Variant, mode: Mode, exports: Sequence[str]) -> tuple[str, ...]:
    """Everything that changes a module, in the order in which the linker gets it."""
    settings = merge_settings(
        _SETTINGS, _MODE_SETTINGS[mode],
        {"EXPORT_NAME": variant.factory, "EXPORTED_FUNCTIONS": tuple(f"_{name}" for name in exports)},
    )
    return (*_LINK_FLAGS[mode], *(
        f"-s{name}={value if isinstance(value, str) else ','.join(sorted(value))}"
        for name, value in sorted(settings.items())))


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectJob:
    """One translation unit of one variant; paths are relative to ``root`` and use `/`."""

    root: Path
    variant: str
    source: str
    output: str
    flags: tuple[str, ...]
    defines: tuple[str, ...]
    known_inputs: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkJob:
    """One module: object files and JS libraries in, ``<stem>.js`` and ``<stem>.wasm`` out."""

    root: Path
    variant: Variant
    objects: tuple[str, ...]
    libraries: tuple[str, ...]
    exports: str
    output: str
    flags: tuple[str, ...]
    defines: tuple[str, ...]


def _machine_flags(root: Path, toolchain: Toolchain) -> list[str]:
    """What depends on where things lie: the provider's port, the tools' headers, and the prefix maps that keep those
    folders' names out of debug information and `__FILE__`. The provider is given to every compile and every link.
    """
    return [f"--use-port={toolchain.provider.port}",
            "-isystem", str(toolchain.flatbuffers_include),
            f"-ffile-prefix-map={toolchain.em_cache}=/toolchain",
            f"-ffile-prefix-map={toolchain.flatbuffers_include}=/flatbuffers",
            f"-ffile-prefix-map={root}=."]


def compile_object(job: ObjectJob, toolchain: Toolchain, identity: Mapping[str, object]) -> Action:
    """Compiles one translation unit and writes its action log.

    Raises CompileError with the compiler's output, and when the source includes a project file that the build's own
    scanner did not see, because such a file would not trigger a rebuild.
    """
    depfile = f"{job.output}.d"
    argv = [*toolchain.emcc, *job.flags, *_machine_flags(job.root, toolchain),
            "-MD", "-MF", depfile, "-c", job.source, "-o", job.output]
    try:
        run(argv, env=toolchain.environment(), cwd=job.root, error=CompileError,
            what=f"compiling {job.source} for {job.variant}", timeout_s=_TIMEOUT_S)
        inputs = project_inputs(read_depfile((job.root / depfile).read_text(encoding="utf-8")), job.root)
    except FileNotFoundError:
        raise CompileError(f"the compiler wrote no list of includes for {job.source}") from None
    finally:
        (job.root / depfile).unlink(missing_ok=True)
    if unseen := sorted(inputs - job.known_inputs):
        raise CompileError(f"{job.source} includes {', '.join(unseen)}, which the build does not see as its input",
                           advice='write the include as a plain #include "layer/file.h"')
    return write_action(
        job.root, kind="compile", variant=job.variant, defines=job.defines, flags=job.flags, inputs=inputs,
        outputs=[job.output], log=str(log_path(Path(job.output))), toolchain=identity_sha256(identity))


def read_depfile(text: str) -> list[str]:
    """Prerequisites in a make-style dependency file: `\\` continues a line and escapes a space, `$$` is a dollar."""
    _, _, body = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\.|[^\s\\])+", body)
    return [re.sub(r"\\([ #\\])", r"\1", word).replace("$$", "$") for word in words]


def project_inputs(paths: Iterable[str], root: Path) -> frozenset[str]:
    """The paths that lie in the project's own source and generated folders, relative to ``root``.

    Everything else belongs to the tools or the provider, which the toolchain's identity covers.
    """
    own = ("runtime_cpp/src/", "build/gen/")
    found: set[str] = set()
    for path in paths:
        absolute = Path(path) if Path(path).is_absolute() else root / path
        parts: list[str] = []
        for part in absolute.parts:
            if part == "..":
                parts.pop()
            else:
                parts.append(part)
        clean = Path(*parts)
        if clean.is_relative_to(root) and (relative := clean.relative_to(root).as_posix()).startswith(own):
            found.add(relative)
    return frozenset(found)


def link_module(job: LinkJob, toolchain: Toolchain, identity: Mapping[str, object]) -> Action:
    """Links one module and writes its action log.

    The objects' names travel in a response file, so that their number has no limit. Raises CompileError with the
    linker's output, when an object was compiled by another toolchain or provider than this one, and when the glue is
    not what a page may import.
    """
    wanted = identity_sha256(identity)
    for path in job.objects:
        if read_action(log_path(job.root / path)).toolchain != wanted:
            raise CompileError(f"{path} was compiled with another toolchain or WebGPU provider than this link",
                               advice="build again; objects and link need the same provider")
    response = f"{job.output}.rsp.utf-8"
    wasm = str(Path(job.output).with_suffix(".wasm"))
    write_atomic(job.root / response, "".join(f"{shlex.quote(path)}\n" for path in job.objects))
    libraries = [word for path in job.libraries for word in ("--js-library", path)]
    argv = [*toolchain.emcc, *job.flags, *_machine_flags(job.root, toolchain), *libraries,
            f"@{response}", "-o", job.output]
    try:
        run(argv, env=toolchain.environment(), cwd=job.root, error=CompileError, what=f"linking {job.variant.name}",
            timeout_s=_TIMEOUT_S)
        check_glue((job.root / job.output).read_text(encoding="utf-8"), job.variant)
        return write_action(
            job.root, kind="link", variant=job.variant.name, defines=job.defines, flags=job.flags,
            inputs=[*job.objects, *job.libraries, job.exports], outputs=[job.output, wasm],
            log=str(log_path(Path(job.output))), toolchain=wanted)
    except FileNotFoundError as error:
        raise CompileError(f"linking {job.variant.name} wrote no {error.filename}") from None
    finally:
        (job.root / response).unlink(missing_ok=True)


def check_glue(text: str, variant: Variant) -> None:
    """What every page relies on in a module's JS: the default export, the wasm's name, and no suspension.

    Raises CompileError naming what is missing.
    """
    if re.search(rf"export\s*(default\s+{variant.factory}\b|{{\s*{variant.factory}\s+as\s+default\s*}})", text) is None:
        raise CompileError(f"the glue of {variant.name} does not export {variant.factory} by default")
    if f"{variant.stem}.wasm" not in text:
        raise CompileError(f"the glue of {variant.name} does not ask for {variant.stem}.wasm")
    if "WebAssembly.Suspending" in text or "Asyncify" in text:
        raise CompileError(f"the glue of {variant.name} can suspend, which this runtime never does",
                           advice="remove -sASYNCIFY / -sJSPI from the provider's flags")


def generate_accessors(flatc: Path, schema: str, output: str, root: Path, toolchain: Toolchain,
                       identity: Mapping[str, object], generators: Iterable[str]) -> Action:
    """Runs flatc over the program's schema. Raises CompileError with flatc's output."""
    folder = str(Path(output).parent)
    (root / folder).mkdir(parents=True, exist_ok=True)
    run([flatc, "--cpp", "--warnings-as-errors", "-o", folder, schema], env=toolchain.environment(), cwd=root,
        error=CompileError, what=f"flatc on {schema}", timeout_s=60.0)
    if not (root / output).is_file():
        raise CompileError(f"flatc wrote no {output} from {schema}")
    return write_action(root, kind="generate", flags=["--cpp"], inputs=[schema, *generators], outputs=[output],
                        log=str(log_path(Path(output))), toolchain=identity_sha256(identity))


def failure_text(error: Gemma4WebError) -> str:
    """What the build prints for an error of the tree: its kind, what happened, the remedy."""
    return f"{type(error).__name__}: {error}"
