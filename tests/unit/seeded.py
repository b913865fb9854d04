"""A history of a real session's altered copies: sessions of a baseline must lie half an hour apart, and no test waits for that."""

from __future__ import annotations

import copy
import datetime as dt
import random
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench_folder import Bench


def seed(
    bench: Bench,
    report: dict[str, Any],
    sessions: int = 8,
    *,
    spread: float = 0.02,
    alter: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Record copies of a report a day apart, all before it, each figure's values with noise of that spread.

    alter: changes a copy before it is recorded.
    """
    noise = random.Random(7)
    began = dt.datetime.fromisoformat(report["started"])
    with Store.open(bench.path / ".llmbench") as store:
        for nth in range(sessions):
            made = copy.deepcopy(report)
            made["session"] = f"seeded-{nth:02}"
            ago = dt.timedelta(days=sessions - nth)
            made["started"], made["finished"] = (
                (began - ago).isoformat(),
                (began - ago + dt.timedelta(minutes=2)).isoformat(),
            )
            for cell in made["cells"]:
                cell["sessions"] = [made["session"]]
                for attempt in cell["attempts"]:
                    attempt["details"]["session"] = made["session"]
                    attempt["wall"] = (dt.datetime.fromisoformat(attempt["wall"]) - ago).isoformat()
                for figure in cell["figures"]:
                    if figure["median"] is not None:
                        times = 1 + noise.gauss(0, spread)
                        figure["median"] *= times
                        figure["values"] = [one * times for one in figure["values"]]
            if alter is not None:
                alter(made)
            assert store.record(made, bench.path / ".llmbench" / "runs" / made["session"] / "card")


def llmbench(bench: Bench, *args: str) -> subprocess.CompletedProcess[str]:
    """The command line in the folder, as a user calls it; a canary is a whole session with its re-measures."""
    code = "import sys; from pytest_llmbench.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args], cwd=bench.path, capture_output=True, text=True, timeout=180, check=False
    )
