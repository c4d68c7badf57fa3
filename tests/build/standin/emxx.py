"""Stands in for em++: an object holds the hashes of everything that went in, a module the hashes of its objects.

Every call is logged with the file it makes. A source that holds `#error` fails as a compiler does, and
one with `#wait` takes until Ctrl-C.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
import time
from pathlib import Path


def log(line: str) -> None:
    with open(os.environ["STANDIN_LOG"], "a", encoding="utf-8") as stream:
        stream.write(line + "\n")


def after(words: list[str], flag: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words[:-1]) if word == flag]


def includes(source: Path, folders: list[str], found: list[Path]) -> None:
    if source in found:
        return
    text = source.read_text(encoding="utf-8")
    if "#error" in text:
        print(f"{source}:1:2: error: the source says #error", file=sys.stderr)
        sys.exit(1)
    if "#wait" in text:
        try:
            log("waiting")
            time.sleep(600)
        except KeyboardInterrupt:
            sys.exit(1)  # as emcc does
    found.append(source)
    for name in re.findall(r'^\s*#include\s+(?:"([^"]+)"|MACRO_(\w+))', text, flags=re.MULTILINE):
        wanted = name[0] or f"base/{name[1]}.h"
        for folder in (source.parent, *folders):
            if (Path(folder) / wanted).is_file():
                includes(Path(folder) / wanted, folders, found)
                break


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def portable(words: list[str]) -> bytes:
    """What of the command line changes the output: not the folders that prefix maps and the port name."""
    return " ".join(word for word in words if not word.startswith(("-ffile-prefix-map", "--use-port", "-isystem"))
                    and "/cache" not in word).encode()


def compile_one(words: list[str]) -> None:
    source, output = after(words, "-c")[0], after(words, "-o")[0]
    log(f"compile {output}")
    folders = [word[2:] for word in words if word.startswith("-I")]
    found: list[Path] = []
    includes(Path(source), folders, found)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(digest(portable(words), *(path.read_bytes() for path in found)), encoding="utf-8")
    escaped = " \\\n  ".join(str(path).replace(" ", "\\ ") for path in found)
    Path(after(words, "-MF")[0]).write_text(f"{output}: {escaped}\n", encoding="utf-8")


def link(words: list[str]) -> None:
    output = Path(after(words, "-o")[0])
    log(f"link {output}")
    (response,) = [word[1:] for word in words if word.startswith("@")]
    objects = shlex.split(Path(response).read_text(encoding="utf-8"))
    (factory,) = [word.partition("=")[2] for word in words if word.startswith("-sEXPORT_NAME=")]
    libraries = [Path(path).read_bytes() for path in after(words, "--js-library")]
    content = digest(portable(words), *(Path(path).read_bytes() for path in objects), *libraries)
    output.write_text(f"// {content}\nfetch('{output.stem}.wasm');\nexport default {factory};\n", encoding="utf-8")
    output.with_suffix(".wasm").write_text(content, encoding="utf-8")


if "-c" in sys.argv:
    compile_one(sys.argv[1:])
else:
    link(sys.argv[1:])
