"""A small checkout with action logs, a receipt and an exported model, laid out without any tool; and a manifest."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gemma4web import receipts, staging
from gemma4web.files import write_atomic
from gemma4web.manifest import Manifest, encode
from gemma4web.variants import VARIANTS

PROVIDER = {"kind": "webgpu_port", "sha256": "ab" * 32}
IDENTITY: dict[str, Any] = {"emcc": "6.0.5", "provider": PROVIDER}


def identity(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": sha256(data).hexdigest()}


def manifest_document() -> dict[str, Any]:
    """A manifest that is valid as it stands; tests break one thing in it."""
    files = {path: identity(path.encode()) for path in (
        "index.html", "run.html", "receipt.json", "model/model.json", "model/source.json",
        *(f"runtime/{variant.stem}.{suffix}" for variant in VARIANTS for suffix in ("js", "wasm")))}
    variants = {
        variant.name: {
            "factory": variant.factory, "stem": variant.stem,
            "recipe": {"defines": list(variant.defines), "flags": ["-Oz"]},
            **{suffix: {"path": path, **files[path]} for suffix in ("js", "wasm")
               for path in [f"runtime/{variant.stem}.{suffix}"]},
        } for variant in VARIANTS}
    return {
        "schema": 1, "provenance": "verified", "files": files, "variants": variants, "provider": dict(PROVIDER),
        "source_receipt": {"path": "receipt.json", "sha256": files["receipt.json"]["sha256"]},
        "model": {"path": "model", "name": "tiny"}, "page": {"entry": "index.html", "runner": "run.html"},
        "toolchain": dict(IDENTITY),
    }


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """``root`` holds sources, build outputs and their logs; ``model`` is an exported folder beside them."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "build/model"

    @property
    def receipt(self) -> Path:
        return self.root / "build/receipt.json"

    @property
    def bundle(self) -> Path:
        return self.root / "build/bundle"

    def logs(self) -> list[Path]:
        return sorted(path for path in (self.root / "build").rglob("*.json")
                      if path.name.endswith((".h.json", ".o.json", ".js.json")))

    def write_receipt(self) -> receipts.Receipt:
        receipt = receipts.assemble(self.root, logs=self.logs(), toolchain=IDENTITY,
                                    assets=receipts.page_assets(self.root))
        write_atomic(self.receipt, encode(receipt))
        return receipt


def put(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text, encoding="utf-8")


def make_checkout(root: Path) -> Checkout:
    """Two actions a variant over one source and one generated header, a page of three files, and a model."""
    tools = receipts.identity_sha256(IDENTITY)
    for name, text in {
        "runtime_cpp/src/a.cc": "int a;", "runtime_cpp/exports.txt": "g4_a", "runtime_cpp/kernels/k.wgsl": "fn main() {}",
        "build/gen/kernels.h": "// kernels", "web/index.html": "<p>page", "web/run.html": "<p>run", "web/app.js": "1;",
        "web/tests/t.js": "2;", "web/templates/report.html.j2": "3", "web/tsconfig.json": "{}", "web/types.d.ts": "4",
    }.items():
        put(root, name, text)
    receipts.write_action(root, kind="generate", inputs=["runtime_cpp/kernels/k.wgsl"], outputs=["build/gen/kernels.h"],
                          log="build/gen/kernels.h.json")
    for variant in VARIANTS:
        folder = f"build/{variant.name}"
        for name in (f"{folder}/a.o", f"{folder}/{variant.stem}.js", f"{folder}/{variant.stem}.wasm"):
            put(root, name, f"bytes of {name}")
        receipts.write_action(
            root, kind="compile", variant=variant.name, defines=variant.defines, flags=["-Oz"], toolchain=tools,
            inputs=["runtime_cpp/src/a.cc", "build/gen/kernels.h"], outputs=[f"{folder}/a.o"], log=f"{folder}/a.o.json")
        receipts.write_action(
            root, kind="link", variant=variant.name, defines=variant.defines, flags=["-Oz", "--no-entry"],
            toolchain=tools, inputs=[f"{folder}/a.o", "runtime_cpp/exports.txt"],
            outputs=[f"{folder}/{variant.stem}.js", f"{folder}/{variant.stem}.wasm"],
            log=f"{folder}/{variant.stem}.js.json")
    make_model(root / "build/model")
    checkout = Checkout(root=root)
    checkout.write_receipt()
    return checkout


def copy_checkout(checkout: Checkout, root: Path) -> Checkout:
    """The same checkout in another folder; nothing in it knows where it lies."""
    shutil.copytree(checkout.root, root)
    return Checkout(root=root)


def stage(checkout: Checkout, **options: Any) -> Manifest:
    return staging.stage(checkout.root, checkout.receipt, checkout.model, checkout.bundle, **options)


def make_model(folder: Path) -> None:
    """Writes a model folder whose programs are JSON, for `read_program` below."""
    inputs = {"target": {"name": "tiny", "repo": "tiny/tiny", "revision": "0" * 40, "files": {}}}
    files = {"source.json": json.dumps({"schema": 1, "inputs": inputs}).encode(), "target-00001-of-00001.safetensors": b"target",
             "assistant-00001-of-00001.safetensors": b"assistant"}
    methods: dict[str, Any] = {}
    for method, shards in (("text_decoder", ["target-00001-of-00001.safetensors"]),
                           ("k2_round", ["assistant-00001-of-00001.safetensors", "target-00001-of-00001.safetensors"])):
        files[f"{method}.g4p"] = json.dumps({
            "method": method, "source_sha256": identity(files["source.json"])["sha256"],
            "shards": [{"file": name, **identity(files[name])} for name in shards]}).encode()
        methods[method] = {"program": f"{method}.g4p", "shards": shards}
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    write_model_receipt(folder, {"schema": 1, "name": "tiny", "methods": methods, "acquisition": inputs,
                                 "files": {name: identity(data) for name, data in files.items()},
                                 "source_sha256": identity(files["source.json"])["sha256"]})


def write_model_receipt(folder: Path, document: dict[str, Any]) -> None:
    (folder / "model.json").write_text(json.dumps(document, sort_keys=True, indent=2) + "\n", encoding="utf-8")


def read_program(path: Path) -> SimpleNamespace:
    """Stands in for `gemma4web.program.codec.read` on the programs of `make_model`."""
    document = json.loads(path.read_bytes())
    return SimpleNamespace(graph=SimpleNamespace(method=document["method"]), source_sha256=document["source_sha256"],
                           shards=[SimpleNamespace(**shard) for shard in document["shards"]])
