"""The engine room against the packaged llama-server and a real model."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import time
from contextlib import nullcontext
from pathlib import Path

import httpx
import psutil
import pytest
from engine_under_test import binary, model, start

from pytest_llmbench.card_flags import BY_NAME
from pytest_llmbench.engine import LaunchSpec, llama_server
from pytest_llmbench.engine.llama_server import start_llama_server
from pytest_llmbench.engine.version import engine_identity, help_text
from pytest_llmbench.errors import InputError, ServerDiedError, ServerStartError

__all__ = ["binary", "model"]  # fixtures

SMALL = ("-c", "1024", "-np", "1", "-t", "2", "--no-webui", "--cache-ram", "0")


def refusal(spec: LaunchSpec, log: Path) -> str:
    """The message of a start that must fail, with nothing left running."""
    with pytest.raises(ServerStartError) as caught:
        start(spec, log)
    names = [
        child.name() for child in psutil.Process().children(recursive=True) if child.status() != psutil.STATUS_ZOMBIE
    ]
    assert not any("llama" in name for name in names)
    text = str(caught.value)
    assert f"whole log: {log}" in text
    return text


def test_start_ready_props_and_a_quick_stop(
    binary: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_CTX_SIZE", "512")  # the card is the one truth
    log = tmp_path / "server-1.log"
    spec = LaunchSpec(binary, ("-m", "name-in-card.gguf", *SMALL, "--host", "0.0.0.0", "--port", "8888"), model)
    server = start(spec, log)
    try:
        assert server.props["default_generation_settings"]["n_ctx"] == 1024
        assert server.props["total_slots"] == 1
        assert server.models["data"][0]["meta"]["n_ctx"] == 1024
        assert psutil.Process(server.pid).name() == "llama-server"
        assert httpx.get(f"{server.base_url}/metrics", trust_env=False).status_code == 200
        assert "--port 8888 -> " in " ".join(server.observer_changes)
        text = log.read_text()
        assert re.search(r"KV buffer size = +\d", text)
        assert re.search(r"model buffer size = +\d", text)
        assert server.base_url in text  # its own word on where it listens
    finally:
        asyncio.run(server.process.stop(term_again_s=60.0, kill_s=120.0))
    assert server.exit_status() == "exit code 0"  # the first TERM was enough
    assert "cleaning up before exit" in log.read_text()


def test_a_stop_with_an_open_stream_is_no_kill(binary: str, model: str, tmp_path: Path) -> None:
    async def scenario() -> str | None:
        server = await start_llama_server(LaunchSpec(binary, SMALL, model), start_number=1, log_path=tmp_path / "log")
        body = {"prompt": "Once", "n_predict": 100_000, "ignore_eos": True, "stream": True}
        async with (
            httpx.AsyncClient(trust_env=False, timeout=60.0) as client,
            client.stream("POST", f"{server.base_url}/completion", json=body) as stream,
        ):
            await anext(stream.aiter_bytes())
            await server.process.stop(term_again_s=0.5, kill_s=20.0)
        return server.exit_status()

    assert "SIGKILL" not in str(asyncio.run(scenario()))


def test_a_server_killed_between_requests_is_said_so(binary: str, model: str, tmp_path: Path) -> None:
    server = start(LaunchSpec(binary, SMALL, model), tmp_path / "log")
    os.kill(server.pid, signal.SIGKILL)
    while server.exit_status() is None:
        time.sleep(0.01)
    with pytest.raises(ServerDiedError, match=r"ended during prefill\[8192\]: signal SIGKILL"):
        server.require_alive("prefill[8192]")
    asyncio.run(server.stop())


def test_an_api_key_is_sent_and_not_shown(binary: str, model: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("open-sesame\n")
    server = start(LaunchSpec(binary, (*SMALL, "--api-key-file", str(keys)), model), tmp_path / "log")
    asyncio.run(server.stop())
    assert server.props["total_slots"] == 1
    assert "open-sesame" not in repr(server) + (tmp_path / "log").read_text()


def test_model_missing(binary: str, tmp_path: Path) -> None:
    absent = str(tmp_path / "absent.gguf")
    text = refusal(LaunchSpec(binary, SMALL, absent), tmp_path / "log")
    assert "exit code 1 after" in text
    assert f"known cause: the model file cannot be opened: {absent} (No such file or directory)" in text


def test_draft_model_missing(binary: str, model: str, tmp_path: Path) -> None:
    spec = LaunchSpec(binary, (*SMALL, "--spec-type", "draft-simple"), model, draft_path=str(tmp_path / "absent.gguf"))
    assert "known cause: the draft model file cannot be opened" in refusal(spec, tmp_path / "log")


def test_model_truncated_in_its_data_and_in_its_header(binary: str, model: str, tmp_path: Path) -> None:
    for size in (20_000_000, 200):
        short = tmp_path / f"short-{size}.gguf"
        with Path(model).open("rb") as file:
            short.write_bytes(file.read(size))
        text = refusal(LaunchSpec(binary, SMALL, str(short)), tmp_path / f"log-{size}")
        assert f"known cause: the model file is shorter than its own index says: {short}" in text


def test_not_a_model(binary: str, tmp_path: Path) -> None:
    pointer = tmp_path / "pointer.gguf"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "is not a GGUF file (it starts with 'vers')" in refusal(
        LaunchSpec(binary, SMALL, str(pointer)), tmp_path / "log"
    )


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--no-such-flag",), ("this build does not know --no-such-flag", "llama-server --help")),
        (("--no-mmap",), ("this build no longer has --no-mmap", "write -lm none")),
        (("--mlock",), ("this build no longer has --mlock", "write -lm mlock")),
        (("--draft-max", "8"), ("this build no longer has --draft-max", "write --spec-draft-n-max N")),
        (("-fa", "--jinja"), ("-fa takes a value in this build", "write -fa on")),
        (("-c", "many"), ("the value of -c is refused: its value is not a whole number", "-c")),
        (("-ctk", "q9"), ("the value of -ctk is refused: Unsupported cache type: q9", "-ctk")),
        (("-dev", "CUDA7"), ("the device CUDA7 is not there", "--list-devices")),
    ],
)
def test_a_flag_that_this_build_refuses(
    binary: str, model: str, tmp_path: Path, args: tuple[str, ...], expected: tuple[str, str]
) -> None:
    text = refusal(LaunchSpec(binary, args, model), tmp_path / "log")
    cause, remedy = expected
    assert f"known cause: {cause}" in text
    assert remedy in text.split("remedy: ")[1].splitlines()[0]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("-c", "200000", "-np", "1", "-fit", "off"), "the KV cache"),
        (("-c", "60000", "-np", "1", "-ub", "60000", "-b", "60000", "-fit", "off", "-fa", "off"), "the compute buffer"),
    ],
    ids=["kv", "compute"],
)
def test_no_memory(binary: str, model: str, tmp_path: Path, args: tuple[str, ...], what: str) -> None:
    # A limit on the address space makes any machine small; the shell in front also proves that a wrapper works.
    small = ("/bin/sh", "-c", 'ulimit -v 2500000; exec "$@"', "sh")
    text = refusal(LaunchSpec(binary, args, model, wrapper=small), tmp_path / "log")
    assert re.search(rf"known cause: no memory for {what} in system memory: [\d,]+ MiB were asked for", text)


def test_killed_while_loading(binary: str, model: str, tmp_path: Path) -> None:
    # As the kernel does it when memory runs out: the wrapper's child dies while it loads.
    suicide = ("/bin/sh", "-c", '"$@" & sleep 0.1; kill -KILL $!; wait $!', "sh")
    text = refusal(LaunchSpec(binary, SMALL, model, wrapper=suicide), tmp_path / "log")
    assert "exit code 137 (128 + SIGKILL, of a process behind the wrapper)" in text
    assert "known cause: something killed the server with SIGKILL" in text


def test_port_taken(binary: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(llama_server, "reserved_port", lambda: nullcontext(port))
        text = refusal(LaunchSpec(binary, SMALL, model), tmp_path / "log")
    assert f"known cause: the server could not bind 127.0.0.1:{port}" in text


def test_a_library_that_is_missing(binary: str, model: str, tmp_path: Path) -> None:
    alone = tmp_path / "llama-server"
    alone.write_bytes(Path(binary).read_bytes())
    alone.chmod(0o755)
    text = refusal(LaunchSpec(str(alone), SMALL, model), tmp_path / "log")
    assert "exit code 127" in text
    assert re.search(r"known cause: the shared library lib[\w.-]+ was not found", text)
    with pytest.raises(InputError, match="shared librar"):
        engine_identity(alone, cache_dir=tmp_path / "cache")


def test_identity(binary: str, tmp_path: Path) -> None:
    identity = engine_identity(binary, cache_dir=tmp_path)
    assert identity.version
    assert any("llama-server-impl" in name for name, _ in identity.libraries)
    assert engine_identity(binary, cache_dir=tmp_path) == identity


def test_every_flag_of_this_build_is_in_the_table(binary: str) -> None:
    # A flag with a value that the table lacks could let its value be taken for a flag.
    shown = re.findall(r"^(-[^\s].*)$", help_text(binary), re.MULTILINE)
    lacking = []
    for line in shown:
        if line.startswith(("-----", "--completion")) or re.match(r"--[\w.-]+-(?:default|spec) ", line):
            continue
        names = re.match(r"(?:--?[\w-]+(?:,\s*)?)+", line)
        assert names is not None
        takes = re.match(r" +(?!\s)\S", line[names.end() :]) is not None and not line[names.end() :].startswith("  ")
        for name in re.findall(r"--?[\w-]+", names[0]):
            flag = BY_NAME.get(name)
            if flag is None or (flag.values is not None and (flag.values > 0) != takes):
                lacking.append((name, takes))
    assert lacking == []
