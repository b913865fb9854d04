"""One sample of the machine after the other, each a plain record that is written to the telemetry file as it is.

A sample covers the time since the one before. Keys: ``t_ns`` (CLOCK_MONOTONIC at its end), ``dt_s``, ``cpus``, ``cpus_ours``
(those that the server may use), ``busy_s`` (CPU seconds of everything), ``ours_s``, ``irq_s``, ``steal_s``, ``pressure_s``;
``foreign_s`` = busy less interrupts less ours; ``processes``: those that are not ours and did something, the busiest first,
each with ``cpu_s`` in the last ``over_s`` and, of that, ``in_window_s`` in this sample; ``full_look``: whether every process
was read; ``attributed_s``: the sum of ``in_window_s``, unlisted ones included; ``reaped``: who waited for children that ended
meanwhile; ``server_rss_bytes``, ``memory_available_bytes``; ``gpus``.

To read every process each time is too dear. So those that were busy, or are new, are read in every sample, and all of
them only where these do not explain the foreign work, and every few seconds.
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
"""Samples after which every process is read although nothing was noticed: the busiest is reported always."""
LOOK_AGAIN = 4
"""The same while there is work that no process explains (short-lived ones): looking more often would not find it."""
HOT_SHARE = 0.05
"""Of one core: a process above it in a full look is read in every sample until the next one."""
HOT_MOST = 64
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
        self._look_ns = self._last.t_ns
        self._quiet_last = self._last
        self._quiet_ours_ticks = self._ours_ticks
        self._since_look = 0
        self._explained = True
        self._hot: set[int] = set()

    def set_server(self, pid: int | None) -> None:
        self._server = pid
        self._table.set_server(pid)

    def sample(self, *, look: bool = False) -> dict[str, Any]:
        """The time since the last sample. look: name the processes whatever they did."""
        table = self._table
        self._hot |= {process.pid for process in table.refresh()[:HOT_MOST] if not process.ours}
        hot = [table.all[pid] for pid in self._hot if pid in table.all]
        table.read([*table.ours(), *hot])
        reading = self._counters.read()
        sample = {"t_ns": reading.t_ns} | between(self._last, reading)
        begun_ns = self._last.t_ns
        ours_ticks = table.ours_ticks()
        sample["ours_s"] = max(0.0, (ours_ticks - self._ours_ticks) / TICKS_PER_S)
        self._last, self._ours_ticks = reading, ours_ticks
        sample["foreign_s"] = round(max(0.0, sample["busy_s"] - sample["irq_s"] - sample["ours_s"]), 4)
        sample["cpus_ours"] = self._cpus_ours()
        sample |= self._who(sample, hot, begun_ns, look=look)
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

    def _who(self, sample: dict[str, Any], hot: list[Process], begun_ns: int, *, look: bool) -> dict[str, Any]:
        """Who did the foreign work of this sample."""
        found = [self._used(process, begun_ns, sample["t_ns"]) for process in hot if process.pid in self._table.all]
        hot_s = sum(entry["in_window_s"] for _, entry in found)
        # Half the limit: what builds up slowly is looked at before it counts.
        enough = self._settings.limit_share / 2 * sample["dt_s"]
        self._since_look += 1
        unexplained = sample["foreign_s"] - hot_s > enough
        full = (
            look
            or self._since_look >= LOOK_EVERY
            or (unexplained and (self._explained or self._since_look >= LOOK_AGAIN))
        )
        reaped: list[dict[str, Any]] = []
        if full:
            found += self._others(sample, hot_s)
            reaped = self._reaped()
            self._look_ns, self._since_look = sample["t_ns"], 0
            self._hot = {entry["pid"] for _, entry in found if entry["cpu_s"] > HOT_SHARE * entry["over_s"]}
        attributed_s = sum(entry["in_window_s"] for _, entry in found)
        self._explained = sample["foreign_s"] - attributed_s <= enough
        found = [(process, entry) for process, entry in found if entry["cpu_s"] > 0]
        found.sort(key=lambda pair: -pair[1]["in_window_s"])
        return {
            "full_look": full,
            "attributed_s": round(attributed_s, 4),
            "processes": [
                entry | self._kind(process)
                for at, (process, entry) in enumerate(found)
                if at < LISTED or entry["in_window_s"] > enough
            ],
            "reaped": reaped,
        }

    def _used(self, process: Process, begun_ns: int, t_ns: int) -> tuple[Process, dict[str, Any]]:
        cpu_s = (process.ticks - process.seen_ticks) / TICKS_PER_S
        over_s = (t_ns - (process.seen_ns or begun_ns)) / 1e9
        process.seen_ticks, process.seen_ns = process.ticks, t_ns
        entry = {"pid": process.pid, "cpu_s": cpu_s, "over_s": round(over_s, 4), "in_window_s": cpu_s}
        return process, entry

    def _others(self, sample: dict[str, Any], hot_s: float) -> list[tuple[Process, dict[str, Any]]]:
        """The processes that were not read in every sample: what they used since the last full look, and how much of it
        can have been in this sample."""
        hot = self._hot
        others = [process for process in self._table.all.values() if not process.ours and process.pid not in hot]
        self._table.read(others)
        found = [
            self._used(process, self._look_ns, sample["t_ns"])
            for process in others
            if process.ticks != process.seen_ticks
        ]
        for process in others:
            process.seen_ns = sample["t_ns"]
        used_s = sum(entry["cpu_s"] for _, entry in found)
        left_s = max(0.0, sample["foreign_s"] - hot_s)
        if used_s > left_s:
            for _, entry in found:
                if entry["over_s"] > sample["dt_s"] * 1.2:
                    entry["in_window_s"] = round(entry["cpu_s"] * left_s / used_s, 4)
        return found

    def _reaped(self) -> list[dict[str, Any]]:
        """The process whose ended children used most since the last full look: short-lived ones are never seen."""
        most: tuple[int, Process] | None = None
        for process in self._table.all.values():
            ticks = process.children_ticks - process.seen_children
            process.seen_children = process.children_ticks
            if not process.ours and ticks > 0 and (most is None or ticks > most[0]):
                most = ticks, process
        return [{"name": self._table.display_name(most[1]), "cpu_s": most[0] / TICKS_PER_S}] if most else []

    def _kind(self, process: Process) -> dict[str, Any]:
        name = self._table.display_name(process)
        if process.kernel and process.comm.startswith(DRIVEN_BY_SETUP):
            return {"name": name, "kind": "kernel", "why": "a kernel thread that the setup itself drives"}
        if why := self._settings.ignored(name, process.comm):
            return {"name": name, "kind": "ignored", "why": why}
        return {"name": name, "kind": "foreign"}

    def _cpus_ours(self) -> int | None:
        """How many CPUs the server (or pytest) may use; None where that cannot be asked."""
        try:
            return len(os.sched_getaffinity(self._server or os.getppid()))
        except OSError:
            return None
