"""Linking a variant: settings as tables, their merge, the exports, and the step that runs the linker.

Apart from compile.py so that a changed link setting links again and recompiles nothing.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemma4web import closure
from gemma4web.compile import TIMEOUT_S, Mode, compiler_environment, machine_flags
from gemma4web.errors import CompileError
from gemma4web.files import write_atomic, write_if_changed
from gemma4web.process import run
from gemma4web.receipts import Action, identity_sha256, log_path, read_action, write_action
from gemma4web.variants import Variant

if TYPE_CHECKING:
    from gemma4web.toolchain import Toolchain

CLOSURE_FOLDER: Final = "build/closure"
Settings = Mapping[str, str | tuple[str, ...]]

_LINK_FLAGS: Final[Mapping[Mode, tuple[str, ...]]] = {
    # -Oz here would double the time of a link for 4 KB of 73 (brotli); the objects are compiled with it.
    Mode.RELEASE: ("-O2", "-fno-exceptions", "-fno-rtti", "-Werror", "--no-entry", "--closure", "1"),
    Mode.DEBUG: ("-O1", "-g", "-fno-exceptions", "-fno-rtti", "-Werror", "--no-entry"),
}
# What the page uses of a module beside its exports: copies go through this view, text through the browser's own codecs.
RUNTIME_METHODS: Final = ("HEAPU8",)
_SETTINGS: Final[Settings] = {
    "MODULARIZE": "1",
    "EXPORT_ES6": "1",
    "ENVIRONMENT": ("node", "web", "worker"),
    "ALLOW_MEMORY_GROWTH": "1",
    "FILESYSTEM": "0",
    "EXPORTED_RUNTIME_METHODS": RUNTIME_METHODS,
    # What the page passes to a factory; the glue reads nothing else of it.
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


def _environment(root: Path, toolchain: Toolchain, salt: str) -> dict[str, str]:
    """The compiler's environment, with a configuration that asks the Closure Compiler through its memory."""
    environment = compiler_environment(toolchain)
    if toolchain.closure is not None:
        program = [sys.executable, "-I", str(Path(closure.__file__).resolve()), str(root / CLOSURE_FOLDER), salt,
                   str(toolchain.closure)]
        config = root / CLOSURE_FOLDER / "em_config.py"
        text = toolchain.em_config.read_text(encoding="utf-8")
        write_if_changed(config, f"{text}\nCLOSURE_COMPILER = {program!r}\n")
        environment["EM_CONFIG"] = str(config)
    return environment


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
    argv = [*toolchain.emcc, *job.flags, *machine_flags(job.root, toolchain), *libraries,
            f"@{response}", "-o", job.output]
    try:
        run(argv, env=_environment(job.root, toolchain, wanted), cwd=job.root, error=CompileError, what=f"linking {job.variant.name}",
            timeout_s=TIMEOUT_S)
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
