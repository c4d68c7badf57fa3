"""Starting and ending Chromium (P53, P56), with a script in its place: nothing is left, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from gemma4web import chromium
from gemma4web.chromium import (
    COMMON_FLAGS,
    GPU_FLAGS,
    SOFTWARE_FLAGS,
    Chromium,
    bounded,
    clean_leftovers,
    launch_flags,
    launched,
    processes_of,
    runs_folder,
    sigterm_as_exit,
    start_ticks,
)
from gemma4web.errors import BrowserError

# Opens no port, but says so as Chromium would, then lives on with a child, deaf to SIGTERM.
LIVES = """\
#!/bin/sh
for word in "$@"; do case "$word" in --user-data-dir=*) profile="${word#--user-data-dir=}";; esac; done
mkdir -p "$profile"
trap '' TERM
sh -c 'trap "" TERM; while :; do sleep 0.2; done' helper --database="$profile/crash" &
printf '12345\\n/devtools/browser/x\\n' > "$profile/DevToolsActivePort"
while :; do sleep 0.2; done
"""


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


@pytest.fixture
def lives(tmp_path: Path) -> Chromium:
    return script(tmp_path, LIVES)


def script(folder: Path, text: str) -> Chromium:
    path = folder / "a browser"
    path.write_text(text)
    path.chmod(0o755)
    return Chromium(executable=path)


def test_every_flag_has_a_reason_and_the_sets_do_not_mix() -> None:
    for flags in (COMMON_FLAGS, SOFTWARE_FLAGS, GPU_FLAGS):
        assert all(flag.startswith("--") and reason for flag, reason in flags.items())
    software, gpu = launch_flags(gpu=False), launch_flags(gpu=True)
    assert "--use-webgpu-adapter=swiftshader" in software
    assert not any("swiftshader" in flag for flag in gpu)
    # Known from measurements: without this one there is silently no GPU adapter in headless mode.
    assert "--disable-gpu-compositing" in gpu
    assert "--disable-gpu-compositing" not in software


def test_a_later_value_of_a_flag_replaces_the_earlier() -> None:
    flags = launch_flags(gpu=True, extra=["--enable-dawn-features=a,b", "--extra"])
    assert [flag for flag in flags if flag.startswith("--enable-dawn-features")] == ["--enable-dawn-features=a,b"]
    assert "--extra" in flags


def test_nothing_is_left_after_a_run(lives: Chromium) -> None:
    with launched(lives, []) as browser:
        assert browser.endpoint == "ws://127.0.0.1:12345/devtools/browser/x"
        assert len(processes_of(browser.folder)) >= 2
        assert browser.pid in processes_of(browser.folder)
    assert processes_of(browser.folder) == []
    assert list(runs_folder().iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_nothing_is_left_after_an_exception(lives: Chromium, error: type[BaseException]) -> None:
    with pytest.raises(error), launched(lives, []) as browser:
        raise error
    assert processes_of(browser.folder) == []
    assert not browser.folder.exists()


def test_a_browser_that_ends_at_once_shows_its_own_words(tmp_path: Path) -> None:
    broken = script(tmp_path, "#!/bin/sh\necho libnss3.so: cannot open shared object file >&2\nexit 127\n")
    with pytest.raises(BrowserError, match=r"(?s)ended at once with code 127.*libnss3\.so.*BROWSER="), launched(broken, []):
        pytest.fail("it started")
    assert list(runs_folder().iterdir()) == []


def test_a_browser_that_never_listens_is_given_up(tmp_path: Path) -> None:
    deaf = script(tmp_path, "#!/bin/sh\nwhile :; do sleep 0.1; done\n")
    with pytest.raises(BrowserError, match="no DevTools port within 1 s"), launched(deaf, [], start_limit_s=1):
        pytest.fail("it started")
    assert list(runs_folder().iterdir()) == []


def test_a_missing_browser_is_named(tmp_path: Path) -> None:
    missing = Chromium(executable=tmp_path / "no browser")
    with pytest.raises(BrowserError, match=r"(?s)no browser cannot be started.*BROWSER="), launched(missing, []):
        pytest.fail("it started")


RUNNER = """
    import sys, tempfile, time
    from pathlib import Path
    from gemma4web.chromium import Chromium, bounded, launched, sigterm_as_exit
    tempfile.tempdir = sys.argv[2]
    with sigterm_as_exit(), launched(Chromium(executable=Path(sys.argv[1])), []) as browser:
        print(browser.folder, flush=True)
        bounded(lambda: time.sleep(60), deadline_s=float(sys.argv[3]), what="the run", kill=browser.kill)
"""


def start_runner(lives: Chromium, folder: Path, deadline_s: float = 60) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(RUNNER), str(lives.executable), str(folder), str(deadline_s)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    run = Path(process.stdout.readline().strip())
    assert run.name.startswith("run-")
    return process, run


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_a_signal_ends_the_browser_before_the_runner(lives: Chromium, tmp_path: Path, number: int, code: int) -> None:
    """P56: SIGINT and SIGTERM in the middle of a wait."""
    process, run = start_runner(lives, tmp_path)
    process.send_signal(number)
    process.communicate(timeout=20)
    assert process.returncode == code
    assert processes_of(run) == []
    assert not run.exists()


def test_a_deadline_ends_the_browser(lives: Chromium, tmp_path: Path) -> None:
    process, run = start_runner(lives, tmp_path, deadline_s=0.5)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "the run: no end after 0 s" in errors or "the run: no end after 1 s" in errors
    assert processes_of(run) == []
    assert not run.exists()


def test_what_a_killed_runner_left_is_cleaned_by_the_next(lives: Chromium, tmp_path: Path) -> None:
    """P56: SIGKILL leaves a browser; the next start ends it, and only it."""
    process, run = start_runner(lives, tmp_path)
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        process.kill()
        process.communicate(timeout=20)
        assert processes_of(run) != []
        assert clean_leftovers() == [run]
        assert processes_of(run) == []
        assert not run.exists()
        assert bystander.poll() is None
        assert clean_leftovers() == []
    finally:
        bystander.kill()
        bystander.wait()


def test_a_run_whose_owner_lives_is_left_alone(lives: Chromium) -> None:
    with launched(lives, []) as browser:
        assert clean_leftovers() == []
        assert browser.pid in processes_of(browser.folder)


def test_a_reused_process_number_is_not_the_owner(tmp_path: Path) -> None:
    """The number alone does not name a process: this one lives, but started at another time."""
    leftover = runs_folder() / f"run-{os.getpid()}-{(start_ticks(os.getpid()) or 0) - 1}-x"
    leftover.mkdir()
    assert clean_leftovers() == [leftover]


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"gemma4web-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BrowserError, match="does not belong to this user"):
        runs_folder()


def test_bounded_hands_over_results_and_errors() -> None:
    killed: list[int] = []
    assert bounded(lambda: 7, deadline_s=5, what="x", kill=lambda: killed.append(1)) == 7
    with pytest.raises(ZeroDivisionError):
        bounded(lambda: 1 // 0, deadline_s=5, what="x", kill=lambda: killed.append(2))
    assert killed == [1, 2]


def test_bounded_kills_at_the_deadline_and_waits_for_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    ended = threading.Event()

    def work() -> None:
        stop.wait(20)
        ended.set()

    begin = time.monotonic()
    with pytest.raises(BrowserError, match=r"(?s)work: no end after 0 s.*--deadline"):
        bounded(work, deadline_s=0.2, what="work", kill=stop.set)
    assert ended.is_set()
    assert time.monotonic() - begin < 5


def test_sigterm_handler_is_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with sigterm_as_exit():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_processes_that_cannot_be_ended_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chromium, "END_LIMIT_S", 0.2)
    monkeypatch.setattr(chromium, "processes_of", lambda folder: [2**22 + 1])
    with pytest.raises(BrowserError, match="do not end"):
        chromium.end_processes(tmp_path)
