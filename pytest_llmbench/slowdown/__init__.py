"""A known slowdown of the server alone, planted to see whether the gate notices it (``llmbench canary``)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pytest_llmbench.errors import InputError, LlmbenchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Way = Literal["pause", "threads", "pace", "gpu-power", "gpu-clock"]
FLAG = "--llmbench-canary"
PACED = "LLMBENCH_PACED"
MOST_SHARE = 0.8
_STOPPER = Path(__file__).with_name("stopper.py")
_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What is planted. size: a share for ``pause`` and ``pace`` (0.1 = 10 % slower), else threads, watts or MHz.

    A throughput falls by the share, a latency grows to 1 / (1 - share); ``threads`` and the GPU's limits slow down by what the
    machine makes of them. ``pause`` begins when the server is ready: what comes before (loading) is not slowed.
    """

    way: Way
    size: float

    @property
    def share(self) -> float | None:
        """By what share it is slower, where that is known."""
        return self.size if self.way in {"pause", "pace"} else None

    @property
    def words(self) -> str:
        """As in "10 % slower (pause)"."""
        if self.share is not None:
            return f"{self.share * 100:g} % slower ({self.way})"
        unit = {"threads": "threads", "gpu-power": "W", "gpu-clock": "MHz"}[self.way]
        return f"{self.size:g} {unit} ({self.way})"

    @classmethod
    def parse(cls, text: str) -> Slowdown:
        """Read ``pause:10%``, ``pace:5%``, ``threads:3``, ``gpu-power:150``, ``gpu-clock:1500``. Raises InputError."""
        way, _, number = text.partition(":")
        found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,4})?) ?(%?)", number.strip())
        for known in get_args(Way):
            if way != known or found is None or bool(found[2]) != (known in {"pause", "pace"}):
                continue
            size = float(found[1]) / (100 if found[2] else 1)
            if not 0 < size <= (MOST_SHARE if found[2] else float("inf")):
                reason = f"a share must be above 0 and at most {MOST_SHARE:.0%}, other sizes above 0"
                raise InputError(FLAG, text, reason, f"{FLAG} pause:10%")
            if known == "threads" and size != int(size):
                raise InputError(FLAG, text, "threads come whole", f"{FLAG} threads:3")
            return cls(known, size)
        raise InputError(
            FLAG,
            text,
            "not a slowdown: pause:PERCENT%, pace:PERCENT%, threads:N, gpu-power:WATTS or gpu-clock:MHZ",
            f"{FLAG} pause:10%",
        )

    def changes(self) -> tuple[tuple[str, str], ...]:
        """What it changes in the server's arguments."""
        return (("-t", f"{self.size:.0f}"),) if self.way == "threads" else ()

    def environment(self, env: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """What it makes of the server's environment. Raises InputError where ``pace`` finds no paced server."""
        if self.way != "pace":
            return tuple(env)
        knobs = dict(env).get(PACED)
        try:
            pace = json.loads(knobs) if knobs is not None else None
        except ValueError:
            pace = None
        if not isinstance(pace, dict):
            raise InputError(
                FLAG,
                self.words,
                f"the card's server.env has no {PACED} whose pace could be slowed",
                f"{FLAG} pause:10%",
            )
        slower = json.dumps(pace | {"speed": pace.get("speed", 1.0) * (1 - self.size)})
        return tuple((name, slower if name == PACED else value) for name, value in env)


class Planted:
    """A slowdown at work: on each server of a session, or on the GPUs for as long as it lasts.

    told: for ``pause``, the share of time for which each server was kept stopped. problems: what kept it from being so slow.
    """

    def __init__(self, slowdown: Slowdown) -> None:
        self.slowdown = slowdown
        self.told: list[float] = []
        self.problems: list[str] = []
        self._limits: subprocess.Popen[str] | None = None

    def to_json(self) -> dict[str, Any]:
        one = self.slowdown
        return {"way": one.way, "size": one.size, "share": one.share, "words": one.words, "stopped": list(self.told)}

    # ---- a server ----

    def on(self, pid: int) -> Callable[[], None] | None:
        """Slow a running server down; the call that ends it, before the server is stopped. None: nothing to end."""
        if self.slowdown.way != "pause":
            return None
        group = os.getpgid(pid)
        if group == os.getpgrp():
            raise InputError(FLAG, self.slowdown.words, "the server is in pytest's own process group", "threads:N")
        command = [sys.executable, "-I", "-S", str(_STOPPER), str(group), str(self.slowdown.size)]
        helper = subprocess.Popen(
            [*command, "--group", "--while-stdin"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd="/",
            start_new_session=True,  # a Ctrl-C is for pytest, which then ends it in order
        )

        def end() -> None:
            died = helper.poll() is not None
            said = _ended(helper)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGCONT)
            try:
                self.told.append(float(said))
            except ValueError:
                died = True
            if died:
                self.problems.append("the canary's slowdown ended before its server did")

        return end

    # ---- the GPUs ----

    def limit(self, uuids: Sequence[str]) -> None:
        """Set the GPU limit, if it is one. Raises LlmbenchError where it may not be set."""
        if not self.slowdown.way.startswith("gpu-"):
            return
        if not uuids:
            raise InputError(FLAG, self.slowdown.words, "the card names no GPU", f"{FLAG} pause:10%")
        kind = self.slowdown.way.removeprefix("gpu-")
        self._limits = subprocess.Popen(
            [sys.executable, "-m", "pytest_llmbench.slowdown.limits", kind, str(self.slowdown.size), *uuids],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._limits.stdout is not None
        said = self._limits.stdout.readline().strip()
        if said != "ready":
            _ended(self._limits)
            self._limits = None
            raise LlmbenchError(f"{FLAG} {self.slowdown.words}: the GPU's limit was not set: {said or 'no answer'}")

    def close(self) -> None:
        """Put the GPU's former limits back. Safe to call twice."""
        if self._limits is not None:
            helper, self._limits = self._limits, None
            said = _ended(helper)
            if helper.returncode != 0:
                self.problems.append(f"the GPU's former limit was NOT put back: {said or 'its helper was killed'}")


def _ended(helper: subprocess.Popen[str]) -> str:
    """Close a helper's input, wait for it, and give what it said."""
    try:
        said, _ = helper.communicate(timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        helper.kill()
        said, _ = helper.communicate()
    return said.strip()


def words(planted: Mapping[str, Any]) -> str:
    """A document's ``canary`` in words."""
    return str(planted["words"])
