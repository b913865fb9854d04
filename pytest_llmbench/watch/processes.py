"""The processes of this machine and the CPU time they used, read from /proc (proc_pid_stat(5)); Linux only.

A full look at 500 processes costs 3 to 6 ms, so it is taken only where there is foreign work to name (sampler.py). ``stat`` files stay open, which is cheaper, and a pid that comes back as another
process cannot be mistaken for the old one.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STAT_BYTES = 1024
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD
_CODE = re.compile(r"-[a-zA-Z]*[ce]")  # -c, -lc, -e: a program on the command line, which is nobody's business
_INTERPRETERS = ("python", "node", "java", "ruby", "perl", "bash", "sh", "php", "deno", "bun")


@dataclass(slots=True)
class Process:
    """One process. ticks: its CPU time so far; children_ticks: that of its ended children that it waited for.

    seen_ticks, seen_children: the same when a sample last counted it, at seen_ns (0: born since the last sample);
    quiet_ticks: when the last quiet record was taken. raw: the last reading, which a sleeping process repeats.
    """

    pid: int
    fd: int
    comm: str
    parent: int
    session: int
    kernel: bool
    ticks: int
    children_ticks: int
    rss_pages: int
    raw: bytes
    ours: bool = False
    server: bool = False
    seen_ticks: int = 0
    seen_children: int = 0
    seen_ns: int = 0
    quiet_ticks: int = 0
    name: str = ""


class ProcessTable:
    """Every process there is, and which are ours: the roots and whatever descends from them.

    A child that outlives its parent stays ours, and so does every process in a session that one of ours leads.
    """

    def __init__(self, roots: set[int], proc: str = "/proc", *, open_files: int = 4096) -> None:
        self._roots, self._proc, self._open_files = set(roots), proc, open_files
        self._server: int | None = None
        self._open = 0
        self._ended_ours_ticks = 0
        self.all: dict[int, Process] = {}
        self.refresh()
        for process in self.all.values():  # what they did before we looked is nobody's business
            process.seen_ticks = process.quiet_ticks = process.ticks
            process.seen_children = process.children_ticks

    def set_server(self, pid: int | None) -> None:
        """The process tree whose memory is the server's; ours too, wherever it descends from."""
        self._server = pid
        for process in self.all.values():
            self._classify(process)

    def refresh(self) -> list[Process]:
        """Learn of processes that began and ended since the last call; those that began."""
        there = {int(name) for name in os.listdir(self._proc) if name[0] in "123456789"}  # noqa: PTH208 - half the cost
        for pid in self.all.keys() - there:
            self._drop(pid)
        new = sorted(there - self.all.keys())
        for pid in new:
            process = self._first_read(pid)
            if process is not None:
                self.all[pid] = process
        born = [self.all[pid] for pid in new if pid in self.all]
        for process in born:
            self._classify(process)
        return born

    def read(self, processes: Iterable[Process]) -> None:
        """Bring their CPU times up to date; those that are gone are dropped."""
        for process in processes:
            try:
                raw = os.pread(process.fd, _STAT_BYTES, 0) if process.fd >= 0 else self._read_once(process.pid)
            except (ProcessLookupError, FileNotFoundError):
                self._drop(process.pid)
                continue
            if raw == process.raw:
                continue
            process.raw = raw
            fields = raw[raw.rindex(b")") + 2 :].split(b" ", 22)
            process.ticks = int(fields[11]) + int(fields[12])
            process.children_ticks = int(fields[13]) + int(fields[14])
            process.rss_pages = int(fields[21])

    def ours(self) -> list[Process]:
        return [process for process in self.all.values() if process.ours]

    def ours_ticks(self) -> int:
        """CPU ticks of ours so far, ended ones included: a number to take differences of.

        A child's time moves into its parent's account when the parent has waited for it. Where a process of ours ended and
        nobody of ours waited, its last reading stays.
        """
        return sum(process.ticks + process.children_ticks for process in self.ours()) + self._ended_ours_ticks

    def server_rss_bytes(self) -> int | None:
        """Resident memory of the server's tree, pages that its processes share counted in each; None without a server."""
        tree = [process for process in self.all.values() if process.server]
        return sum(process.rss_pages for process in tree) * PAGE_BYTES if tree else None

    def display_name(self, process: Process) -> str:
        """The program's name; of an interpreter with its script (``python (hog.py)``), and no other argument."""
        if not process.name:
            process.name = process.comm
            if not process.kernel and process.comm.rstrip("0123456789.") in _INTERPRETERS:
                script = _script(self._command(process.pid))
                process.name = f"{process.comm} ({script})" if script else process.comm
        return process.name

    # ---- reading ----

    def _first_read(self, pid: int) -> Process | None:
        fd = -1
        try:
            if self._open < self._open_files:
                fd = os.open(f"{self._proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
                raw = os.pread(fd, _STAT_BYTES, 0)
            else:
                raw = self._read_once(pid)
            left, right = raw.index(b"("), raw.rindex(b")")
        except (OSError, ValueError):  # it ended while we looked, or is hidden from us
            if fd >= 0:
                os.close(fd)
            return None
        self._open += fd >= 0
        fields = raw[right + 2 :].split(b" ", 22)
        return Process(
            pid=pid,
            fd=fd,
            comm=raw[left + 1 : right].decode("utf-8", "replace"),
            parent=int(fields[1]),
            session=int(fields[3]),
            kernel=bool(int(fields[6]) & _KERNEL_THREAD),
            ticks=int(fields[11]) + int(fields[12]),
            children_ticks=int(fields[13]) + int(fields[14]),
            rss_pages=int(fields[21]),
            raw=raw,
        )

    def _read_once(self, pid: int) -> bytes:
        fd = os.open(f"{self._proc}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _STAT_BYTES)
        finally:
            os.close(fd)

    def _command(self, pid: int) -> list[str]:
        with contextlib.suppress(OSError), open(f"{self._proc}/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read(4096).decode("utf-8", "replace").split("\0")
        return []

    def _drop(self, pid: int) -> None:
        process = self.all.pop(pid, None)
        if process is None:
            return
        if process.fd >= 0:
            os.close(process.fd)
            self._open -= 1
        parent = self.all.get(process.parent)
        if process.ours and not (parent is not None and parent.ours):
            self._ended_ours_ticks += process.ticks + process.children_ticks

    # ---- whose ----

    def _classify(self, process: Process) -> None:
        line = self._line(process)
        process.server = self._server is not None and self._server in line
        process.ours = (  # once ours, always ours: also when its parent has ended
            process.ours
            or process.server
            or not self._roots.isdisjoint(line)
            or any((known := self.all.get(pid)) is not None and known.ours for pid in line[1:])
            or ((leader := self.all.get(process.session)) is not None and leader.ours)
        )

    def _line(self, process: Process) -> list[int]:
        """The process and its ancestors, nearest first."""
        line = [process.pid]
        parent = process.parent
        while parent > 0 and parent not in line:
            line.append(parent)
            above = self.all.get(parent)
            if above is None:
                break
            parent = above.parent
        return line


def _script(command: list[str]) -> str | None:
    """What an interpreter runs: the script's name, ``-m module`` or ``-c``; nothing else of its command line."""
    words = iter(command[1:])
    for word in words:
        if word in {"-W", "-X"}:  # Python's options with a value of their own
            next(words, None)
        elif _CODE.fullmatch(word):
            return "-c"
        elif word.startswith("-m"):
            return f"-m {word[2:] or next(words, '')}".rstrip()
        elif word and not word.startswith("-"):
            return PurePath(word).name
    return None
