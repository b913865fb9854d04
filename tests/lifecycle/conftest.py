"""The folder that whole sessions run in."""

from __future__ import annotations

import signal

from bench_folder import Bench, bench_folder, first_report, make_card

__all__ = ["Bench", "bench_folder", "first_report", "make_card"]

# Under nohup, or in the background of a shell, signals are ignored, and children would inherit that: the tests send them.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)
