"""Counters of the whole machine: CPU time, steal, pressure and memory, read from /proc (proc_stat(5), PSI).

Busy time is what is left of wall time after idle, I/O wait and steal: on kernels that stop the tick the idle counters are
exact, while user and system time are sampled and err by tens of percent of a core on a machine with many CPUs.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.watch.processes import TICKS_PER_S

_PRESSURE = (("cpu", "some"), ("memory", "some"), ("memory", "full"), ("io", "some"), ("io", "full"))


@dataclass(frozen=True, slots=True)
class Reading:
    """Counters at one moment, in seconds of CPU since the boot; t_ns: CLOCK_MONOTONIC.

    pressure_s: seconds in which some task waited (or all did: "full"), by ``cpu_some``, ``memory_full``, …
    """

    t_ns: int
    cpus: int
    idle_s: float
    irq_s: float
    steal_s: float
    pressure_s: dict[str, float]


class Counters:
    """Reader of the machine's counters; its files stay open. missing: what this system does not tell, and why."""

    def __init__(self, proc: str = "/proc") -> None:
        self.missing: dict[str, str] = {}
        self._stat = os.open(f"{proc}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._memory = os.open(f"{proc}/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        self._pressure: dict[str, int] = {}
        for resource in ("cpu", "memory", "io"):
            try:
                fd = os.open(f"{proc}/pressure/{resource}", os.O_RDONLY | os.O_CLOEXEC)
                os.pread(fd, 1, 0)  # with psi=0 the file is there and cannot be read
            except OSError as exc:
                self.missing[f"pressure.{resource}"] = f"this kernel gives no pressure figures ({exc.strerror})"
            else:
                self._pressure[resource] = fd

    def read(self) -> Reading:
        t_ns = time.monotonic_ns()
        lines = _whole(self._stat).split(b"\n")
        fields = lines[0].split()
        ticks = [int(field) for field in fields[1:]] + [0] * 10  # old kernels have fewer fields
        cpus = 0
        while cpus + 1 < len(lines) and lines[cpus + 1].startswith(b"cpu"):
            cpus += 1
        return Reading(
            t_ns=t_ns,
            cpus=cpus,
            idle_s=(ticks[3] + ticks[4]) / TICKS_PER_S,
            irq_s=(ticks[5] + ticks[6]) / TICKS_PER_S,
            steal_s=ticks[7] / TICKS_PER_S,
            pressure_s=self._pressures(),
        )

    def memory_available_bytes(self) -> int | None:
        """What the kernel would give without swapping (``MemAvailable``); None where it does not say."""
        for line in os.pread(self._memory, 1024, 0).split(b"\n"):
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None

    def _pressures(self) -> dict[str, float]:
        found = {}
        for resource, kind in _PRESSURE:
            if resource in self._pressure:
                for line in os.pread(self._pressure[resource], 512, 0).decode("ascii").splitlines():
                    word, _, rest = line.partition(" ")
                    if word == kind:
                        found[f"{resource}_{kind}"] = int(rest.rpartition("total=")[2]) / 1e6
        return found


def between(before: Reading, after: Reading) -> dict[str, Any]:
    """What happened between two readings: seconds of CPU (``busy_s``, ``irq_s``, ``steal_s``) and of pressure."""
    dt_s = (after.t_ns - before.t_ns) / 1e9
    steal_s = max(0.0, after.steal_s - before.steal_s)
    idle_s = max(0.0, after.idle_s - before.idle_s)
    return {
        "dt_s": round(dt_s, 6),
        "cpus": after.cpus,
        "busy_s": round(max(0.0, dt_s * min(before.cpus, after.cpus) - idle_s - steal_s), 4),
        "irq_s": round(max(0.0, after.irq_s - before.irq_s), 4),
        "steal_s": round(steal_s, 4),
        "pressure_s": {
            key: round(max(0.0, after.pressure_s[key] - before.pressure_s[key]), 6)
            for key in after.pressure_s
            if key in before.pressure_s
        },
    }


def _whole(fd: int) -> bytes:
    """/proc/stat has a line a CPU and may be longer than a guess."""
    size = 16384
    while len(data := os.pread(fd, size, 0)) == size:
        size *= 4
    return data
