"""What the installed plugin adds to a plain ``pytest --version``: the goal is under 30 ms.

    python benchmarks/import_cost.py [--pairs 40]

Both sides are the same interpreter and the same pytest with the same third-party plugins; one side switches ours off
(``-p no:pytest_llmbench.plugin``). Pairs are interleaved in alternating order, so that slow stretches of the machine hit
both; the figure is the median of the pairs' differences, with an interval that needs no distribution (order statistics,
95 %). CPU time stands beside wall time: on a busy machine it is the steadier one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from math import comb
from pathlib import Path

GOAL_MS = 30.0
OFF = ("-p", "no:pytest_llmbench.plugin")


def main() -> int:
    options = argparse.ArgumentParser(description="What the plugin adds to pytest --version.")
    options.add_argument("--pairs", type=int, default=40)
    pairs = options.parse_args().pairs
    once()  # compiles what has to be compiled
    once(*OFF)
    with_us: list[tuple[float, float]] = []
    without: list[tuple[float, float]] = []
    for number in range(pairs):
        for on in (True, False) if number % 2 else (False, True):
            (with_us if on else without).append(once(*(() if on else OFF)))
    print(f"pytest --version, {pairs} interleaved pairs, ms:")
    for at, name in enumerate(("wall", "CPU")):
        on_ms, off_ms = [one[at] for one in with_us], [one[at] for one in without]
        added = sorted(a - b for a, b in zip(on_ms, off_ms, strict=True))
        low, high = median_interval(added)
        print(
            f"  {name:4}  without {statistics.median(off_ms):6.1f}   with {statistics.median(on_ms):6.1f}   added "
            f"{statistics.median(added):+5.1f} (95 % {low:+.1f} … {high:+.1f}), "
            f"ratio {statistics.median(on_ms) / statistics.median(off_ms):.3f}"
        )
    print(f"goal: under {GOAL_MS:.0f} ms")
    return 0


def once(*args: str) -> tuple[float, float]:
    """Wall and CPU milliseconds of one ``pytest --version --version`` (twice: it names the plugins, so it loads them)."""
    command = [sys.executable, "-m", "pytest", *args, "--version", "--version"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, cwd=Path(sys.prefix)
    )
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    if process.returncode != 0 or (b"pytest-llmbench" not in text) != bool(args):
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{text.decode(errors='replace')}")
    return wall * 1e3, (usage.ru_utime + usage.ru_stime) * 1e3


def median_interval(ordered: list[float], share: float = 0.95) -> tuple[float, float]:
    """The narrowest pair of order statistics around the median that covers it with this probability."""
    n = len(ordered)
    for k in range(n // 2, 0, -1):
        covered = sum(comb(n, i) for i in range(k, n - k + 1)) / 2**n
        if covered >= share:
            return ordered[k - 1], ordered[n - k]
    return ordered[0], ordered[-1]


if __name__ == "__main__":
    sys.exit(main())
