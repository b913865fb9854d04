"""What the watch costs: its helper's own CPU time on a machine with many processes, in percent of one core.

    python benchmarks/watch_cost.py [--processes 500] [--seconds 30] [--foreign-load]

The helper's time is read from /proc/PID/schedstat, so a busy machine does not spoil it (it may only add cache misses).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pytest_llmbench.watch.session import TELEMETRY, SessionWatch, start_watch
from pytest_llmbench.watch.settings import Settings


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=500, help="processes on the machine, at least")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--foreign-load", action="store_true", help="with a busy foreign process: every sample looks")
    wanted = parser.parse_args()
    there = sum(entry.name.isdigit() for entry in Path("/proc").iterdir())
    # In a session of their own and without a parent of ours: foreign processes, as on a real machine.
    sleepers = [_foreign("import os; os.execvp('sleep', ['sleep', '600'])") for _ in range(wanted.processes - there)]
    if wanted.foreign_load:
        sleepers.append(_foreign("while True: pass"))
    try:
        with tempfile.TemporaryDirectory() as folder:
            watch = start_watch(Path(folder), Settings(), env={})
            assert isinstance(watch, SessionWatch), watch.facts
            assert watch.pid is not None
            time.sleep(2)  # its start is not part of it
            used, begun, lines = _used_s(watch.pid), time.monotonic(), _lines(folder)
            watch.begin("cost")
            time.sleep(wanted.seconds)
            word = watch.end()
            share = (_used_s(watch.pid) - used) / (time.monotonic() - begun)
            records = [json.loads(line) for line in (Path(folder) / TELEMETRY).read_text().splitlines()[lines:]]
            watch.close()
    finally:
        for pid in sleepers:
            os.kill(pid, 9)
    looks = sum(record["full_look"] for record in records)
    print(f"processes on the machine: {watch.facts['processes']}")
    print(f"samples {len(records)}, of them with a look at every process {looks}; word: {word.word}")
    print(f"helper: {share:.2%} of one core over {wanted.seconds:.0f} s")
    return 0


def _foreign(code: str) -> int:
    """Start a process that is not our child any more; its pid."""
    launcher = "import os, sys\nif pid := os.fork():\n    print(pid)\n    sys.exit()\nos.setsid()\nos.close(1)\n" + code
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", launcher], stdout=subprocess.PIPE, check=True)
    return int(answer.stdout)


def _used_s(pid: int) -> float:
    """CPU seconds of a process with one thread, to the nanosecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def _lines(folder: str) -> int:
    return len((Path(folder) / TELEMETRY).read_text().splitlines())


if __name__ == "__main__":
    sys.exit(main())
