"""Several processes that write at once, into a store that is not there yet: nothing is lost, nothing is there twice."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from pathlib import Path

from documents import IDENTITY

from pytest_llmbench.history import entry
from pytest_llmbench.history.store import Store

HERE = Path(__file__).parent
PROCESSES, EACH, SHARED = 4, 8, 4

WRITER = """
import sys, time
from pathlib import Path
sys.path[:0] = [{here!r}, {root!r}]
from documents import document
from pytest_llmbench.history.store import Store
storage, mine = Path({storage!r}), int(sys.argv[1])
go = storage / "go"
(storage / f"ready-{{mine}}").touch()
until = time.monotonic() + 60
while not go.exists() and time.monotonic() < until:
    time.sleep(0.001)
with Store.open(storage) as store:
    for number in range({shared}):                # all of them record these, one of them first
        store.record(document(number), "shared")
    for number in range({each}):
        assert store.record(document(100 + {each} * mine + number), "own")
        assert len(store.sessions(limit=1)) == 1  # readers beside writers
    store.accept("card", ["decode[code]"], why=f"writer {{mine}}", since="S0000")
"""


def test_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    code = WRITER.format(here=str(HERE), root=str(HERE.parents[1]), storage=str(tmp_path), shared=SHARED, each=EACH)
    writers = [
        subprocess.Popen([sys.executable, "-W", "error", "-c", code, str(n)], stderr=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    try:
        while not all((tmp_path / f"ready-{n}").exists() for n in range(PROCESSES)):
            assert all(one.poll() is None for one in writers), [one.communicate()[1] for one in writers]
            time.sleep(0.01)
        (tmp_path / "go").touch()  # none of them has opened the store: all create and migrate it at the same time
        errors = [one.communicate(timeout=120)[1] for one in writers]
    finally:
        for one in writers:
            one.kill()
    assert [one.returncode for one in writers] == [0] * PROCESSES, errors
    with Store.open(tmp_path) as store:
        rows = store.sessions(limit=1000)
        expected = {f"S{n:04}" for n in [*range(SHARED), *range(100, 100 + PROCESSES * EACH)]}
        assert {row.session for row in rows} == expected
        assert len(rows) == len(expected)
        assert all(sum(row.statuses.values()) == 2 for row in rows)
        for baseline in store.baselines_of(IDENTITY).values():
            assert baseline.pinned
            assert len(set(baseline.sessions)) == 10
            starts = [entry.seconds(store.entries_of(one)[0].started) for one in baseline.sessions]
            assert all(later - earlier >= 1800 for earlier, later in itertools.pairwise(starts))
    lines = (tmp_path / "acceptances.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == PROCESSES
