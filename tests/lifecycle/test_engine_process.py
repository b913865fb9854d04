"""Starting, stopping and failing of server processes: real processes with exact behaviour (fake_server.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from pytest_llmbench.engine import LaunchSpec, llama_server
from pytest_llmbench.engine.llama_server import LlamaServer, start_llama_server
from pytest_llmbench.engine.ports import reserved_port
from pytest_llmbench.engine.process import ExecError, exit_in_words, spawn
from pytest_llmbench.engine.reaper import REAPER
from pytest_llmbench.errors import ServerDiedError, ServerStartError

FAKE = str(Path(__file__).with_name("fake_server.py"))


def spec(tmp_path: Path, *args: str, wrapper: tuple[str, ...] = (), timeout_s: float = 60.0) -> LaunchSpec:
    return LaunchSpec(
        FAKE, args, str(tmp_path / "model.gguf"), wrapper=(*wrapper, sys.executable), ready_timeout_s=timeout_s
    )


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return False


def children() -> list[psutil.Process]:
    """Ours that are alive, without the reaper."""
    return [
        child for child in psutil.Process().children(recursive=True) if child.pid != REAPER.pid and alive(child.pid)
    ]


def start(one: LaunchSpec, log: Path, number: int = 1) -> LlamaServer:
    return asyncio.run(start_llama_server(one, start_number=number, log_path=log))


def stop(server: LlamaServer) -> None:
    asyncio.run(server.stop())


def test_a_server_that_loads_for_a_while_becomes_ready(tmp_path: Path) -> None:
    server = start(spec(tmp_path, "--fake-load-s", "0.4"), tmp_path / "log")
    try:
        assert server.exit_status() is None
        assert server.ready_s >= 0.4
        assert server.props["model_path"] == str(tmp_path / "model.gguf")
        server.require_alive("this test")
    finally:
        stop(server)
    assert server.exit_status() == "signal SIGTERM (sent by llmbench)"
    assert not alive(server.pid)


def test_stop_twice_and_after_the_end(tmp_path: Path) -> None:
    server = start(spec(tmp_path), tmp_path / "log")
    stop(server)
    stop(server)
    server.stop_now()
    assert children() == []


def test_a_server_deaf_to_term_is_killed_with_its_children(tmp_path: Path) -> None:
    grandchild_file = tmp_path / "grandchild"
    server = start(spec(tmp_path, "--fake-ignore-term", "--fake-grandchild", str(grandchild_file)), tmp_path / "log")
    grandchild = int(grandchild_file.read_text())
    asyncio.run(server.process.stop(term_again_s=0.1, kill_s=0.3))
    assert server.exit_status() == "signal SIGKILL (sent by llmbench)"
    assert not alive(grandchild)


def test_a_cancelled_stop_still_leaves_nothing(tmp_path: Path) -> None:
    server = start(spec(tmp_path, "--fake-ignore-term"), tmp_path / "log")

    async def cancelled() -> None:
        await asyncio.wait_for(server.stop(), timeout=0.2)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert not alive(server.pid)


def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    async def cancelled() -> None:
        coming = start_llama_server(spec(tmp_path, "--fake-hang"), start_number=1, log_path=tmp_path / "log")
        await asyncio.wait_for(coming, timeout=1.0)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert children() == []


def test_a_child_that_left_the_group_is_found_at_a_stop(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    script = f"setsid sleep 600 & echo $! > {marker}; wait"
    process = spawn(["/bin/sh", "-c", script], env={}, log_path=tmp_path / "log")
    while not (marker.exists() and marker.read_text().strip()):
        assert process.returncode() is None
    stray = next(child for child in psutil.Process(process.pid).children(recursive=True))
    asyncio.run(process.stop())
    assert not alive(stray.pid)


def test_the_pid_is_the_listener_behind_a_wrapper(tmp_path: Path) -> None:
    server = start(spec(tmp_path, wrapper=("/bin/sh", "-c", '"$@" & wait', "sh")), tmp_path / "log")
    try:
        assert server.pid != server.process.pid
        assert psutil.Process(server.pid).ppid() == server.process.pid
    finally:
        stop(server)
    assert not alive(server.pid)


def test_a_pid_that_came_back_as_another_process_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = spawn(["true"], env={}, log_path=tmp_path / "log")
    while ours.returncode() is None:
        time.sleep(0.01)
    foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        monkeypatch.setattr(ours, "pid", foreign.pid)  # what the kernel may do once ours is reaped
        ours.kill()
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_an_exit_while_loading_tells_code_command_log_and_path(tmp_path: Path) -> None:
    log = tmp_path / "server-3.log"
    with pytest.raises(ServerStartError) as caught:
        start(spec(tmp_path, "--fake-exit", "3", "--api-key", "sesame"), log, number=3)
    text = str(caught.value)
    assert text.startswith("server start 3 failed: exit code 3 after ")
    assert "first words on stdout" in text
    assert "last words on stderr" in text
    assert f"whole log: {log}" in text
    assert "--fake-exit 3 --api-key '***'" in text
    assert "sesame" not in text + log.read_text()
    assert children() == []


def test_the_log_holds_our_header_and_everything_from_the_first_byte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(ServerStartError):
        start(spec(tmp_path, "--fake-exit", "3"), log, number=7)
    lines = log.read_text().splitlines()
    assert lines[0].startswith("# llmbench: start 7, command: ")
    assert lines[-2:] == ["first words on stdout", "last words on stderr"]


def test_an_earlier_start_in_the_same_log_is_not_blamed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: invalid argument: --no-mmap\n")
    with pytest.raises(ServerStartError) as caught:
        start(spec(tmp_path, "--fake-exit", "3"), log)
    assert "--no-mmap" not in str(caught.value)


def test_killed_while_loading(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError) as caught:
        start(spec(tmp_path, "--fake-load-s", "60", "--fake-abort"), tmp_path / "log")
    assert "signal SIGKILL (killed: out of memory?)" in str(caught.value)
    assert "known cause: something killed the server with SIGKILL" in str(caught.value)


@pytest.mark.parametrize(
    ("args", "state"),
    [(("--fake-hang",), "connection refused"), (("--fake-load-s", "600"), "503")],
    ids=["silent", "loading"],
)
def test_not_ready_in_time(tmp_path: Path, args: tuple[str, ...], state: str) -> None:
    with pytest.raises(ServerStartError) as caught:
        start(spec(tmp_path, *args, timeout_s=6.0), tmp_path / "log")
    assert "not ready after 6 s" in str(caught.value)
    assert state in str(caught.value)
    assert children() == []


def test_a_server_that_died_says_when_and_how(tmp_path: Path) -> None:
    server = start(spec(tmp_path), tmp_path / "log")
    os.kill(server.pid, signal.SIGKILL)
    while server.exit_status() is None:
        time.sleep(0.01)
    with pytest.raises(ServerDiedError) as caught:
        server.require_alive("run 2 of decode[code]")
    assert "ended during run 2 of decode[code]: signal SIGKILL (killed: out of memory?)" in str(caught.value)
    assert "listening on" in str(caught.value)
    stop(server)
    assert server.exit_status() == "signal SIGKILL (killed: out of memory?)"  # a stop afterwards does not rewrite it


def test_another_model_behind_the_port(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"another model is behind .*: other\.gguf, not "):
        start(spec(tmp_path, "--fake-model", "other.gguf"), tmp_path / "log")
    assert children() == []


def test_somebody_elses_server_on_our_port_is_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ours is alive and does not listen yet; what answers /health, with the right model even, is another one.
    model = str(tmp_path / "model.gguf")
    with reserved_port() as port:
        foreign = subprocess.Popen(
            [sys.executable, FAKE, "--port", str(port), "-m", model], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert foreign.stdout is not None
        foreign.stdout.readline()
    monkeypatch.setattr(llama_server, "reserved_port", lambda: nullcontext(port))
    try:
        with pytest.raises(ServerStartError) as caught:
            start(spec(tmp_path, "--fake-hang"), tmp_path / "log")
        assert "not by the server that we started" in str(caught.value)
        assert f"pid {foreign.pid}" in str(caught.value)
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.communicate()


def test_a_lost_port_is_tried_again_with_another(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    failures.write_text("2")
    log = tmp_path / "log"
    server = start(spec(tmp_path, "--fake-bind-failures", str(failures)), log)
    stop(server)
    commands = [line for line in log.read_text().splitlines() if line.startswith("# llmbench: start 1, command")]
    assert len(commands) == 3
    assert len(set(commands)) == 3  # a port of its own each


def test_a_port_that_is_always_lost_says_so(tmp_path: Path) -> None:
    failures = tmp_path / "failures"
    failures.write_text("99")
    with pytest.raises(ServerStartError, match=r"known cause: the server could not bind 127\.0\.0\.1:"):
        start(spec(tmp_path, "--fake-bind-failures", str(failures)), tmp_path / "log")


def test_a_reserved_port_is_refused_to_others_and_shared_with_the_server() -> None:
    with reserved_port() as port:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            server.listen()


def test_exec_failures_are_told_apart(tmp_path: Path) -> None:
    text = tmp_path / "plain"
    text.write_text("no program")
    with pytest.raises(ExecError, match="not found"):
        spawn([str(tmp_path / "absent")], env={}, log_path=tmp_path / "log")
    with pytest.raises(ExecError, match="not executable"):
        spawn([str(text)], env={}, log_path=tmp_path / "log")
    text.chmod(text.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(ExecError, match="exec format"):
        spawn([str(text)], env={}, log_path=tmp_path / "log")
    assert children() == []


def test_a_binary_that_is_not_there_is_a_start_error_with_a_remedy(tmp_path: Path) -> None:
    one = LaunchSpec(str(tmp_path / "absent"), (), str(tmp_path / "model.gguf"))
    with pytest.raises(ServerStartError, match=r"not found.*\n(?s:.*)remedy: correct engine\.binary"):
        start(one, tmp_path / "log")


def test_spawn_outside_of_the_main_thread_is_refused(tmp_path: Path) -> None:
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            spawn(["true"], env={}, log_path=tmp_path / "log")
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_the_environment_is_ours_plus_the_cards_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")
    monkeypatch.setenv("FROM_OUTSIDE", "yes")
    log = tmp_path / "log"
    code = "import json, os, signal; print(json.dumps([dict(os.environ), signal.getsignal(signal.SIGTERM)]))"
    process = spawn(
        [sys.executable, "-c", code],
        env={"FROM_CARD": "ü=1", "PATH": "/bin"},
        unset={"LLAMA_ARG_CTX_SIZE"},
        log_path=log,
    )
    while process.returncode() is None:
        time.sleep(0.01)
    env = json.loads(log.read_text())[0]
    assert (env["FROM_OUTSIDE"], env["FROM_CARD"], env["PATH"]) == ("yes", "ü=1", "/bin")
    assert "LLAMA_ARG_CTX_SIZE" not in env
    process.kill()


def test_ignored_signals_of_python_do_not_reach_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn(["/bin/sh", "-c", "grep SigIgn /proc/self/status"], env={}, log_path=log)
    while process.returncode() is None:
        time.sleep(0.01)
    process.kill()
    ignored = int(log.read_text().split()[1], 16)
    assert ignored & (1 << (signal.SIGPIPE - 1)) == 0


def test_a_killed_reaper_is_replaced(tmp_path: Path) -> None:
    first = spawn(["sleep", "600"], env={}, log_path=tmp_path / "log")
    old = REAPER.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    second = spawn(["sleep", "600"], env={}, log_path=tmp_path / "log")
    assert REAPER.pid != old
    first.kill()
    second.kill()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (137, "exit code 137 (128 + SIGKILL, of a process behind the wrapper)"),
        (-9, "signal SIGKILL (killed: out of memory?)"),
        (-4, "signal SIGILL (illegal instruction: built for another CPU?)"),
        (-15, "signal SIGTERM"),
    ],
)
def test_exit_in_words(code: int, words: str) -> None:
    assert exit_in_words(code) == words
