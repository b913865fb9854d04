"""Whatever ends pytest, no server is left: real processes, real signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SHELL_THAT_STAYS = ("/bin/sh", "-c", '"$@" & wait', "sh")


def gone(pids: list[int], within_s: float = 30.0) -> list[int]:
    """The pids that are still alive at the deadline; a zombie is gone."""
    deadline = time.monotonic() + within_s
    while True:
        left = [pid for pid in pids if alive(pid)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


@contextmanager
def owner(
    tmp_path: Path, args: list[str], wrapper: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], dict[str, int]]]:
    order = {
        "binary": str(HERE / "fake_server.py"),
        "args": args,
        "model": str(tmp_path / "model.gguf"),
        "wrapper": [*wrapper, sys.executable],
        "log": str(tmp_path / "server-1.log"),
    }
    process = subprocess.Popen(
        [sys.executable, str(HERE / "owner.py"), json.dumps(order)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    pids: dict[str, int] = {}
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "the owner ended before its server was ready: " + (tmp_path / "server-1.log").read_text()
        pids = json.loads(line)
        yield process, pids
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        for pid in (pids.get("server", 0), pids.get("leader", 0)):
            if pid and alive(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_owner_leaves_no_server(tmp_path: Path, number: signal.Signals) -> None:
    with owner(tmp_path, []) as (process, pids):
        assert alive(pids["server"])
        os.kill(process.pid, number)
        process.wait(timeout=30)
        assert gone([pids["server"], pids["reaper"]]) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=lambda n: n.name)
def test_a_signal_to_the_owner_leaves_nothing_behind_a_shell(tmp_path: Path, number: signal.Signals) -> None:
    # The parent-death signal ends the shell only; the server, deaf to TERM, and its own child are the reaper's.
    grandchild_file = tmp_path / "grandchild"
    args = ["--fake-ignore-term", "--fake-grandchild", str(grandchild_file)]
    with owner(tmp_path, args, SHELL_THAT_STAYS) as (process, pids):
        assert pids["server"] != pids["leader"]
        grandchild = int(grandchild_file.read_text())
        assert alive(grandchild)
        os.kill(process.pid, number)
        process.wait(timeout=30)
        assert gone([pids["leader"], pids["server"], grandchild, pids["reaper"]]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
def test_without_the_reaper_the_parent_death_signal_is_enough(tmp_path: Path) -> None:
    with owner(tmp_path, ["--fake-ignore-term"]) as (process, pids):
        os.kill(pids["reaper"], signal.SIGKILL)
        assert gone([pids["reaper"]]) == []
        process.kill()
        assert gone([pids["server"]]) == []


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether the process has come as far as ignoring this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("SigIgn:")]
    return bool(int(line.split()[1], 16) & (1 << (number - 1)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_reaper_ends_with_its_owner_and_ignores_other_signals(tmp_path: Path) -> None:
    with owner(tmp_path, []) as (process, pids):
        assert wait_until(lambda: ignores(pids["reaper"], signal.SIGHUP))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pids["reaper"], number)
        time.sleep(0.3)
        assert alive(pids["reaper"])
        process.kill()
        assert gone([pids["reaper"], pids["server"]]) == []


def wait_until(condition: Callable[[], bool], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_a_fork_of_the_owner_does_not_keep_the_reaper_waiting(tmp_path: Path) -> None:
    # A forked child inherits the pipe's write end, so the pipe alone would not tell that the owner is gone.
    marker = tmp_path / "forked"
    code = (
        "import os, sys, time, pathlib\n"
        "from pytest_llmbench.engine.process import spawn\n"
        f"server = spawn(['sleep', '600'], env={{}}, log_path=pathlib.Path({str(tmp_path / 'log')!r}))\n"
        "from pytest_llmbench.engine.reaper import REAPER\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    time.sleep(600)\n"
        f"pathlib.Path({str(marker)!r}).write_text(f'{{server.pid}} {{REAPER.pid}} {{child}} .')\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)})
    child = 0
    try:
        assert wait_until(lambda: marker.exists() and marker.read_text().endswith("."))
        server, reaper, child = (int(word) for word in marker.read_text().split()[:3])
        process.kill()
        process.wait()
        assert gone([server, reaper]) == []
        assert alive(child)
    finally:
        process.kill()
        process.wait()
        if child:
            os.kill(child, signal.SIGKILL)
