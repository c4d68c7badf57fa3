"""Model export, the bundle as one target, and its verification."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from hashlib import sha256
from pathlib import Path

from SCons.Script import ARGUMENTS, COMMAND_LINE_TARGETS, AlwaysBuild, Clean, Depends, Dir, Entry, Precious

from gemma4web.variants import VARIANTS
from site_tools.adapter import action, files, literal, modules, paths, python, root

MODEL = "build/model"
FIXTURE = "fixtures/story"
PORT_CACHE = "runtime_cpp/webgpu_port/__pycache__"
"""Where Python puts what it compiles the provider's port file to when emcc loads it."""


def _export(target, source, env):
    from gemma4web.errors import CheckpointError
    from gemma4web.process import run
    top = root(env)
    shutil.rmtree(top / MODEL, ignore_errors=True)  # the exporter replaces nothing; this folder is the build's own
    argv, environment = python(env, "-m", "gemma4web", "export", "--target", f"{FIXTURE}/story-target.gguf",
                               "--assistant", f"{FIXTURE}/story-assistant.gguf", "--out", MODEL)
    run(argv, env=environment, cwd=top, error=CheckpointError, what=f"exporting {FIXTURE}")


def _stage(target, source, env):
    from gemma4web import staging
    top, bundle = root(env), Path(target[0].abspath).parent
    staging.stage(top, top / env["RECEIPT"], top / env["MODEL_FOLDER"], bundle, host=env["HOST"],
                  report=print)
    staging.write_stamp(bundle, Path(target[1].abspath))


def _verify(target, source, env):
    """Looks at the bundle as it is: what is damaged is named, never mended on the way."""
    from gemma4web import verification
    top = root(env)
    bundle, options = top / env["BUNDLE"], [f"{name}={env[name]}" for name in ("MODEL", "HOST") if ARGUMENTS.get(name)]
    remedy = shlex.join(["scons", "bundle", *options, *(["DEBUG=1"] if env["DEBUG"] == "1" else [])])
    try:
        print(verification.verify_or_raise(bundle, advice=f"stage the bundle: `{remedy}`"))
    except verification.VerifyError:
        Path(f"{bundle}.stamp.json").unlink(missing_ok=True)  # so that the remedy is not skipped as up to date
        raise
    if changed := verification.source_changes(top, bundle):
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        print(f"the checkout has changed since: {', '.join(changed[:3])}{more}; `{remedy}` brings the bundle up to date")


def owned(env):
    """What only this build writes, whatever options it was written with: what `-c` removes."""
    top = root(env)
    names = ("closure", "gen", "host-tests", "model", "records", "report", "vendor", ".bundle*", "bundle*", "receipt*.json",
             "shared*", *(f"{name}*" for variant in VARIANTS for name in (variant.decoding, variant.timing)))
    return sorted(literal(path.relative_to(top)) for name in (*(f"build/{name}" for name in names), PORT_CACHE)
                  for path in top.glob(name))


def bundle_target(env, receipt, made):
    """Declares model and bundle; returns [manifest, stamp]. MODEL= names another model, with a bundle of its own."""
    suffix = "" if env["MODE"] == "release" else f"-{env['MODE']}"
    if env["MODEL"]:
        model, name, exported = env["MODEL"], *named_model(env, suffix)
    else:
        model, name, exported = MODEL, f"bundle{suffix}", env.Command(
            [f"{MODEL}/model.json", f"{MODEL}/source.json"], files(env, FIXTURE, "*.gguf"),
            action(_export, f"exporting {FIXTURE} to {MODEL}"))
        Depends(exported, modules(env, "export", "program", "files", "__main__"))
        Clean(exported, Dir(MODEL))
    mine = env.Clone(RECEIPT=paths(receipt)[0], MODEL_FOLDER=model)
    bundle = literal(f"build/{name}")
    staged = mine.Command([f"{bundle}/manifest.json", f"{bundle}.stamp.json"], [*receipt, exported, *made],
                          action(_stage, f"staging {bundle}", ["HOST", "MODEL_FOLDER"]))
    Depends(staged, modules(env, "staging", "verification", "manifest", "receipts"))
    Precious(staged)
    Clean(staged, [Entry(path) for path in owned(env)])
    from gemma4web.staging import is_untouched
    if not is_untouched(root(env) / "build" / name, root(env) / f"build/{name}.stamp.json"):
        AlwaysBuild(staged)
    return staged


def named_model(env, suffix):
    """The bundle's name and the files of MODEL=, which is taken relative to the checkout.

    What lies in exports/ gives its own name. Any other folder, and a name that could be read as one made here, gets a
    hash of the path as well, so that no two models and no debug build share a bundle.
    """
    folder = (root(env) / env["MODEL"]).resolve()
    alone = folder.parent == root(env).resolve() / "exports" and not re.search(r"(^|-)(debug|[0-9a-f]{8})$", folder.name)
    name = folder.name if alone else f"{folder.name}-{sha256(os.fsencode(folder)).hexdigest()[:8]}"
    return f"bundle-{name}{suffix}", [literal(path) for path in sorted(folder.glob("*")) if path.is_file()]


def verify_target(env, staged):
    """Declares verification, which stages nothing; where a bundle is asked for as well, it comes first."""
    asked = {"bundle", "run", "serve", "bench", "test"} & set(COMMAND_LINE_TARGETS)
    folder = Path(paths(staged)[0]).parent.as_posix()
    mine = env.Clone(BUNDLE=folder)
    return AlwaysBuild(mine.Alias("verify", staged if asked else [], action(_verify, f"verifying {literal(folder)}")))


def generate(env):
    env.AddMethod(bundle_target, "Bundle")
    env.AddMethod(verify_target, "Verify")


def exists(env):
    return True
