"""Starts headless Chromium as a process of our own and makes sure that it ends with us (P53, P56).

Chromium is started directly, not through Playwright, so that its process id is known; Playwright connects to it. Each run
owns one folder, named after the process that made it, which holds the profile and the log. Whatever mentions that folder
on its command line belongs to the run and is ended with it; what a killed run left behind is ended by the next one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final, TypeVar, cast

from gemma4web.errors import BrowserError

T = TypeVar("T")

START_LIMIT_S: Final = 30.0
END_LIMIT_S: Final = 5.0
_POLL_S: Final = 0.05

# Every flag with its reason. Chromium ignores a flag that it does not know, so a name is checked by its effect: the adapter.
COMMON_FLAGS: Final[dict[str, str]] = {
    "--headless": "no display is needed or looked for",
    "--no-sandbox": "containers and root have no user namespaces for the sandbox; only our own pages are opened",
    "--disable-dev-shm-usage": "containers often have 64 MB of /dev/shm, on which renderers crash",
    "--enable-unsafe-webgpu": "WebGPU on adapters and platforms outside the default list",
    "--enable-dawn-features=allow_unsafe_apis": "timestamp-query in full resolution, which profile variants measure with",
    "--disable-background-timer-throttling": "a page without focus must not be slowed down while it is measured",
    "--disable-backgrounding-occluded-windows": "the same, for a window that nobody sees",
    "--disable-renderer-backgrounding": "the same, for the renderer's priority",
    "--disable-background-networking": "no traffic or work of the browser's own",
    "--disable-component-update": "no downloads of the browser's own",
    "--disable-sync": "no account traffic",
    "--disable-quic": "plain HTTP/1.1 to our own server",
    "--disable-extensions": "nothing but the page runs in the page",
    "--no-first-run": "no welcome page",
    "--no-default-browser-check": "no question about defaults",
    "--password-store=basic": "no key ring of the desktop is opened",
    "--mute-audio": "no sound device is opened",
}
SOFTWARE_FLAGS: Final[dict[str, str]] = {
    "--use-webgpu-adapter=swiftshader": "the software adapter, which every machine has",
}
GPU_FLAGS: Final[dict[str, str]] = {
    "--ignore-gpu-blocklist": "server GPUs and drivers without a display are on the list",
    "--enable-features=Vulkan": "Dawn's backend on Linux",
    "--use-angle=vulkan": "one graphics API in the GPU process",
    "--disable-vulkan-surface": "there is no window to present to",
    "--disable-gpu-compositing": "without it headless Chromium drops the GPU and offers no adapter, or SwiftShader silently",
}
_ENVIRONMENT: Final[dict[str, str]] = {"DBUS_SESSION_BUS_ADDRESS": "disabled:"}


def launch_flags(*, gpu: bool, extra: Sequence[str] = ()) -> list[str]:
    """Flags for a software or a hardware adapter. Of two values for one flag the later wins, so ``extra`` can override."""
    chosen: dict[str, str] = {}
    for flag in (*COMMON_FLAGS, *(GPU_FLAGS if gpu else SOFTWARE_FLAGS), *extra):
        chosen[flag.split("=", 1)[0]] = flag
    return list(chosen.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Chromium:
    """An executable and what must be added to the environment for it to run."""

    executable: Path
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningBrowser:
    """``endpoint`` is the DevTools address; ``folder`` is the run's own; ``kill`` ends the browser from any thread,
    ``alive`` is whether it still runs."""

    endpoint: str
    folder: Path
    log: Path
    pid: int
    kill: Callable[[], None]
    alive: Callable[[], bool]


def runs_folder() -> Path:
    """The folder of this user's runs. Raises BrowserError when somebody else owns it."""
    folder = Path(tempfile.gettempdir()) / f"gemma4web-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid():
        raise BrowserError(f"{folder} does not belong to this user", advice="set TMPDIR to a folder of your own")
    return folder


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is none. With the pid it names one process."""
    try:
        # The command name may hold spaces and parentheses; the fields after its last one are counted from the third.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def processes_of(folder: Path) -> list[int]:
    """This user's processes whose command line mentions ``folder``."""
    needle = os.fsencode(folder) + b"/"
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if entry.stat().st_uid == os.getuid() and needle in (entry / "cmdline").read_bytes() + b"/":
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def end_processes(folder: Path) -> None:
    """Ends every process of a run and waits until they are gone."""
    for how, limit_s in ((signal.SIGTERM, END_LIMIT_S / 2), (signal.SIGKILL, END_LIMIT_S)):
        for pid in processes_of(folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            if not processes_of(folder):
                return
            time.sleep(_POLL_S)
    raise BrowserError(f"processes {processes_of(folder)} of {folder} do not end", advice="end them by hand")


def clean_leftovers() -> list[Path]:
    """Ends and removes what runs left behind whose own process is gone. Returns the folders removed."""
    removed: list[Path] = []
    for folder in sorted(runs_folder().glob("run-*-*-*")):
        _, pid, ticks, _ = folder.name.split("-", 3)
        if not pid.isdigit() or str(start_ticks(int(pid))) == ticks:
            continue
        end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        removed.append(folder)
    return removed


@contextlib.contextmanager
def launched(chromium: Chromium, flags: Sequence[str], *, start_limit_s: float = START_LIMIT_S,
             url: str = "about:blank") -> Iterator[RunningBrowser]:
    """Runs Chromium with a fresh profile for the length of a ``with`` block; afterwards nothing of it is left.

    It opens ``url`` by itself, so that a page which needs no driver needs no DevTools connection either.

    Raises BrowserError when it cannot be started, ends at once, or opens no DevTools port in time.
    """
    clean_leftovers()
    own = os.getpid()
    folder = Path(tempfile.mkdtemp(prefix=f"run-{own}-{start_ticks(own)}-", dir=runs_folder()))
    log = folder / "chromium.log"
    try:
        process = _start(chromium, [*flags, url], folder, log)
        try:
            endpoint = _endpoint(process, folder / "profile", log, start_limit_s)
            yield RunningBrowser(endpoint=endpoint, folder=folder, log=log, pid=process.pid,
                                 kill=lambda: _kill_group(process), alive=lambda: process.poll() is None)
        finally:
            _kill_group(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=END_LIMIT_S)
            end_processes(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(chromium: Chromium, words: Sequence[str], folder: Path, log: Path) -> subprocess.Popen[bytes]:
    argv = [os.fspath(chromium.executable), f"--user-data-dir={folder / 'profile'}", "--remote-debugging-port=0", *words]
    # Its own temporary files lie in the run's folder too: a killed browser does not remove them.
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {**os.environ, **_ENVIRONMENT, **chromium.env, "TMPDIR": os.fspath(temporary)}
    try:
        with log.open("wb") as stream:
            return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL,
                                    stdout=stream, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    except OSError as error:
        raise BrowserError(f"{chromium.executable} cannot be started: {error.strerror}",
                           advice="name a working Chromium with BROWSER=, or set one up: `scons toolchain`") from None


def _endpoint(process: subprocess.Popen[bytes], profile: Path, log: Path, limit_s: float) -> str:
    """Waits for the file in which Chromium says where its DevTools listen: port, then path."""
    deadline = time.monotonic() + limit_s
    port_file = profile / "DevToolsActivePort"
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            port, path = port_file.read_text().splitlines()[:2]
            return f"ws://127.0.0.1:{int(port)}{path}"
        if process.poll() is not None:
            raise BrowserError(f"Chromium ended at once with code {process.returncode}:\n{log_tail(log)}",
                               advice="try another one with BROWSER=, or set it up again: `scons toolchain`")
        time.sleep(_POLL_S)
    raise BrowserError(f"Chromium opened no DevTools port within {limit_s:.0f} s:\n{log_tail(log)}",
                       advice="the machine may be overloaded: try again")


def log_tail(log: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    return ""


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the browser and its helpers, which share its session. The number cannot have been reused: not reaped yet."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """SIGTERM leaves through the same `finally` blocks as SIGINT does, for the length of a ``with`` block."""
    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def bounded(work: Callable[[], T], *, deadline_s: float, what: str, kill: Callable[[], None]) -> T:
    """Does ``work`` in a thread of its own, so that a signal or the deadline is never stuck behind a waiting call.

    Whatever ends the wait, ``kill`` ends the browser, which makes every call inside ``work`` fail at once. Raises
    BrowserError at the deadline, and whatever ``work`` raises.
    """
    done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - handed over to the waiting thread, whatever it is
            done.put((None, error))

    thread = threading.Thread(target=run, name="playwright", daemon=True)
    thread.start()
    try:
        result, error = done.get(timeout=deadline_s)
    except BaseException as error:
        # Futures that the ended browser leaves unanswered are no news; asyncio would print each with a traceback.
        logging.getLogger("asyncio").disabled = True
        if not isinstance(error, queue.Empty):
            raise
        raise BrowserError(f"{what}: no end after {deadline_s:.0f} s; the browser was ended",
                           advice="give it more time with --deadline SECONDS, or ask for fewer tokens") from None
    finally:
        kill()
        thread.join(timeout=END_LIMIT_S)
    if error is not None:
        raise error
    return cast(T, result)
