"""The compute subset of <webgpu/webgpu.h> over the browser's WebGPU API, as a local port for Emscripten.

Give the same option to the compiler and to the linker:

    em++ --use-port=<this file>:include=<folder>

where ``<folder>/webgpu/webgpu.h`` is the standard header (of the level with WGPUStringView, WGPUFuture and callback
infos). The environment variable WEBGPU_PORT_INCLUDE may name the folder instead; a colon in the path is written twice.

The C++ half is compiled into a library whose name carries a hash of everything that it is made from, so an edited port
never meets an old library and parallel builds can share one cache. With a frozen cache that lacks it, the library is
compiled for the one link that needs it.
"""

import hashlib
import logging
import os
import subprocess
import tempfile

from tools import cache, config, system_libs, utils

LICENSE = "same as the project that carries it"
DESCRIPTION = "compute subset of <webgpu/webgpu.h>; no Asyncify, no JSPI"
URL = "see the module's docstring"
OPTIONS = {"include": "Folder that contains webgpu/webgpu.h. Default: the environment variable WEBGPU_PORT_INCLUDE."}

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_SOURCES = ("adapter.cc", "callbacks.cc", "commands.cc", "resources.cc")
_FLAGS = (
    "-std=c++20", "-Oz", "-fno-exceptions", "-fno-rtti", "-Wall", "-Wextra", "-Werror",
)
_UNSUPPORTED = {
    "MEMORY64": "handles and pointers are 32-bit numbers here",
    "SHARED_MEMORY": "the browser's objects belong to one thread",
    "GROWABLE_ARRAYBUFFERS": "WebGPU refuses views of resizable memory",
}

_logger = logging.getLogger("webgpu_port")
_include = os.environ.get("WEBGPU_PORT_INCLUDE", "")
_compiling = False


def handle_options(options, error_handler):
    global _include
    _include = options.get("include", _include)
    if not os.path.isfile(os.path.join(_include, "webgpu", "webgpu.h")):
        error_handler(f"include={_include}: no webgpu/webgpu.h in this folder")


def process_dependencies(settings, cflags_only):
    # The only place where Emscripten tells compiling from linking; the library is wanted for linking alone.
    global _compiling
    _compiling = cflags_only


def process_args(ports):
    return ["-isystem", _include_folder(), "-DWEBGPU_SUBGROUP_MATRIX_FEATURE=0x50034"]


def linker_setup(ports, settings):
    for name, reason in _UNSUPPORTED.items():
        if getattr(settings, name):
            utils.exit_with_error(f"webgpu_port does not support -s{name}: {reason}")
    settings.JS_LIBRARIES += [os.path.join(_FOLDER, "library_webgpu_port.js")]


def get(ports, settings, shared):
    if _compiling:
        return []
    name = _library_name()
    if config.FROZEN_CACHE and not os.path.exists(cache.get_lib_name(name, absolute=True)):
        _logger.info("the frozen cache has no %s: compiling it for this link", name)
        library = os.path.join(tempfile.mkdtemp(dir=shared.get_emscripten_temp_dir()), name)
        _build(library, shared)
        return [library]
    return [shared.cache.get_lib(name, lambda path: _build(path, shared), what="port")]


def clear(ports, settings, shared):
    shared.cache.erase_lib(_library_name())


def _include_folder():
    folder = os.path.abspath(_include) if _include else ""
    if not os.path.isfile(os.path.join(folder, "webgpu", "webgpu.h")):
        utils.exit_with_error(
            f"webgpu_port: no webgpu/webgpu.h in `{folder}`: add `:include=<folder>` to --use-port, or set "
            "WEBGPU_PORT_INCLUDE"
        )
    return folder


def _library_name():
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    inputs = [os.path.join(_FOLDER, name) for name in ("webgpu_port.port.py", "imports.h", *_SOURCES)]
    for path in (*inputs, os.path.join(_include_folder(), "webgpu", "webgpu.h")):
        content = utils.read_binary(path)
        digest.update(f"{os.path.basename(path)} {len(content)}\n".encode())
        digest.update(content)
    return f"libwebgpu_port-{digest.hexdigest()[:16]}.a"


def _build(library, shared):
    """Compiles the C++ half and puts ``library`` in place in one step, so that an interrupted build leaves none."""
    with tempfile.TemporaryDirectory(dir=shared.get_emscripten_temp_dir()) as folder:
        objects = []
        for source in _SOURCES:
            target = os.path.join(folder, source + ".o")
            command = [
                shared.EMXX, "-c", os.path.join(_FOLDER, source), "-o", target, *system_libs.get_base_cflags(folder),
                *_FLAGS, f"-ffile-prefix-map={_FOLDER}=webgpu_port", "-isystem", _include_folder(),
            ]
            if subprocess.run(command, env=system_libs.clean_env(), check=False).returncode != 0:
                utils.exit_with_error(f"webgpu_port: {source} does not compile")
            objects.append(target)
        archive = os.path.join(folder, os.path.basename(library))
        system_libs.create_lib(archive, objects)
        # The cache may be on another file system than the temporary folder.
        staged = f"{library}.{os.getpid()}"
        utils.write_binary(staged, utils.read_binary(archive))
        os.replace(staged, library)
