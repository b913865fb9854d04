"""The paced server as a process: how it starts, refuses, dies and is stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from paced_requests import ask, fast, texts, whole

from pytest_llmbench.errors import InputError, ServerStartError
from pytest_llmbench.paced import Pace, running
from pytest_llmbench.paced.loop import loop_factory
from pytest_llmbench.paced.probe import send


@pytest.mark.parametrize(
    ("knobs", "code"), [({"exit_code": 134}, 134), ({"exit_signal": "SIGKILL"}, -9), ({"exit_signal": "SIGABRT"}, -6)]
)
def test_death_in_mid_stream(knobs: dict[str, Any], code: int) -> None:
    with running(fast(requests={"2": {"exit_after_tokens": 3, **knobs}})) as server:
        assert whole(ask(server))
        reply = ask(server)
        assert server.process.wait(30) == code
        assert (texts(reply), reply.complete) == (3, False)
        assert [record.end for record in server.truth()] == ["done", "exit"]


def test_death_after_so_many_requests() -> None:
    with running(fast(exit_after_requests=2, exit_code=7)) as server:
        assert whole(ask(server))
        assert whole(ask(server))
        assert server.process.wait(30) == 7


def test_death_at_the_start() -> None:
    words = "ggml: failed to allocate buffer for kv cache"
    with pytest.raises(ServerStartError, match=words) as caught, running(Pace(start_log=words, start_exit=3)):
        pytest.fail("it started")
    assert "ended with 3" in str(caught.value)


def test_death_of_a_signal_at_the_start() -> None:
    with pytest.raises(ServerStartError, match="ended with -4"), running(Pace(start_signal="SIGILL")):
        pytest.fail("it started")


def test_a_loop_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(InputError, match="uvloop is not installed"):
        loop_factory("uvloop")


def test_loading_is_503_and_then_200() -> None:
    with running(fast(load_s=1.0), wait=False) as server:
        seen: list[int] = []
        until = time.monotonic() + 60
        while 200 not in seen and time.monotonic() < until:
            try:
                reply = send(server.address, "/health")
            except ConnectionRefusedError:
                seen.append(0)
                time.sleep(0.005)
                continue
            if reply.status == 503:
                assert reply.json()["error"] == {"message": "Loading model", "type": "unavailable_error", "code": 503}
            seen.append(reply.status)
    assert list(dict.fromkeys(seen)) == [0, 503, 200]


def test_every_kth_start_is_slow(tmp_path: Path) -> None:
    pace = fast(tok_s=1000, start_slow_every=2, start_slow_factor=4, counter_file=str(tmp_path / "starts"))
    speeds = []
    for _ in range(3):
        with running(pace) as server:
            speeds.append(ask(server).events()[-2]["timings"]["predicted_per_second"])
    assert speeds == pytest.approx([1000, 250, 1000])


def test_props_can_lie() -> None:
    with running(fast(props={"n_ctx": 512, "model_path": "/elsewhere.gguf", "total_slots": 9})) as server:
        props = send(server.address, "/props").json()
    assert (props["default_generation_settings"]["n_ctx"], props["model_path"], props["total_slots"]) == (
        512,
        "/elsewhere.gguf",
        9,
    )


def test_sigterm_idle_is_a_clean_exit() -> None:
    with running(fast()) as server:
        ask(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert "cleaning up before exit" in server.log()


def test_sigterm_with_a_stream_open_waits_and_a_second_one_does_not() -> None:
    with (
        running(Pace(ttft_ms=1, tok_s=20), args=["-np", "1"]) as server,
        socket.create_connection(server.address) as one,
    ):
        body = json.dumps({"prompt": "Hi", "n_predict": 5000, "stream": True}).encode()
        one.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        one.recv(100)
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 1
        assert [record.end for record in server.truth()] == ["shutdown"]


def test_hanging_on_sigterm() -> None:
    with running(fast(hang_on_sigterm=True)) as server:
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            server.process.wait(0.5)
        assert send(server.address, "/health").status == 200
    assert server.process.returncode == -9


def start(*args: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest_llmbench.paced", *args]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **environ}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, check=False)


def test_refusals_to_start(tmp_path: Path) -> None:
    flag = start("--bogus")
    assert (flag.returncode, flag.stderr) == (1, "error: invalid argument: --bogus\n")
    missing = start("-m", str(tmp_path / "no.gguf"), "--port", "0")
    assert missing.returncode == 1
    assert f"failed to load model, '{tmp_path}/no.gguf'" in missing.stderr
    assert "exiting due to model loading error" in missing.stderr
    pace = start("-m", "x", LLMBENCH_PACED='{"tok_per_s": 3}')
    assert pace.returncode == 1
    assert "LLMBENCH_PACED.tok_per_s: unknown key" in pace.stderr
    version = start("--version")
    assert (version.returncode, version.stdout) == (0, "")
    assert version.stderr.startswith("version: ")


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    with running(fast()) as server:
        taken = start("-m", str(model), "--port", str(server.address[1]))
    assert taken.returncode == 1
    assert "couldn't bind HTTP server socket" in taken.stderr


def test_the_pace_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pace.json"
    file.write_text(json.dumps({"start_log": "from the file", "start_exit": 5}))
    model = tmp_path / "m.gguf"
    model.write_bytes(b"GGUF")
    common = ("-m", str(model), "--port", "0")
    environ = '{"start_log": "from the environment", "start_exit": 6}'
    first = start(*common, LLMBENCH_PACED=environ)
    assert (first.returncode, "from the environment" in first.stderr) == (6, True)
    second = start(*common, "--paced-file", str(file), LLMBENCH_PACED=environ)
    assert (second.returncode, "from the file" in second.stderr) == (5, True)


def test_it_ends_when_its_parent_is_gone(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom pytest_llmbench.paced import Pace, running\n"
        "with running(Pace()) as server:\n    print(server.pid, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TMPDIR": str(tmp_path)}
    gone = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert gone.returncode == -9
    pid, until = int(gone.stdout), time.monotonic() + 60
    while time.monotonic() < until and _alive(pid):
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
