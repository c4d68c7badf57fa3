"""A bundle whose runtime is a stand-in (fake_runtime.js): the real page, worker and manifest, no GPU work.

For what a real module does not do on demand: losing its device, trapping, hanging, moving its memory at every call.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from gemma4web.files import dump_json, sha256_bytes, sha256_file
from gemma4web.variants import VARIANTS, Decoding

REPOSITORY: Final = Path(__file__).resolve().parents[2]
WEB: Final = REPOSITORY / "web"
EMPTY_WASM: Final = b"\0asm\x01\0\0\0"
VOCAB: Final = 1024
CONTEXT: Final = 200


def copy_page(bundle: Path, npm_modules: Path) -> None:
    """The page's own files and the modules that it vendors, as staging copies them."""
    for source in sorted(WEB.iterdir()):
        if source.is_file() and source.suffix in (".js", ".html", ".css"):
            shutil.copyfile(source, bundle / source.name)
    for entry in json.loads((WEB / "vendor.json").read_bytes())["files"]:
        target = bundle / entry["as"]
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(npm_modules / entry["package"] / entry["file"], target)


def make_fake_bundle(bundle: Path, npm_modules: Path, *, tokenizer: Path | None = None, shard_bytes: int = 9_000_001) -> Path:
    """Writes a complete bundle to ``bundle`` and returns it. Two shards, the second of ``shard_bytes``."""
    (bundle / "runtime").mkdir(parents=True)
    (bundle / "model").mkdir()
    copy_page(bundle, npm_modules)
    _write_runtime(bundle)
    model = _write_model(bundle, tokenizer, shard_bytes)
    (bundle / "receipt.json").write_text("{}\n")
    write_manifest(bundle, model)
    return bundle


def _write_runtime(bundle: Path) -> None:
    template = (Path(__file__).parent / "fake_runtime.js").read_text()
    for variant in VARIANTS:
        text = template
        for key, value in {"FACTORY": variant.factory, "STEM": variant.stem, "DECODING": variant.decoding,
                           "TIMING": variant.timing}.items():
            text = text.replace(f"@{key}@", value)
        (bundle / "runtime" / f"{variant.stem}.js").write_text(text)
        # Distinct wasm files: a custom section that holds the variant's name.
        name = variant.stem.encode()
        (bundle / "runtime" / f"{variant.stem}.wasm").write_bytes(EMPTY_WASM + bytes([0, len(name) + 1, len(name)]) + name)


def _write_model(bundle: Path, tokenizer: Path | None, shard_bytes: int) -> dict[str, Any]:
    folder = bundle / "model"
    shards = {"target-00001-of-00001.safetensors": 100_003, "assistant-00001-of-00001.safetensors": shard_bytes}
    for index, (name, size) in enumerate(shards.items()):
        (folder / name).write_bytes(bytes((index + 1,)) * size)
    methods: dict[str, Any] = {}
    for decoding, method, used in ((Decoding.PLAIN, "text_decoder", list(shards)[:1]), (Decoding.MTP, "k2_round", list(shards))):
        program = {"method": method, "decoding": decoding, "shards": [
            {"file": name, "bytes": shards[name], "sha256": sha256_file(folder / name)} for name in used]}
        (folder / f"{method}.g4p").write_text(json.dumps(program))
        methods[method] = {"program": f"{method}.g4p", "shards": used}
    if tokenizer is not None:
        shutil.copyfile(tokenizer, folder / "tokenizer.json")
    return {
        "schema": 1, "name": "stand-in", "weights": "f32", "vocab": 4096 if tokenizer else VOCAB, "context": CONTEXT,
        "prefill_rows": 64, "bos_id": 2, "stop_ids": [1, 106], "tokenizer": "tokenizer.json" if tokenizer else None,
        "chat_template": None, "architecture": {"rms_norm_eps": 1e-6}, "methods": methods, "path": "model",
    }


def write_manifest(bundle: Path, model: dict[str, Any]) -> None:
    """Lists every file of the folder, last of all."""
    def entry(path: Path) -> dict[str, Any]:
        return {"bytes": path.stat().st_size, "sha256": sha256_file(path)}

    files = {path.relative_to(bundle).as_posix(): entry(path)
             for path in sorted(bundle.rglob("*")) if path.is_file() and path.name != "manifest.json"}
    variants = {variant.name: {
        "factory": variant.factory, "stem": variant.stem,
        "js": {"path": f"runtime/{variant.stem}.js", **files[f"runtime/{variant.stem}.js"]},
        "wasm": {"path": f"runtime/{variant.stem}.wasm", **files[f"runtime/{variant.stem}.wasm"]},
        "recipe": {"defines": list(variant.defines), "flags": []},
    } for variant in VARIANTS}
    manifest = {
        "schema": 1, "provenance": "verified", "source_receipt": {"path": "receipt.json", "sha256": files["receipt.json"]["sha256"]},
        "variants": variants, "model": model, "page": {"entry": "index.html", "runner": "run.html"},
        "provider": {"kind": "webgpu_port", "sha256": sha256_bytes(b"stand-in")}, "toolchain": {}, "files": files,
    }
    (bundle / "manifest.json").write_text(dump_json(manifest))
