"""How a paced process comes to a bad end, and which start it is."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from pytest_llmbench.errors import InputError


def die(code: int, signal_name: str | None) -> NoReturn:
    """End this process at once, without a word to any client: by exit code, or by a signal."""
    sys.stderr.flush()
    if signal_name is not None:
        number = signal_number(signal_name)
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)
    os._exit(code)


def signal_number(name: str) -> signal.Signals:
    """SIGKILL, SIGSEGV, … Raises InputError for a name that is no signal."""
    try:
        return signal.Signals[name]
    except KeyError:
        raise InputError("paced.exit_signal", name, "is not a signal", 'use a name as in "SIGKILL"') from None


def count_start(path: str | None) -> int:
    """The number of this process start, from 1, kept in a file that several starts may share at once."""
    if path is None:
        return 1
    with Path(path).open("a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        text = file.read().strip()
        if text and not text.isdigit():
            raise InputError("paced.counter_file", path, "does not hold a number", "name a file of its own")
        number = int(text or "0") + 1
        file.truncate(0)
        file.write(str(number))
    return number
