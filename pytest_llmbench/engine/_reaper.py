"""Stop what pytest left behind. Run as ``python -I -S _reaper.py PARENT_PID`` with a pipe on stdin; stdlib only.

Lines on stdin: ``watch PGID``, ``forget PGID``. When the pipe ends or the parent is gone, every watched process group
gets TERM, TERM again, then KILL. The parent-death signal of the server itself does not reach what a wrapper started.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time

TERM_AGAIN_S = 1.0
KILL_AFTER_S = 2.0


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # we outlive the signal that ends pytest, by seconds
    watched = _listen(int(sys.argv[1]))
    _end([group for group, started in watched.items() if _still_that_group(group, started)])
    return 0


def _listen(parent: int) -> dict[int, str | None]:
    """The groups to end, with their leader's start time, once the parent is gone."""
    watched: dict[int, str | None] = {}
    sources = [0]
    # The pipe alone is not enough: a fork of pytest may hold its other end open after pytest is gone.
    if hasattr(os, "pidfd_open"):
        with contextlib.suppress(OSError):
            sources.append(os.pidfd_open(parent))
    buffer = b""
    while True:
        ready, _, _ = select.select(sources, [], [])
        if 0 in ready:
            data = os.read(0, 65536)
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                order, _, group = line.decode("ascii").partition(" ")
                if order == "watch":
                    watched[int(group)] = start_time(int(group))
                else:
                    watched.pop(int(group), None)
            if not data:
                return watched
        elif ready:
            return watched  # nothing more to read, and the parent is gone


def _end(groups: list[int]) -> None:
    begun = time.monotonic()
    steps = [(0.0, signal.SIGTERM), (TERM_AGAIN_S, signal.SIGTERM), (KILL_AFTER_S, signal.SIGKILL)]
    while groups and steps:
        at, number = steps[0]
        if time.monotonic() - begun >= at:
            steps.pop(0)
            for group in groups:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)
        time.sleep(0.02)
        groups = [group for group in groups if group_alive(group)]


def _still_that_group(group: int, started: str | None) -> bool:
    """False where the number now belongs to another process that came later."""
    now = start_time(group)
    return now is None or started is None or now == started


def start_time(pid: int) -> str | None:
    """The kernel's start time of a process; None where it is gone, or where there is no /proc."""
    fields = _stat(pid)
    return fields[19] if fields else None


def group_alive(group: int) -> bool:
    """Whether the group has a member that is not a zombie."""
    if not os.path.isdir("/proc/self"):  # noqa: PTH112 - pathlib would be this script's slowest import
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        if name.isdigit():
            fields = _stat(int(name))
            if fields and int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return False


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name: state, ppid, pgrp, session, … (proc_pid_stat(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            return file.read().decode("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return None


if __name__ == "__main__":
    sys.exit(main())
