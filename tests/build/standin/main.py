"""Stands in for `python -m gemma4web` in the tiny project: `export` works, any other command says how it was called."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from gemma4web.export import export_model

words = sys.argv[2:]
if sys.argv[1] != "export":
    print("stand-in", *sys.argv[1:], flush=True)
    try:
        if sys.argv[1] == "serve" and "8421" in words:
            time.sleep(600)
    except KeyboardInterrupt:
        sys.exit(0)
    sys.exit(int(Path("exit-code.txt").read_text()) if Path("exit-code.txt").is_file() else 0)
options = dict(zip(words[::2], words[1::2], strict=True))
export_model(Path(options["--target"]), Path(options["--assistant"]), Path(options["--out"]))
