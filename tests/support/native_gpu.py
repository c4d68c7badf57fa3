"""Single compute shaders on Mesa's lavapipe through wgpu-native: the adapter without a GPU that has shader-f16.

A process of its own loads both: only its libraries are searched in the unpacked driver's folders, and a driver that
crashes ends that process and one test.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

from tests.support.gpu_page import Bound

from gemma4web.errors import BrowserError
from gemma4web.files import load_json
from gemma4web.pins import load_pins
from gemma4web.toolchain.cache import default_cache
from gemma4web.toolchain.model import SCHEMA, STATUS_NAME
from gemma4web.toolchain.packages import lavapipe_environment
from gemma4web.toolchain.progress import default_progress

_WORKER: Final = Path(__file__).with_name("native_gpu_worker.py")
_OPEN_S: Final = 60.0
_RUN_S: Final = 170.0


def lavapipe() -> dict[str, str]:
    """Variables of lavapipe, which is unpacked at its first use, in the cache that the build set up its tools in."""
    status = Path(__file__).resolve().parents[2] / "build" / STATUS_NAME
    cache = Path(load_json(status, schema=SCHEMA)["options"]["cache"]) if status.is_file() else default_cache()
    return lavapipe_environment(load_pins(), cache, default_progress())


class NativeGpu:
    """As GpuPage: one device of default limits, errors as BrowserError. A process that ended is started anew."""

    def __init__(self, variables: Mapping[str, str], worker: Path = _WORKER) -> None:
        self._variables, self._worker = dict(variables), worker
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self.adapter: dict[str, Any] = self._start()
        except BaseException:
            self.close()
            raise

    def run(self, wgsl: str, bindings: Sequence[Bound], grid: tuple[int, int, int]) -> list[bytes]:
        """Contents of the read_write bindings, in order, after one dispatch."""
        found: list[bytes] = self._ask(("run", wgsl, [(item.kind, item.data) for item in bindings], grid))
        return found

    def compile(self, wgsl: str, kinds: Sequence[str]) -> None:
        self._ask(("compile", wgsl, list(kinds)))

    def close(self) -> None:
        """Ends the process: its input ends, and one that does not care is killed."""
        if self._process is not None:
            self._end(wait_s=10.0)
        self._log.close()

    def _end(self, wait_s: float) -> int:
        """Exit code of the process, which is no more."""
        process, self._process = self._process, None
        assert process is not None and process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()
        return process.wait()

    def _start(self) -> dict[str, Any]:
        self._process = subprocess.Popen(
            [sys.executable, self._worker], env={**os.environ, **self._variables}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log)
        found: dict[str, Any] = self._answer(_OPEN_S)
        return found

    def _ask(self, request: tuple[Any, ...]) -> Any:
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # why it ended is said where its answer is missing
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
        return self._answer(_RUN_S)

    def _answer(self, limit_s: float) -> Any:
        process = self._process
        assert process is not None and process.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            good, found = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise self._ended(limit_s if late.is_set() else None) from None
        finally:
            timer.cancel()
        if not good:
            raise BrowserError(found)
        return found

    def _ended(self, limit_s: float | None) -> BrowserError:
        code = self._end(wait_s=5.0)
        how = (f"gave no answer in {limit_s:g} s" if limit_s else
               f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}")
        size = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, size - 4000))
        said = self._log.read().decode(errors="replace")
        return BrowserError(f"the process that runs shaders {how}; its last words: {said.strip() or 'none'}",
                            advice="a driver that crashes is at fault, or a shader that lets it crash")
