"""Become the server: tie our life to pytest's, then exec. Run as ``python -I -S _exec_shim.py ERROR_FD``; stdlib only.

Reads {"argv", "env", "parent", "death_signal"} as JSON from stdin. A failed exec is told through ERROR_FD as its errno;
a successful one closes it. The environment comes this way, and not at our own start, so that a card's
``LD_LIBRARY_PATH`` or ``PATH`` meets the server alone.
"""

from __future__ import annotations

import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> int:
    error_fd = int(sys.argv[1])
    os.set_inheritable(error_fd, False)  # noqa: FBT003 - positional by its own signature
    order = json.loads(sys.stdin.buffer.read() or b"null")
    if order is None:
        return 1  # the parent died before it gave the order
    if sys.platform == "linux":
        _die_with_parent(order["death_signal"])
        if os.getppid() != order["parent"]:
            return 1  # it died before the signal was set
    # Python ignores these two; an ignored signal would stay ignored in the server.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    argv, env = order["argv"], order["env"]
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell is the point
    except OSError as error:
        os.write(error_fd, str(error.errno).encode())
    return 127


def _die_with_parent(death_signal: int) -> None:
    try:
        import ctypes  # noqa: PLC0415 - not every Python is built with it

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    except (ImportError, OSError, AttributeError) as error:
        sys.stderr.write(f"# llmbench: no parent-death signal ({error}); only the reaper watches this process\n")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
