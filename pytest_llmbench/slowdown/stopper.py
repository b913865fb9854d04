"""Slow processes down by a stated share, from outside: they are stopped for that share of every period. Stdlib only.

    python -I -S stopper.py PID SHARE [--group] [--period-ms 40] [--while-stdin]

SIGSTOP and SIGCONT in turn, with the share kept over all time so far (a sleep that took too long is made up for by the
next ones). A process that computes all the time loses exactly that share; nothing else on the machine is touched, and
clocks go on, so client and server agree on what they saw. Runs until it is ended (SIGTERM), its standard input ends
(--while-stdin), or the process is gone. Prints the share of time in which it kept the process stopped.

Nothing is left stopped: the work is done by a child, and each of the two sends SIGCONT when the other is gone, however it ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Callable  # noqa: TC003 - this script runs without the typing-only imports' benefit
from types import FrameType  # noqa: TC003

_ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class EndedError(Exception):
    """Asked to end."""


def _end(_number: int, _frame: FrameType | None) -> None:
    raise EndedError


def slow(
    send: Callable[[int], None], share: float, period_s: float, is_over: Callable[[float], bool]
) -> tuple[float, float]:
    """Stop and continue until ended; seconds stopped, and seconds in all.

    send: sends a signal, and raises ProcessLookupError where there is nobody left. is_over: waits for so many seconds, and
    says whether to end.
    """
    began, stopped_s = time.monotonic(), 0.0
    try:
        while True:
            elapsed = time.monotonic() - began
            # By the end of this period, share * (elapsed + period) should have been spent stopped.
            nap = min(max(share * (elapsed + period_s) - stopped_s, 0.0), period_s)
            if nap > 0:
                at = time.monotonic()
                send(signal.SIGSTOP)
                try:
                    time.sleep(nap)
                finally:
                    send(signal.SIGCONT)
                    stopped_s += time.monotonic() - at
            if is_over(max(period_s - nap, 0.001)):
                break
    except (EndedError, ProcessLookupError):
        pass
    finally:
        with contextlib.suppress(ProcessLookupError):
            send(signal.SIGCONT)
    return stopped_s, time.monotonic() - began


def main() -> int:
    options = argparse.ArgumentParser(description="Stop a process for a share of every period.")
    options.add_argument("pid", type=int)
    options.add_argument("share", type=float, help="0.05: it loses 5 %% of its time")
    options.add_argument("--period-ms", type=float, default=40.0)
    options.add_argument("--group", action="store_true", help="PID is a process group")
    options.add_argument("--while-stdin", action="store_true", help="end when standard input ends")
    asked = options.parse_args()
    if not 0 < asked.share < 0.9 or asked.period_ms < 5:
        print("share lies between 0 and 0.9, the period is 5 ms or more", file=sys.stderr)  # noqa: T201
        return 4
    kill = os.killpg if asked.group else os.kill

    def send(number: int) -> None:
        kill(asked.pid, number)

    # From here on a signal that ends us must find somebody who waits for the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    guard, (told, tell) = os.getpid(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(told)
        _work(send, asked, guard, tell)
    os.close(tell)
    return _guard(send, child, told)


def _work(send: Callable[[int], None], asked: argparse.Namespace, guard: int, tell: int) -> None:
    def is_over(seconds: float) -> bool:
        sources = [0] if asked.while_stdin else []
        ready, _, _ = select.select(sources, [], [], seconds)
        return os.getppid() != guard or (bool(ready) and not os.read(0, 4096))

    for number in _ENDS:
        signal.signal(number, _end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    code = 1
    try:
        stopped_s, whole_s = slow(send, asked.share, asked.period_ms / 1e3, is_over)
        os.write(tell, f"{stopped_s / max(whole_s, 1e-9):.4f}\n".encode())
        code = 0
    finally:
        os._exit(code)  # nothing of the guard's (its buffers) is the child's to clean up


def _guard(send: Callable[[int], None], child: int, told: int) -> int:
    """Wait for the child; whatever ended it, the process goes on."""

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)

    for number in _ENDS:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        send(signal.SIGCONT)
    found = os.read(told, 100).decode()
    with contextlib.suppress(BrokenPipeError):
        print(found.strip() or "broken off", flush=True)  # noqa: T201 - what it did
    return 0 if found and os.waitstatus_to_exitcode(status) == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
