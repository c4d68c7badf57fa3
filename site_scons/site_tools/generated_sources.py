"""Generated C++: WGSL kernels -> build/gen/kernels.{h,cc} with their lock, schema -> build/gen/program_generated.h."""

from __future__ import annotations

from pathlib import Path

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
    from gemma4web.receipts import write_action
    top = root(env)
    kernels.check_lock(top / KERNELS, top / LOCK)
    kernels.write_generated(kernels.generate(top / KERNELS), header_path=top / HEADER, source_path=top / TEXTS)
    write_action(top, kind="generate", inputs=paths(target[0].all_children()), outputs=[HEADER, TEXTS],
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
    """A kernel's includes; a broken one is reported by the generator, with its line."""
    from gemma4web.errors import KernelError
    from gemma4web.kernels import dependencies
    try:
        return [env.File(literal(found.resolve().relative_to(root(env)))) for found in dependencies(Path(node.abspath))]
    except (KernelError, OSError):
        return []


def kernels_target(env):
    """Declares kernels.h and kernels.cc. `kernels-lock` on the command line makes the committed lock a target that comes first."""
    sources = [path for path in files(env, KERNELS, "*.wgsl") if "/include/" not in path]
    generators = modules(env, "kernels", "files", "receipts")
    if "kernels-lock" in COMMAND_LINE_TARGETS:
        lock = env.Command(LOCK, sources, action(_lock, f"locking {LOCK}"), source_scanner=Scanner(_includes))
        AlwaysBuild(Precious(NoClean(lock)))
        Depends(lock, generators)
        env.Alias("kernels-lock", lock)
    made = env.Command([HEADER, TEXTS, f"{HEADER}.json"], sources, action(_render, f"generating {HEADER}"),
                       source_scanner=Scanner(_includes))
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
