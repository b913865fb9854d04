"""Start llama-server from a LaunchSpec, wait until it is ready, and be sure that it is ours."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
import psutil

from pytest_llmbench.engine.command import shell_line
from pytest_llmbench.engine.diagnose import Diagnosis, exit_diagnosis, failure_text
from pytest_llmbench.engine.launch import Launch, is_container, prepare
from pytest_llmbench.engine.ports import listener_anywhere, listener_in_tree, reserved_port
from pytest_llmbench.engine.process import ExecError, ServerProcess, log_header, spawn
from pytest_llmbench.errors import ServerDiedError, ServerStartError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pytest_llmbench.engine import LaunchSpec

_BIND_ATTEMPTS = 3
_BIND_FAILED = re.compile(r"couldn't bind")
_LOG_TAIL_BYTES = 256 * 1024
# A client for the server's own pages, never for a measurement. A loading server may answer late.
_TIMEOUT = httpx.Timeout(10.0, connect=2.0)


@dataclass(slots=True)
class LlamaServer:
    """A llama-server that answered ready and is the process that was started (see RunningServer).

    pid: the process that listens, behind a wrapper too. headers: what a request needs (an API key), never shown.
    ready_s: seconds from the start to the first 200 of /health.
    """

    start_number: int
    base_url: str
    pid: int
    argv: tuple[str, ...]
    observer_changes: tuple[str, ...]
    log_path: Path
    ready_s: float
    props: dict[str, Any]
    models: dict[str, Any]
    process: ServerProcess = field(repr=False)
    env: tuple[tuple[str, str], ...] = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)

    def exit_status(self) -> str | None:
        return self.process.exit_status()

    def require_alive(self, during: str) -> None:
        status = self.exit_status()
        if status is None:
            return
        raise ServerDiedError(
            failure_text(
                what=f"server start {self.start_number} ended during {during}: {status} after {self.process.lifetime_s():.1f} s",
                command=shell_line(self.argv, self.env),
                changes=self.observer_changes,
                log=_output(self.process),
                code=self.process.returncode(),
                log_path=str(self.log_path),
            )
        )

    async def stop(self) -> None:
        await self.process.stop()

    def stop_now(self) -> None:
        """Stop without an event loop, for emergencies."""
        self.process.stop_now()


async def start_llama_server(spec: LaunchSpec, *, start_number: int, log_path: Path) -> LlamaServer:
    """Start the server and wait until it is ready; must be called in the main thread.

    Ready means: /health answers 200, the process is alive, the port's listener is in its process tree, and /props shows
    the model that was asked for. Raises ServerStartError (died, timeout, somebody else's server, another model) and
    InputError (arguments that a benchmark cannot use); nothing is left running then.
    """
    for attempt in range(1, _BIND_ATTEMPTS + 1):
        with _port(spec) as port:
            launch = prepare(spec, port)
            process = _spawn(launch, start_number, log_path)
            try:
                return await _until_ready(process, spec, launch, start_number)
            except _EndedError as error:
                lost_the_port = process.returncode() is not None and _BIND_FAILED.search(_output(process))
                await process.stop()
                if not lost_the_port or launch.in_container or attempt == _BIND_ATTEMPTS:
                    raise ServerStartError(_text(process, launch, start_number, str(error), error.known)) from None
            except BaseException:
                process.stop_now()
                raise
    raise AssertionError("the last attempt returns or raises")


class _EndedError(Exception):
    """Not ready, and never will be. known: the cause, where it is not the log's to tell."""

    def __init__(self, what: str, known: Diagnosis | None = None) -> None:
        self.known = known
        super().__init__(what)


def _port(spec: LaunchSpec) -> AbstractContextManager[int]:
    return nullcontext(0) if is_container(spec.wrapper) else reserved_port()


def _spawn(launch: Launch, start_number: int, log_path: Path) -> ServerProcess:
    header = [log_header(start_number, launch.argv, launch.env)]
    header += [f"changed by us: {'; '.join(launch.changes)}"] if launch.changes else []
    try:
        return spawn(
            launch.argv,
            env=dict(launch.env),
            unset=launch.unset,
            log_path=log_path,
            header=header,
            # KILL would end the container's client and leave the container; TERM is passed on to it.
            death_signal=signal.SIGTERM if launch.in_container else signal.SIGKILL,
        )
    except ExecError as error:
        raise ServerStartError(
            failure_text(
                what=f"server start {start_number} failed: {error}",
                command=shell_line(launch.argv, launch.env),
                changes=launch.changes,
                log="",
                code=None,
                log_path=str(log_path),
                known=Diagnosis("cannot execute", str(error), exit_diagnosis(error.number)),
            )
        ) from None


async def _until_ready(process: ServerProcess, spec: LaunchSpec, launch: Launch, start_number: int) -> LlamaServer:
    async with httpx.AsyncClient(
        base_url=launch.base_url, headers=launch.headers, timeout=_TIMEOUT, trust_env=False
    ) as client:
        await _until_healthy(client, process, spec.ready_timeout_s)
        ready_s = process.lifetime_s()
        pid = process.pid if launch.in_container else _own_listener(process, client.base_url.port or 80)
        props = await _page(client, process, "/props")
        models = await _page(client, process, "/v1/models")
    found = props.get("model_path")
    if found is not None and not _same_file(str(found), spec.model_path):
        raise _EndedError(
            f"another model is behind {launch.base_url}: {found}, not {spec.model_path}",
            Diagnosis(
                "another model",
                "the server loaded another model than asked for",
                "check -m and the wrapper in the card",
            ),
        )
    return LlamaServer(
        start_number=start_number,
        base_url=launch.base_url,
        pid=pid,
        argv=launch.argv,
        observer_changes=launch.changes,
        log_path=process.log_path,
        ready_s=ready_s,
        props=props,
        models=models,
        process=process,
        env=launch.env,
        headers=launch.headers,
    )


async def _until_healthy(client: httpx.AsyncClient, process: ServerProcess, timeout_s: float) -> None:
    state = "no answer yet"
    while True:
        status = process.exit_status()
        if status is not None:
            raise _EndedError(f"{status} after {process.lifetime_s():.1f} s")
        waited = process.lifetime_s()
        if waited > timeout_s:
            raise _EndedError(
                f"not ready after {timeout_s:.0f} s (/health: {state})",
                Diagnosis(
                    "timeout",
                    "the server is alive but not ready in time",
                    "see what the log's last line waits for; a large model from a slow disk needs a longer --llmbench-ready-timeout",
                ),
            )
        try:
            answer = await client.get("/health")
        except httpx.ConnectError:
            state = "connection refused"
        except httpx.HTTPError as error:
            state = f"{type(error).__name__} {error}".strip()
        else:
            if answer.status_code == 200:
                return
            state = f"{answer.status_code} {answer.text[:200]}"
        await asyncio.sleep(0.05 if waited < 10 else 0.25)


def _own_listener(process: ServerProcess, port: int) -> int:
    """The pid of ours that listens; whoever else took the port answers /health just as well."""
    try:
        pid = listener_in_tree(process.pid, port)
    except psutil.AccessDenied:
        return process.pid  # this system does not show connections; /props is still compared
    if process.exit_status() is not None:
        raise _EndedError(f"{process.exit_status()} after {process.lifetime_s():.1f} s")
    if pid is None:
        other = listener_anywhere(port)
        raise _EndedError(
            f"port {port} is answered by {other}, not by the server that we started",
            Diagnosis(
                "port in use",
                f"{other} listens on port {port}",
                "stop it, or let the wrapper start the server on the port it is given",
            ),
        )
    return pid


async def _page(client: httpx.AsyncClient, process: ServerProcess, path: str) -> dict[str, Any]:
    try:
        answer = await client.get(path)
        answer.raise_for_status()
        page = answer.json()
    except (httpx.HTTPError, ValueError) as error:
        status = process.exit_status()
        if status is not None:
            raise _EndedError(f"{status} after {process.lifetime_s():.1f} s, when asked for {path}") from None
        hint = Diagnosis(
            "api key",
            "the server wants an API key that we do not have",
            "set LLAMA_API_KEY, or --api-key-file in the card",
        )
        refused = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 401
        raise _EndedError(f"ready, but {path} failed: {error}", hint if refused else None) from None
    if not isinstance(page, dict):
        raise _EndedError(f"ready, but {path} is not a JSON object: this is not llama-server")
    return page


def _same_file(found: str, asked: str) -> bool:
    return found == asked or os.path.realpath(found) == os.path.realpath(asked)


def _text(process: ServerProcess, launch: Launch, start_number: int, what: str, known: Diagnosis | None) -> str:
    return failure_text(
        what=f"server start {start_number} failed: {what}",
        command=shell_line(launch.argv, launch.env),
        changes=launch.changes,
        log=_output(process),
        code=None if known else process.returncode(),
        log_path=str(process.log_path),
        known=known,
    )


def _output(process: ServerProcess) -> str:
    """The end of what the process wrote (256 KiB at most), without our header and without earlier starts."""
    with process.log_path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(process.log_offset, size - _LOG_TAIL_BYTES))
        return file.read().decode("utf-8", "replace")
