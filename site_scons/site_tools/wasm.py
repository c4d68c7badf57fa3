"""Objects and modules: one WASM module a variant, through gemma4web.compile and gemma4web.link."""

from __future__ import annotations

from SCons.Scanner.C import CScanner
from SCons.Script import COMMAND_LINE_TARGETS, Builder, Depends, Requires

from gemma4web import compile as steps
from gemma4web import link
from gemma4web.variants import VARIANTS
from site_tools.adapter import action, files, modules, paths, root, toolchain
from site_tools.generated_sources import TEXTS

SOURCES = "runtime_cpp/src"
EXPORTS = "runtime_cpp/exports.txt"


def _compile(target, source, env):
    tools, identity = toolchain(env)
    steps.compile_object(steps.ObjectJob(
        root=root(env), variant=env["VARIANT"].name, source=paths(source)[0], output=paths(target)[0],
        flags=tuple(env["OBJECT_FLAGS"]), defines=tuple(env["VARIANT_DEFINES"]),
        known_inputs=frozenset(paths(target[0].all_children()))), tools, identity)


def _link(target, source, env):
    tools, identity = toolchain(env)
    top = root(env)
    exports = link.read_exports((top / EXPORTS).read_text(encoding="utf-8"), EXPORTS)
    inputs = paths(source)
    link.link_module(link.LinkJob(
        root=top, variant=env["VARIANT"], objects=tuple(path for path in inputs if path.endswith(".o")),
        libraries=tuple(path for path in inputs if path.endswith(".js")), exports=EXPORTS, output=paths(target)[0],
        flags=link.link_flags(env["VARIANT"], steps.Mode(env["MODE"]), exports),
        defines=tuple(env["VARIANT_DEFINES"])), tools, identity)


def _with_log(target, source, env):
    return [*target, f"{target[0]}.json"], source


def requested():
    """The variants to compile before anything is linked: those that are asked for by name, when only such are."""
    named = {target: [variant for variant in VARIANTS if target in (variant.decoding, variant.name)]
             for target in COMMAND_LINE_TARGETS}
    return {variant for group in named.values() for variant in group} if all(named.values()) and named else VARIANTS


def extra_defines(env, variant):
    """What DEFINE=<variant>:NAME=VALUE adds to one variant."""
    entries = [entry.strip() for entry in env["DEFINE"].split(",") if entry.strip()]
    return tuple(entry.partition(":")[2] for entry in entries if entry.partition(":")[0] == variant.name)


def modules_target(env, tools):
    """Declares every variant's objects and module; returns name -> [js, wasm, log] and the logs of all actions."""
    suffix = "" if env["MODE"] == steps.Mode.RELEASE else f"-{env['MODE']}"
    sources = [*files(env, SOURCES, "*.cc"), TEXTS]
    made, logs, objects = {}, [], {}
    for variant in VARIANTS:
        folder = f"build/{variant.name}{suffix}"
        mode, extra = steps.Mode(env["MODE"]), extra_defines(env, variant)
        mine = env.Clone(VARIANT=variant, VARIANT_DEFINES=steps.defines(variant, mode, extra),
                         OBJECT_FLAGS=steps.compile_flags(variant, mode, extra))
        objects[variant] = []
        for source in sources:
            inner = source.removeprefix(f"{SOURCES}/").removeprefix("build/").removesuffix(".cc")
            unit = mine.WasmObject(f"{folder}/obj/{inner}.o", source)
            Depends(unit, [tools[0], *modules(env, "compile")])
            objects[variant].append(unit[0])
            logs.append(unit[1])
        made[variant.name] = mine.WasmModule(
            [f"{folder}/{variant.stem}.js", f"{folder}/{variant.stem}.wasm"],
            [*objects[variant], *files(env, SOURCES, "*.js")])
        Depends(made[variant.name], [tools[0], EXPORTS, *modules(env, "compile", "link", "receipts")])
        logs.append(made[variant.name][2])
    for module in made.values():
        Requires(module, [unit for variant in requested() for unit in objects[variant]])
    return made, logs


def generate(env):
    env.Replace(CPPPATH=[f"#{folder}" for folder in steps.INCLUDE_FOLDERS])
    env.Append(BUILDERS={
        "WasmObject": Builder(action=action(_compile, "compiling $SOURCE for $VARIANT.name",
                                            ["OBJECT_FLAGS", "VARIANT_DEFINES"]),
                              emitter=_with_log, source_scanner=CScanner()),
        "WasmModule": Builder(action=action(_link, "linking $TARGET", ["MODE", "VARIANT_DEFINES"]),
                              emitter=_with_log),
    })
    env.AddMethod(modules_target, "Modules")


def exists(env):
    return True
