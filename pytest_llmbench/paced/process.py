"""Start a paced server beside a test, and read its truth afterwards."""

from __future__ import annotations

import dataclasses
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import ServerStartError
from pytest_llmbench.paced.truth import TruthRecord, read_truth

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pytest_llmbench.paced.pace import Pace

_LISTENING = re.compile(rb"listening on (http://\S+)\n")


@dataclass(frozen=True, slots=True)
class PacedProcess:
    """A paced server that runs. base_url: ``http://127.0.0.1:PORT``; log_path: its stderr."""

    base_url: str
    pid: int
    log_path: Path
    truth_path: Path
    process: subprocess.Popen[bytes]

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.base_url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def truth(self, at_least: int = 0, timeout_s: float = 30.0) -> list[TruthRecord]:
        """What left when, one record a request in order of their end.

        The log is written when the server is idle, so ``at_least`` waits for that many records. Raises TimeoutError.
        """
        until = time.monotonic() + timeout_s
        while True:
            records = read_truth(self.truth_path)
            if len(records) >= at_least:
                return records
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{len(records)} of {at_least} truth records after {timeout_s:g} s in {self.truth_path}"
                )
            time.sleep(0.02)

    def log(self) -> str:
        return self.log_path.read_text(encoding="utf-8", errors="replace")


@contextmanager
def running(
    pace: Pace, *, args: Sequence[str] = (), wait: bool = True, timeout_s: float = 60.0
) -> Iterator[PacedProcess]:
    """A paced server as a process of its own, ended on exit; ``args`` are llama-server's.

    With ``wait`` false it is handed over while it may still be loading. Raises ServerStartError with its log's end.
    """
    with tempfile.TemporaryDirectory(prefix="llmbench-paced-") as folder:
        model, log_path = Path(folder, "paced.gguf"), Path(folder, "server.log")
        truth_path = Path(pace.truth_log) if pace.truth_log else Path(folder, "truth.jsonl")
        model.write_bytes(b"GGUF")
        pace = dataclasses.replace(pace, truth_log=str(truth_path))
        port = "0" if wait else str(_free_port())
        argv = [sys.executable, "-m", "pytest_llmbench.paced", "-m", str(model), "--host", "127.0.0.1"]
        argv += ["--port", port, "--paced", pace.to_json(), *args]
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=_environment()
            )
        try:
            url = _wait(process, log_path, timeout_s) if wait else f"http://127.0.0.1:{port}"
            yield PacedProcess(url, process.pid, log_path, truth_path, process)
        finally:
            _end(process)


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "LLMBENCH_PACED_PARENT": str(os.getpid())}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], log_path: Path, timeout_s: float) -> str:
    until = time.monotonic() + timeout_s
    while True:
        found = _LISTENING.search(log_path.read_bytes())
        if found:
            return found.group(1).decode()
        code = process.poll()
        if code is not None or time.monotonic() > until:
            what = f"ended with {code}" if code is not None else f"was not ready after {timeout_s:g} s"
            tail = log_path.read_text(encoding="utf-8", errors="replace")[-2000:]
            raise ServerStartError(f"the paced server {what}; the end of its log:\n{tail}")
        time.sleep(0.01)


def _end(process: subprocess.Popen[bytes]) -> None:
    """TERM, once more, KILL, reap."""
    for send in (process.terminate, process.terminate, process.kill):
        if process.poll() is not None:
            break
        send()
        try:
            process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
