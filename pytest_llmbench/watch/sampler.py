"""One sample of the machine after the other, each a plain record that is written to the telemetry file as it is.

A sample covers the time since the one before. Keys: ``t_ns`` (CLOCK_MONOTONIC at its end), ``dt_s``, ``cpus``, ``busy_s``
(CPU seconds of everything), ``ours_s``, ``irq_s``, ``steal_s``, ``pressure_s``; ``foreign_s`` = busy less interrupts less ours;
``processes``: those that are not ours (None: no look was taken, for all foreign work together was within the limit);
``looked_s``: the seconds that their CPU times cover; ``attributed_s``: the CPU time of all of them; ``reaped``: parents
whose children ended meanwhile; ``server_rss_bytes``, ``memory_available_bytes``; ``gpus``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pytest_llmbench.watch.counters import between
from pytest_llmbench.watch.processes import TICKS_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_llmbench.watch.counters import Counters, Reading
    from pytest_llmbench.watch.processes import Process, ProcessTable
    from pytest_llmbench.watch.settings import Settings

LOOK_EVERY = 10
"""Samples after which a look is taken although nothing was noticed: the busiest process is reported always."""
LISTED = 3
# Kernel threads that work because the setup moves memory, data or interrupts; others (md resync, zfs, …) are foreign work.
DRIVEN_BY_SETUP = (
    "kswapd",
    "kcompactd",
    "khugepaged",
    "ksoftirqd",
    "migration",
    "rcu",
    "irq/",
    "nv_queue",
    "nvidia",
    "UVM",
)


class Sampler:
    """Takes samples. gpus: a sample of the GPUs, or None where none is watched."""

    def __init__(
        self,
        settings: Settings,
        counters: Counters,
        table: ProcessTable,
        gpus: Callable[[], list[dict[str, Any]]] | None = None,
    ) -> None:
        self._settings, self._counters, self._table, self._gpus = settings, counters, table, gpus
        self._server: int | None = None
        self._last: Reading = counters.read()
        table.read(table.ours())
        self._ours_ticks = table.ours_ticks()
        self._look_t_ns = self._quiet_t_ns = self._last.t_ns
        self._quiet_last = self._last
        self._quiet_ours_ticks = self._ours_ticks
        self._since_look = 0

    def set_server(self, pid: int | None) -> None:
        self._server = pid
        self._table.set_server(pid)

    def sample(self, *, look: bool = False) -> dict[str, Any]:
        """The time since the last sample. look: name the processes whatever they did."""
        table = self._table
        table.refresh()
        table.read(table.ours())
        reading = self._counters.read()
        sample = {"t_ns": reading.t_ns} | between(self._last, reading)
        ours_ticks = table.ours_ticks()
        sample["ours_s"] = max(0.0, (ours_ticks - self._ours_ticks) / TICKS_PER_S)
        self._last, self._ours_ticks = reading, ours_ticks
        sample["foreign_s"] = round(max(0.0, sample["busy_s"] - sample["irq_s"] - sample["ours_s"]), 4)
        sample["cpus_ours"] = self._cpus_ours()
        self._since_look += 1
        # Half the limit: what builds up slowly is looked at before it counts.
        noticed = sample["foreign_s"] > self._settings.limit_share / 2 * sample["dt_s"]
        if look or noticed or self._since_look >= LOOK_EVERY:
            sample |= self._look(reading.t_ns)
        else:
            sample["processes"] = None
        sample["server_rss_bytes"] = table.server_rss_bytes()
        sample["memory_available_bytes"] = self._counters.memory_available_bytes()
        if self._gpus is not None:
            sample["gpus"] = self._gpus()
        return sample

    def quiet(self) -> dict[str, Any]:
        """A record of the quiet check: what happened since its last one; every process above the limit, none ignored.

        ``processes``: name and share (of one core) of those above the limit; ``busiest``; ``without_pid``: the share of
        foreign work that no process accounts for; ``steal``.
        """
        table = self._table
        table.refresh()
        table.read(list(table.all.values()))
        reading = self._counters.read()
        whole = between(self._quiet_last, reading)
        dt_s = whole["dt_s"]
        ours_ticks = table.ours_ticks()
        ours_s = max(0.0, (ours_ticks - self._quiet_ours_ticks) / TICKS_PER_S)
        self._quiet_last, self._quiet_ours_ticks = reading, ours_ticks
        shares: list[tuple[float, str]] = []
        for process in table.all.values():
            used_s = (process.ticks - process.quiet_ticks) / TICKS_PER_S
            process.quiet_ticks = process.ticks
            if used_s > 0 and not process.ours:
                shares.append((round(used_s / dt_s, 3), table.display_name(process)))
        shares.sort(reverse=True)
        without = whole["busy_s"] - whole["irq_s"] - ours_s - sum(share for share, _ in shares) * dt_s
        limit = self._settings.limit_share
        return {
            "t_ns": reading.t_ns,
            "dt_s": dt_s,
            "limit_share": limit,
            "processes": [{"name": name, "share": share} for share, name in shares if share > limit],
            "busiest": {"name": shares[0][1], "share": shares[0][0]} if shares else None,
            "without_pid": round(max(0.0, without) / dt_s, 3),
            "steal": round(whole["steal_s"] / dt_s, 3),
        }

    # ---- who ----

    def _look(self, t_ns: int) -> dict[str, Any]:
        """Who did it: every process that is not ours, since the last look."""
        table = self._table
        table.read([process for process in table.all.values() if not process.ours])
        used: list[tuple[int, Process]] = []
        reaped: list[tuple[int, Process]] = []
        for process in table.all.values():
            ticks = process.ticks - process.look_ticks
            children = process.children_ticks - process.look_children
            process.look_ticks, process.look_children = process.ticks, process.children_ticks
            if not process.ours:
                used += [(ticks, process)] if ticks > 0 else []
                reaped += [(children, process)] if children > 0 else []
        looked_s = (t_ns - self._look_t_ns) / 1e9
        self._look_t_ns, self._since_look = t_ns, 0
        used.sort(key=lambda pair: -pair[0])
        reaped.sort(key=lambda pair: -pair[0])
        much = self._settings.limit_share / 2 * looked_s * TICKS_PER_S
        return {
            "looked_s": round(looked_s, 6),
            "attributed_s": sum(ticks for ticks, _ in used) / TICKS_PER_S,
            "processes": [
                self._entry(ticks, process) for at, (ticks, process) in enumerate(used) if at < LISTED or ticks > much
            ],
            "reaped": [
                {"name": table.display_name(process), "cpu_s": ticks / TICKS_PER_S} for ticks, process in reaped[:1]
            ],
        }

    def _entry(self, ticks: int, process: Process) -> dict[str, Any]:
        name = self._table.display_name(process)
        entry: dict[str, Any] = {"pid": process.pid, "name": name, "cpu_s": ticks / TICKS_PER_S, "kind": "foreign"}
        if process.kernel and process.comm.startswith(DRIVEN_BY_SETUP):
            entry |= {"kind": "kernel", "why": "a kernel thread that the setup itself drives"}
        elif why := self._settings.ignored(name, process.comm):
            entry |= {"kind": "ignored", "why": why}
        return entry

    def _cpus_ours(self) -> int | None:
        """How many CPUs the server (or pytest) may use; None where that cannot be asked."""
        try:
            return len(os.sched_getaffinity(self._server or os.getppid()))
        except OSError:
            return None
