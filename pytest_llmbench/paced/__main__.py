"""``python -m pytest_llmbench.paced``: started, watched and stopped exactly like llama-server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import InputError
from pytest_llmbench.paced.command import CommandError, Options, parse_command
from pytest_llmbench.paced.faults import count_start, die, signal_number
from pytest_llmbench.paced.loop import loop_factory
from pytest_llmbench.paced.pace import Pace
from pytest_llmbench.paced.schedule import start_speed
from pytest_llmbench.paced.server import Server
from pytest_llmbench.paced.wire import Connection

ENV_PACE = "LLMBENCH_PACED"
ENV_PARENT = "LLMBENCH_PACED_PARENT"  # set by ``running``: end when that process is gone
USAGE = """\
usage: llmbench-paced -m FNAME [llama-server's arguments] [--paced JSON | --paced-file FNAME]

A stand-in for llama-server whose timing is known exactly. Its behaviour is a JSON object (see
pytest_llmbench.paced.Pace for every knob) in --paced, --paced-file or the environment variable LLMBENCH_PACED.
"""
_START = time.monotonic()


def log(text: str, level: str = "I") -> None:
    """One line on stderr in llama-server's form."""
    micros = int((time.monotonic() - _START) * 1e6)
    seconds, rest = divmod(micros, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    # A log that nobody reads any more must not end the server.
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(f"{minutes}.{seconds:02}.{rest // 1000:03}.{rest % 1000:03} {level} {text}\n")
        sys.stderr.flush()


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM, 1 for every refusal to start, as llama-server."""
    try:
        options = parse_command(sys.argv[1:] if argv is None else argv)
        if options.show == "version":
            sys.stderr.write("version: 0.6.0-paced (build 0, commit unknown)\n")
            sys.stderr.write(
                f"built with Python {platform.python_version()} for {platform.system()} {platform.machine()}\n"
            )
            return 0
        if options.show == "help":
            sys.stdout.write(USAGE)
            return 0
        pace = read_pace(options)
        for name in (pace.exit_signal, pace.start_signal):
            if name is not None:
                signal_number(name)
        number = count_start(pace.counter_file)
        factory = loop_factory(pace.loop)
    except (CommandError, InputError) as error:
        text = str(error)
        sys.stderr.write(text if text.startswith("error") else f"error: {text}")
        sys.stderr.write("\n")
        return 1
    log("srv  llama_server: initializing ...")
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(_serve(options, pace, start_speed(pace, number)))


def read_pace(options: Options) -> Pace:
    """The pace: --paced, else --paced-file, else the environment. Raises InputError."""
    if options.paced is not None:
        return Pace.from_json(options.paced, "--paced")
    if options.paced_file is not None:
        try:
            text = Path(options.paced_file).read_text(encoding="utf-8")
        except OSError as error:
            raise InputError("--paced-file", options.paced_file, str(error), "name a file that can be read") from error
        return Pace.from_json(text, options.paced_file)
    return Pace.from_json(os.environ.get(ENV_PACE) or "{}", ENV_PACE)


async def _serve(options: Options, pace: Pace, start_factor: float) -> int:
    loop = asyncio.get_running_loop()
    there = os.path.isfile(options.model)  # noqa: ASYNC240, PTH113 - nothing is served yet
    try:
        server = Server(options, pace, start_factor, log)
        listener = await loop.create_server(lambda: Connection(server), options.host, options.port, backlog=2048)
    except OSError:
        log(f"srv         start: couldn't bind HTTP server socket, hostname: {options.host}, port: {options.port}", "E")
        log("srv    operator(): operator(): cleaning up before exit...")
        log("srv  llama_server: exiting due to HTTP server error", "E")
        return 1
    log(f"srv    load_model: loading model '{options.model}'")
    if pace.start_log:
        sys.stderr.write(pace.start_log.rstrip("\n") + "\n")
    if pace.load_s:
        await asyncio.sleep(pace.load_s)
    if pace.start_exit is not None or pace.start_signal is not None:
        die(pace.start_exit or 0, pace.start_signal)
    if not there:
        _report_no_model(options.model)
        return 1
    ended = asyncio.Event()
    _catch_signals(server, pace, ended)
    unified = str(server.options.unified).lower()
    log(
        f"srv    load_model: initializing, n_slots = {options.n_slots}, n_ctx_slot = {server.n_ctx}, kv_unified = '{unified}'"
    )
    server.ready = True
    log("srv  llama_server: model loaded")
    host, port = listener.sockets[0].getsockname()[:2]
    log(f"srv  llama_server: listening on http://{host}:{port}")

    def tidy_soon() -> None:
        loop.call_later(0.02, _tidy, server)

    server.on_idle = tidy_soon
    watch = asyncio.create_task(_watch(server, ended))
    # Everything made so far stays for good, and collections wait until nothing is timed.
    gc.collect()
    gc.freeze()
    gc.disable()
    await ended.wait()
    watch.cancel()
    log("srv    operator(): operator(): cleaning up before exit...")
    server.close_log()
    # Connections that are still open end with the process.
    sys.stderr.flush()
    os._exit(0)


def _report_no_model(path: str) -> None:
    log(f"gguf_init_from_file: failed to open GGUF file '{path}' (No such file or directory)", "E")
    log(f"llama_model_load: error loading model: llama_model_loader: failed to load model from {path}", "E")
    log("llama_model_load_from_file_impl: failed to load model", "E")
    log(f"cmn  common_init_: failed to load model '{path}'", "E")
    log(f"srv    load_model: failed to load model, '{path}'", "E")
    log("srv    operator(): operator(): cleaning up before exit...")
    log("srv  llama_server: exiting due to model loading error", "E")


def _catch_signals(server: Server, pace: Pace, ended: asyncio.Event) -> None:
    """Idle: end at once. With a request open: no more tokens, and a wait; a second signal ends it (the real one's way)."""
    loop = asyncio.get_running_loop()
    got: list[int] = []

    def stop(number: int) -> None:
        if pace.hang_on_sigterm:
            log(f"srv  paced: signal {number} ignored as told", "W")
            return
        got.append(number)
        if len(got) > 1:
            sys.stderr.write("Received second interrupt, terminating immediately.\n")
            server.close_log()
            os._exit(1)
        if not server.busy:
            ended.set()
            return
        server.ready = False
        server.freeze()
        server.on_idle = ended.set
        loop.call_later(pace.term_wait_s, ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def _tidy(server: Server) -> None:
    server.truth.flush_if_due()
    if not server.busy:
        gc.collect()


async def _watch(server: Server, ended: asyncio.Event) -> None:
    parent: Any = os.environ.get(ENV_PARENT)
    while True:
        await asyncio.sleep(1.0)
        server.truth.flush_if_due()
        if parent is not None and os.getppid() != int(parent):
            server.close_log()
            ended.set()


if __name__ == "__main__":
    sys.exit(main())
