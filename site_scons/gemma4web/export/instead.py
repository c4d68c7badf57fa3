"""What people name where a checkpoint is wanted, and what they should have named."""

from __future__ import annotations

from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Final

WANTED: Final = "name a checkpoint's folder with config.json and safetensors, or a GGUF file"
_LISTED: Final = 3
_LOOKED_AT: Final = 1000
"""Names of a folder; no checkpoint has as many."""
_UNFINISHED: Final = "its download was not finished: fetch it again"
_RESAVED: Final = "load it with transformers and save it with save_pretrained, which writes safetensors"
_FOLDERS: Final = (
    ("adapter_config.json", "it holds a LoRA adapter: merge it into its model with peft's merge_and_unload, save, and name that"),
    ("*.incomplete", _UNFINISHED), ("*.part", _UNFINISHED), ("*.crdownload", _UNFINISHED), ("*.aria2", _UNFINISHED),
    ("*.gguf", "name a GGUF file of it: {names}"),
    ("model-*-of-*.safetensors", "fetch its model.safetensors.index.json too"),
    ("*.safetensors", "name its weights model.safetensors, if {names} is the whole model"),
    ("*.bin", _RESAVED), ("*.pt", _RESAVED), ("*.pth", _RESAVED),
    ("snapshots", "it is a hub's cache: name the folder of a commit in its snapshots"),
)
"""What a folder without model.safetensors may hold, the telling first; ``names`` are those that fit."""
_WEB_PAGE: Final = "it is a web page, which a download was answered with: fetch the file again"
_FILES: Final = (
    (b"version https://git-lfs", "it is a pointer of Git LFS: fetch the file itself with `git lfs pull`"),
    (b"<!doctype", _WEB_PAGE), (b"<html", _WEB_PAGE), (b"<?xml", _WEB_PAGE),
)
FILE_START_BYTES: Final = max(len(start) for start, _ in _FILES)


def of_folder(folder: Path) -> str:
    """The remedy for a folder that holds no weights under the names that checkpoints have."""
    names = sorted(path.name for path in islice(folder.iterdir(), _LOOKED_AT))
    for pattern, advice in _FOLDERS:
        if found := [name for name in names if fnmatch(name, pattern) and name.isprintable()]:
            return advice.format(names=", ".join(found[:_LISTED]) + (" ..." if len(found) > _LISTED else ""))
    if found := [name for name in names if name.isprintable() and (folder / name / "config.json").is_file()]:
        return f"name a folder in it: {', '.join(found[:_LISTED])}"
    return WANTED


def of_start(start: bytes) -> str | None:
    """The remedy for a file that begins with ``start``; None when it tells nothing."""
    return next((advice for known, advice in _FILES if start.lower().startswith(known)), None)


def of_file(path: Path, start: bytes) -> str:
    """The remedy for a file that begins with ``start`` and is no GGUF file."""
    if found := of_start(start):
        return found
    return f"name its folder, {path.parent}, if that is a checkpoint's" if path.suffix in (".safetensors", ".json", ".bin") else WANTED
