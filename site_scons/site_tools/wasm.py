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
        root=root(env), group=env["GROUP"], source=paths(source)[0], output=paths(target)[0],
        flags=tuple(env["OBJECT_FLAGS"]), defines=tuple(env["OBJECT_DEFINES"]),
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


def object_target(env, variant, source, mentions, dependencies):
    """Declares one translation unit, once for all variants that define the macros it mentions alike."""
    mode, macros, extra = steps.Mode(env["MODE"]), mentions.of(source), extra_defines(env, variant)
    group, given = steps.unit_group(variant, macros, extra), steps.unit_defines(variant, mode, macros, extra)
    inner = source.removeprefix(f"{SOURCES}/").removeprefix("build/").removesuffix(".cc")
    target = f"build/{group}{suffix(env)}/obj/{inner}.o"
    if target not in env["UNITS"]:
        env["UNITS"][target] = env.WasmObject(target, source, GROUP=group, OBJECT_DEFINES=given,
                                              OBJECT_FLAGS=steps.compile_flags(given, mode))
        Depends(env["UNITS"][target], dependencies)
    return env["UNITS"][target]


def suffix(env):
    return "" if env["MODE"] == steps.Mode.RELEASE else f"-{env['MODE']}"


def modules_target(env, tools):
    """Declares every variant's objects and module; returns name -> [js, wasm, log] and the logs of all actions."""
    sources, mentions = [*files(env, SOURCES, "*.cc"), TEXTS], steps.Mentions(root(env))
    made, objects, env["UNITS"] = {}, {}, {}
    compiler, linker = [tools[0], *modules(env, "compile")], [EXPORTS, *modules(env, "link", "closure", "receipts")]
    for variant in VARIANTS:
        folder = f"build/{variant.name}{suffix(env)}"
        objects[variant] = [object_target(env, variant, source, mentions, compiler)[0] for source in sources]
        given = steps.defines(variant, steps.Mode(env["MODE"]), extra_defines(env, variant))
        made[variant.name] = env.WasmModule(
            [f"{folder}/{variant.stem}.js", f"{folder}/{variant.stem}.wasm"],
            [*objects[variant], *files(env, SOURCES, "*.js")], VARIANT=variant, VARIANT_DEFINES=given)
        Depends(made[variant.name], [*compiler, *linker])
    for module in made.values():
        Requires(module, sorted({unit for variant in requested() for unit in objects[variant]}, key=str))
    logs = [unit[1] for unit in env["UNITS"].values()] + [module[2] for module in made.values()]
    return made, logs


def generate(env):
    env.Replace(CPPPATH=[f"#{folder}" for folder in steps.INCLUDE_FOLDERS])
    env.Append(BUILDERS={
        "WasmObject": Builder(action=action(_compile, "compiling $SOURCE for $GROUP",
                                            ["OBJECT_FLAGS", "OBJECT_DEFINES"]),
                              emitter=_with_log, source_scanner=CScanner()),
        "WasmModule": Builder(action=action(_link, "linking $TARGET", ["MODE", "VARIANT_DEFINES"]),
                              emitter=_with_log),
    })
    env.AddMethod(modules_target, "Modules")


def exists(env):
    return True
