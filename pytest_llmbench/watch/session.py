"""The session's side of the watch: starts the helper, asks it around each run, and never breaks a run because of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest_llmbench
from pytest_llmbench.journal import read_lines
from pytest_llmbench.watch import GuardWord, Unwatched, quiet

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_llmbench.watch import Watch
    from pytest_llmbench.watch.settings import Settings

TELEMETRY = "telemetry.jsonl"
QUIET = "quiet.jsonl"
ERRORS = "watch-errors.log"
"""What the helper wrote to stderr; not there where it wrote nothing."""
_STARTS = 3
_ANSWER_S = 10.0
_START_S = 60.0


def start_watch(
    folder: Path, settings: Settings, *, env: Mapping[str, str], nvml: str = "pynvml", proc: str = "/proc"
) -> Watch:
    """Start watching this machine for a session; ``Unwatched`` with the reason where that is not possible.

    folder: the run's, which gets ``telemetry.jsonl`` (one line a sample) and ``quiet.jsonl``. env: the card's environment
    of the server, which says what GPUs it may use. nvml: the module that speaks to NVML.
    """
    if not os.path.exists(f"{proc}/self/stat") or not hasattr(os, "pread"):  # noqa: PTH110
        return Unwatched(f"{sys.platform} has no {proc}: processes cannot be watched cheaply")
    watch = SessionWatch(folder, settings, env=env, nvml=nvml)
    if watch.broken is not None:
        return Unwatched(watch.broken)
    return watch


class SessionWatch:
    """A guard that asks the helper process. A helper that is lost is started again, thrice at most, and that is said.

    Not for several threads. answer_s: how long an answer may take. facts: the settings, what is watched, which GPUs, and what this machine does not tell.
    """

    def __init__(self, folder: Path, settings: Settings, *, env: Mapping[str, str], nvml: str) -> None:
        self._folder = folder
        visible = {name: value for name, value in os.environ.items() if name.startswith("CUDA_")}
        visible |= {name: value for name, value in env.items() if name.startswith("CUDA_")}
        self._hello = {
            "settings": settings.to_json(),
            "env": visible,
            "telemetry": str(folder / TELEMETRY),
            "quiet": str(folder / QUIET),
            "nvml": nvml,
        }
        self.answer_s = _ANSWER_S
        self._server: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""
        self._starts = 0
        self._begun = False
        self.broken: str | None = None
        self.facts: dict[str, Any] = {"watched": False}
        self._start()

    @property
    def pid(self) -> int | None:
        """The helper's pid while it runs."""
        return self._process.pid if self._process is not None else None

    def set_server(self, pid: int | None) -> None:
        self._server = pid
        self._ask({"do": "server", "pid": pid})

    def begin(self, label: str) -> None:
        """Take the sample before the run; returns when it is taken, so that it does not fall into the run."""
        if self._process is None and self._starts < _STARTS:
            self._start()
        self._begun = self._ask({"do": "begin", "label": label}) is not None

    def end(self) -> GuardWord:
        """The word on the run that began last; "not watched" with the reason where the helper was lost in it."""
        begun, self._begun = self._begun, False
        answer = self._ask({"do": "end"}) if begun else None
        if answer is None:
            return GuardWord("not watched", self.broken)
        return GuardWord(answer["word"], answer["reason"], answer["details"])

    def now(self) -> dict[str, Any]:
        return self._ask({"do": "now"}) or {}

    def quiet(self) -> dict[str, Any]:
        """The quiet check as its file has it: also after the end, and over helpers that were lost."""
        path = self._folder / QUIET
        return quiet.summarise(read_lines(path) if path.exists() else ())

    def close(self) -> None:
        """End the helper. Safe to call twice."""
        if self._process is not None:
            self._ask({"do": "close"})
            self._let_go()

    # ---- the helper ----

    def _start(self) -> None:
        self._starts += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        package = str(Path(pytest_llmbench.__file__).parents[1])
        path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
        try:
            with (self._folder / ERRORS).open("wb") as errors:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "pytest_llmbench.watch.helper"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    cwd="/",
                    env={**os.environ, "PYTHONPATH": path},
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C is pytest's; the helper ends after its last answer
                )
        except OSError as exc:
            self.broken = f"the watch's helper cannot be started: {exc}"
            return
        answer = self._ask(self._hello, within_s=_START_S)
        if answer is None:
            return
        self.facts = answer["facts"]
        if self._starts > 1:
            self.facts["helper_starts"] = self._starts
        if self._server is not None:
            self._ask({"do": "server", "pid": self._server})

    def _ask(self, request: Mapping[str, Any], within_s: float | None = None) -> dict[str, Any] | None:
        """The helper's answer; None where it gave none, and ``broken`` says why."""
        within_s = self.answer_s if within_s is None else within_s
        if self._process is None or self._process.stdin is None:
            return None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            line = self._line(time.monotonic() + within_s)
        except (BrokenPipeError, EOFError):
            code = self._process.wait(timeout=5)
            self.broken = f"the watch's helper ended (exit {code}{self._last_words()})"
        except TimeoutError:
            self.broken = f"the watch's helper gave no answer within {within_s:.0f} s"
        else:
            answer: dict[str, Any] = json.loads(line)
            if "error" not in answer:
                return answer
            self.broken = f"the watch's helper failed: {answer['error']}"
            if "do" in request:  # it still runs; one question failed
                return None
        self._let_go()
        return None

    def _line(self, deadline: float) -> bytes:
        assert self._process is not None
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            data = os.read(fd, 1 << 20)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _last_words(self) -> str:
        lines = (self._folder / ERRORS).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((f": {line.strip()}" for line in reversed(lines) if line.strip()), "")

    def _let_go(self) -> None:
        process, self._process, self._buffer = self._process, None, b""
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        errors = self._folder / ERRORS
        if errors.exists() and not errors.stat().st_size:
            errors.unlink()
