"""Slow one process down by a stated share, from outside: it is stopped for that share of every period.

    python benchmarks/proof/slower.py PID SHARE [--period-ms 40]

What ``llmbench canary`` does to a server: pytest_llmbench/slowdown/stopper.py says how.
"""

from __future__ import annotations

import sys

from pytest_llmbench.slowdown import stopper

if __name__ == "__main__":
    sys.exit(stopper.main())
