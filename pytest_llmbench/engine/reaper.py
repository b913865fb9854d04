"""The client side of the reaper: one helper process per pytest process, started with the first server."""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = Path(__file__).with_name("_reaper.py")


class Reaper:
    """Tells the helper which process groups must not outlive us."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._groups: set[int] = set()

    @property
    def pid(self) -> int | None:
        """The helper's pid, once it runs."""
        return self._process.pid if self._process is not None else None

    def watch(self, group: int) -> None:
        self._start_where_needed()
        self._groups.add(group)
        self._send(f"watch {group}\n")

    def forget(self, group: int) -> None:
        """The group is gone: its number may come back as somebody else's."""
        if self._owner == os.getpid() and group in self._groups:
            self._groups.discard(group)
            self._send(f"forget {group}\n")

    def close(self) -> None:
        """End of our process: what is still watched gets stopped now."""
        if self._process is None or self._owner != os.getpid() or self._process.stdin is None:
            return
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process = None

    def _start_where_needed(self) -> None:
        if self._process is not None and self._owner == os.getpid() and self._process.poll() is None:
            return
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._owner != os.getpid():
            self._groups = set()  # after a fork: the parent's groups are the parent's business
            self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            bufsize=0,
            start_new_session=True,
        )
        for group in self._groups:
            self._send(f"watch {group}\n")

    def _send(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            return
        try:
            self._process.stdin.write(line.encode("ascii"))
        except BrokenPipeError:
            # Somebody ended the helper. A new one learns every group that is still ours.
            self._process.wait()
            self._start_where_needed()


REAPER = Reaper()
atexit.register(REAPER.close)
