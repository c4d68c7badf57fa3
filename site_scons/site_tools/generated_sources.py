"""Generated C++: WGSL kernels -> build/gen/kernels.{h,cc} with their lock, schema -> build/gen/program_generated.h."""

from __future__ import annotations

import re

from SCons.Script import COMMAND_LINE_TARGETS, AlwaysBuild, Depends, NoClean, Precious, Scanner

from site_tools.adapter import action, files, literal, modules, paths, root, toolchain

KERNELS = "runtime_cpp/kernels"
LOCK = f"{KERNELS}/kernels.lock.json"
HEADER = "build/gen/kernels.h"
TEXTS = "build/gen/kernels.cc"
SCHEMA = "site_scons/gemma4web/program/program.fbs"
ACCESSORS = "build/gen/program_generated.h"


def _render(target, source, env):
    from gemma4web import kernels
    from gemma4web.errors import KernelError
    from gemma4web.receipts import write_action
    top = root(env)
    seen = set(paths(target[0].all_children()))
    read = {found.relative_to(top).as_posix() for kernel in paths(source)
            for found in kernels.dependencies(top / kernel)}
    if unseen := read - seen:
        raise KernelError(f"a kernel includes {', '.join(sorted(unseen))}, which the build does not see as its input")
    kernels.check_lock(top / KERNELS, top / LOCK)
    kernels.write_generated(kernels.generate(top / KERNELS), header_path=top / HEADER, source_path=top / TEXTS)
    write_action(top, kind="generate", inputs=seen, outputs=[HEADER, TEXTS],
                 log=paths(target)[2])


def _lock(target, source, env):
    from gemma4web import kernels
    from gemma4web.files import dump_json, write_if_changed
    top = root(env)
    write_if_changed(top / LOCK, dump_json(kernels.generate(top / KERNELS).lock))


def _accessors(target, source, env):
    from gemma4web import compile as steps
    tools, identity = toolchain(env)
    generators = [path for path in paths(target[0].all_children()) if path.startswith("site_scons/")]
    steps.generate_accessors(tools.flatc, SCHEMA, ACCESSORS, root(env), tools, identity, generators)


def _includes(node, env, path):
    """The includes and forms that a kernel names itself; the generator, which parses the files, checks that nothing else is read."""
    names = re.findall(r"^//! (?:include|forms):[ \t]*(\S+)", node.get_text_contents(), flags=re.MULTILINE)
    return [env.File(literal(f"#{KERNELS}/{name}")) for name in names if (root(env) / KERNELS / name).is_file()]


def kernels_target(env):
    """Declares kernels.h and kernels.cc. With `kernels-lock` on the command line the committed lock is a target before."""
    sources = [path for path in files(env, KERNELS, "*.wgsl") if "/include/" not in path]
    generators = modules(env, "kernels", "files", "receipts")
    if "kernels-lock" in COMMAND_LINE_TARGETS:
        lock = env.Command(LOCK, sources, action(_lock, f"locking {LOCK}"),
                           source_scanner=Scanner(_includes, recursive=True))
        AlwaysBuild(Precious(NoClean(lock)))
        Depends(lock, generators)
        env.Alias("kernels-lock", lock)
    made = env.Command([HEADER, TEXTS, f"{HEADER}.json"], sources, action(_render, f"generating {HEADER}"),
                       source_scanner=Scanner(_includes, recursive=True))
    Depends(made, [LOCK, *generators])
    return Precious(made)


def accessors_target(env, tools):
    """Declares program_generated.h."""
    header = env.Command([ACCESSORS, f"{ACCESSORS}.json"], SCHEMA, action(_accessors, f"generating {ACCESSORS}"))
    Depends(header, [tools[0], *modules(env, "compile", "receipts")])
    return header


def generate(env):
    env.AddMethod(kernels_target, "Kernels")
    env.AddMethod(accessors_target, "Accessors")


def exists(env):
    return True
