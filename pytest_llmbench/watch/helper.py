"""The helper process: ``python -m pytest_llmbench.watch.helper``, one a session, light on purpose.

Requests are JSON lines on stdin, each answered by one JSON line on stdout: first ``settings``, then ``server``, ``begin``,
``end``, ``now``, ``close``. Every sample goes to the telemetry file and every quiet record to the quiet file,
one line in one write, so that a kill leaves at most one unfinished last line. It ends when the pipe does, or its parent.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_llmbench.watch import judge
from pytest_llmbench.watch.counters import Counters
from pytest_llmbench.watch.gpu import Gpus
from pytest_llmbench.watch.processes import ProcessTable
from pytest_llmbench.watch.sampler import Sampler
from pytest_llmbench.watch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

KEPT = 7200
"""Samples of one run kept for its summary (an hour at 0.5 s); the telemetry file keeps all."""


class Helper:
    """Samples by the clock, and answers in between."""

    def __init__(self, settings: Settings, table: ProcessTable, telemetry: str, quiet_file: str, gpus: Gpus) -> None:
        counters = Counters()
        self._settings = settings
        self._sampler = Sampler(settings, counters, table, gpus.sample if gpus.devices else None)
        self._out = _append_to(telemetry)
        self._quiet_out = _append_to(quiet_file)
        self._run: str | None = None
        self._samples: list[dict[str, Any]] = []
        self._left_out = 0
        self._before: dict[str, Any] | None = None
        self._previous: dict[str, Any] | None = None
        self._gpus_at_begin: Any = None
        self.facts = {
            "watched": True,
            "processes": len(table.all),
            "missing": counters.missing,
            "gpu": gpus.facts(),
            "settings": settings.to_json(),
        }

    def tick(self, *, look: bool = False, mark: str | None = None) -> dict[str, Any]:
        """Take a sample and write it."""
        sample = self._sampler.sample(look=look)
        if self._run is not None:
            if len(self._samples) < KEPT:
                self._samples.append(sample)
            else:
                self._left_out += 1
        else:
            self._previous, self._before = self._before, sample
        _write(self._out, {"run": self._run, "mark": mark} | sample)
        return sample

    def quiet_tick(self) -> None:
        _write(self._quiet_out, self._sampler.quiet())

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what was asked; the answer is a JSON object."""
        what = request["do"]
        if what == "begin":
            sample = self.tick(look=True, mark="begin")
            self._gpus_at_begin = sample.get("gpus")
            self._run, self._samples, self._left_out = str(request["label"]), [], 0
            return {}
        if what == "end":
            self.tick(look=True, mark="end")
            return self._end()
        if what == "server":
            self._sampler.set_server(request["pid"])
            return {}
        if what == "now":
            return self.tick(look=True, mark="now")
        raise ValueError(f"unknown request {what!r}")

    def _end(self) -> dict[str, Any]:
        before = self._before
        if before is not None and self._previous is not None:
            before = judge.merge([self._previous, before], self._settings.interval_s)[-1]
        word, reason, details = judge.judge(
            self._samples, self._settings, before=before, gpus_at_begin=self._gpus_at_begin
        )
        if self._left_out:
            details["samples_only_in_the_file"] = self._left_out
        self._previous, self._before = ([None, None, *self._samples])[-2:]
        self._run, self._samples = None, []
        return {"word": word, "reason": reason, "details": details}


def main() -> int:
    """Until the pipe or the parent is gone. 0 always: nobody is left to read another code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # we end with pytest, after its last question, not with its signal
    parent = os.getppid()
    lines = _Lines(0)
    first = lines.wait(10.0)
    if not first:
        return 0
    request = first[0]
    try:
        helper, settings = _prepared(request, parent)
    except Exception as exc:  # noqa: BLE001 - whatever it is, the session is told why nothing is watched
        _reply({"error": f"{type(exc).__name__}: {exc}"})
        return 0
    _reply({"facts": helper.facts})
    gc.collect()
    gc.freeze()
    _serve(helper, settings, lines, parent)
    return 0


def _prepared(request: Mapping[str, Any], parent: int) -> tuple[Helper, Settings]:
    settings = Settings.of(request["settings"])
    table = ProcessTable({parent}, open_files=_open_files())
    gpus = Gpus(_nvml(request["nvml"]), request["env"], lambda: {process.pid for process in table.ours()})
    return Helper(settings, table, request["telemetry"], request["quiet"], gpus), settings


def _serve(helper: Helper, settings: Settings, lines: _Lines, parent: int) -> None:
    next_sample = time.monotonic() + settings.interval_s
    next_quiet = time.monotonic() + settings.quiet_interval_s
    while os.getppid() == parent:
        requests = lines.wait(min(next_sample, next_quiet) - time.monotonic())
        if requests is None:
            return
        for request in requests:
            if request["do"] == "close":
                _reply({})
                return
            try:
                reply = helper.answer(request)
            except Exception as exc:  # noqa: BLE001 - an answer that says what broke, never silence
                reply = {"error": f"{type(exc).__name__}: {exc}"}
            _reply(reply)
            next_sample = time.monotonic() + settings.interval_s  # windows of a run count from its begin
        now = time.monotonic()
        if now >= next_sample:
            helper.tick()
            next_sample = max(next_sample + settings.interval_s, now + settings.interval_s / 2)
        if now >= next_quiet:
            helper.quiet_tick()
            next_quiet = max(next_quiet + settings.quiet_interval_s, now + settings.quiet_interval_s / 2)


class _Lines:
    """JSON lines of a pipe, as they come."""

    def __init__(self, fd: int) -> None:
        self._fd, self._buffer = fd, b""

    def wait(self, seconds: float) -> list[dict[str, Any]] | None:
        """The requests that came within that time, perhaps none; None where the pipe has ended."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            return []
        data = os.read(self._fd, 65536)
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return [json.loads(line) for line in lines]


def _reply(answer: Mapping[str, Any]) -> None:
    with suppress(BrokenPipeError):  # the parent is gone: the loop sees that next
        _write(1, answer)


def _write(fd: int, record: Mapping[str, Any]) -> None:
    line = json.dumps(record, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    while line:
        line = line[os.write(fd, line) :]


def _append_to(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)


def _nvml(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _open_files() -> int:
    """How many files the process table may keep open: all but a few, the limit raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(0, soft - 64)


if __name__ == "__main__":
    sys.exit(main())
