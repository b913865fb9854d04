"""Slow one process down by a stated share, from outside: it is stopped for that share of every period.

    python benchmarks/proof/slower.py PID SHARE [--period-ms 40]

SIGSTOP and SIGCONT in turn, with the share kept over all time so far (a sleep that took too long is made up for by the
next ones). A process that computes all the time loses exactly that share; nothing else on the machine is touched, and
clocks go on, so client and server agree on what they saw. Runs until it is ended (SIGTERM) or the process is gone; leaves it
running. Prints what it did at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from types import FrameType  # noqa: TC003 - a signal handler's signature


class EndedError(Exception):
    """Asked to end."""


def _end(_number: int, _frame: FrameType | None) -> None:
    raise EndedError


def slow(pid: int, share: float, period_s: float) -> float:
    """Stop and continue until ended; the share of time in which it was stopped."""
    began, stopped_s = time.monotonic(), 0.0
    try:
        while True:
            elapsed = time.monotonic() - began
            # By the end of this period, share * (elapsed + period) should have been spent stopped.
            nap = min(max(share * (elapsed + period_s) - stopped_s, 0.0), period_s)
            if nap > 0:
                at = time.monotonic()
                os.kill(pid, signal.SIGSTOP)
                try:
                    time.sleep(nap)
                finally:
                    os.kill(pid, signal.SIGCONT)
                    stopped_s += time.monotonic() - at
            time.sleep(max(period_s - nap, 0.001))
    except (EndedError, ProcessLookupError):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return stopped_s / max(time.monotonic() - began, 1e-9)


def main() -> int:
    options = argparse.ArgumentParser(description="Stop a process for a share of every period.")
    options.add_argument("pid", type=int)
    options.add_argument("share", type=float, help="0.05: it loses 5 %% of its time")
    options.add_argument("--period-ms", type=float, default=40.0)
    asked = options.parse_args()
    if not 0 < asked.share < 0.9 or asked.period_ms < 5:
        print("share lies between 0 and 0.9, the period is 5 ms or more", file=sys.stderr)
        return 4
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    print(f"{slow(asked.pid, asked.share, asked.period_ms / 1e3):.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
