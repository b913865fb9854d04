"""What the history costs with 100,000 sessions: the questions that the gate asks, and the store's size.

Fills a store with sessions of several cards on several machines (10 figures each), then asks what the gate asks for one
session, each time for another card: with the store open (``opened``), and opening it first (``opened anew``). CPU is the
process's own time: on a busy machine it says more than the clock.

    python benchmarks/history_speed.py [--sessions 100000] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from pytest_llmbench import canonical
from pytest_llmbench.files import now
from pytest_llmbench.history import keys, schema, write
from pytest_llmbench.history.connect import writing
from pytest_llmbench.history.entry import CellLine, FigureLine, SessionEntry, utc
from pytest_llmbench.history.store import Store
from pytest_llmbench.judging import MACHINE_SESSIONS, OUTCOMES

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

CARDS, MACHINES, BATCH = 8, 4, 1000
CELLS = {
    "decode[code]": ("decode_tok_s", "ttft_ms", "words_s"),
    "decode[prose]": ("decode_tok_s", "ttft_ms", "words_s"),
    "prefill[2048]": ("prefill_tok_s", "ttft_ms"),
    "prefill[8192]": ("prefill_tok_s", "ttft_ms"),
}


def identity(card: int, machine: int) -> dict[str, Any]:
    args = ["-ngl", "all", "-fa", "on", "-c", str(16384 + card), "-np", "1", "--cache-ram", "0"]
    return {
        "card_id": f"card-{card}",
        "card": {
            "model": {"sha256": canonical.sha256(card)},
            "draft_model": None,
            "engine_kind": "llama-server",
            "args": args,
            "env": {},
            "wrapper": [],
            "sampling": {"temperature": 0.7, "top_p": 0.95},
            "seed": 42,
            "thinking": {"on": {}, "off": {"chat_template_kwargs": {"enable_thinking": False}}},
            "prompts_version": "1",
            "cells": {cell: {"id": cell, "part": cell.partition("[")[0], "max_tokens": 512} for cell in CELLS},
        },
        "machine": {
            "host_id": f"{machine:016x}",
            "cpu": "a CPU",
            "gpus": [["NVIDIA GeForce RTX 3090", f"GPU-{machine}", 350.0]],
        },
    }


def environment(number: int) -> dict[str, Any]:
    return {
        "engine": {"version": f"b{12000 + number // 500}", "sha256": canonical.sha256(number // 500)},
        "machine": {"driver": f"580.{number // 5000}", "kernel": f"6.{number // 3000}", "os": "Debian"},
        "software": {"pytest_llmbench": "0.1.0", "python": "3.11.7", "httpx": "0.28.1"},
    }


def entry(number: int, chance: random.Random, known: dict[tuple[int, int], dict[str, Any]]) -> SessionEntry:
    card, machine = number % CARDS, number // CARDS % MACHINES
    if (card, machine) not in known:
        one = identity(card, machine)
        known[card, machine] = one | {"keys": keys.cell_keys(one), "k": keys.card_key(one), "m": keys.machine_key(one)}
    one = known[card, machine]
    started = utc(f"{_iso(1_500_000_000 + 60 * number)}")
    return SessionEntry(
        session=f"{number:08d}-{chance.randrange(65536):04x}",
        card_id=one["card_id"],
        started=started,
        finished=utc(_iso(1_500_000_000 + 60 * number + 50)),
        complete=True,
        tool="pytest-llmbench 0.1.0",
        folder=f"runs/{number:08d}/{one['card_id']}",
        attributes=keys.attributes(environment(number)),
        card_key=one["k"],
        card=keys.common_card(one),
        machine_key=one["m"],
        machine=one["machine"],
        cells=tuple(
            CellLine(
                cell=cell,
                part=cell.partition("[")[0],
                status="measured",
                key=one["keys"][cell],
                definition=one["card"]["cells"][cell],
                figures=tuple(_figure(name, chance) for name in names),
            )
            for cell, names in CELLS.items()
        ),
    )


def bulk(connection: Connection, entries: list[SessionEntry]) -> None:
    """The rows of many sessions at once; their baselines are pinned, so nothing else follows from them."""
    ids = {
        table.name: {row.key: row.id for row in connection.execute(sa.select(table.c.key, table.c.id))}
        for table in (schema.cards, schema.machines, schema.cells, schema.attributes)
    }
    for one in entries:
        key = canonical.sha256(one.attributes)
        if key not in ids["attributes"]:
            made = connection.execute(sa.insert(schema.attributes).values(key=key, facts=one.attributes))
            assert made.inserted_primary_key is not None
            ids["attributes"][key] = made.inserted_primary_key[0]
    session = connection.execute(sa.select(sa.func.max(schema.sessions.c.id))).scalar_one()
    result = connection.execute(sa.select(sa.func.max(schema.results.c.id))).scalar_one()
    rows: dict[str, list[dict[str, Any]]] = {"sessions": [], "results": [], "figures": []}
    for one in entries:
        session += 1
        machine = ids["machines"][one.machine_key]
        rows["sessions"].append(
            {
                "id": session,
                "card": ids["cards"][one.card_key],
                "machine": machine,
                "attributes": ids["attributes"][canonical.sha256(one.attributes)],
                **{name: getattr(one, name) for name in _SESSION},
            }
        )
        for line in one.cells:
            result += 1
            shared = {"id": result, "session": session, "cell": ids["cells"][line.key], "machine": machine}
            own = {"name": line.cell, "part": line.part, "status": line.status, "own": True, "crashed": False}
            rows["results"].append({**shared, **own, "started": one.started})
            rows["figures"] += [write.figure_row(result, figure) for figure in line.figures]
    for name, content in rows.items():
        connection.execute(sa.insert(schema.METADATA.tables[name]), content)


_SESSION = ("session", "card_id", "started", "finished", "complete", "tool", "folder")


def _iso(second: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(second))


def _figure(name: str, chance: random.Random) -> FigureLine:
    values = tuple(100 * chance.lognormvariate(0, 0.01) for _ in range(3))
    return FigureLine(
        name=name,
        unit="ms" if name.endswith("_ms") else "tok/s",
        direction="lower" if name.endswith("_ms") else "higher",
        median=statistics.median(values),
        values=values,
        verdict="ok",
        reference=100.0,
        change=statistics.median(values) / 100 - 1,
        interval=(-0.01, 0.01),
        resolves=0.03,
        sigma=0.009,
        clear=True,
    )


def ask(store: Store, card: int, machine: int) -> None:
    """What the gate asks for one session."""
    one = identity(card, machine)
    baselines = store.baselines_of(one)  # sigma0 is in it
    assert len(baselines) == sum(map(len, CELLS.values()))
    assert all(b.pinned and b.sigma0 for b in baselines.values())
    assert store.machine_state(one, MACHINE_SESSIONS) is not None
    cells, here = keys.cell_keys(one), keys.machine_key(one)
    for cell, names in CELLS.items():
        for name in names:
            assert len(store.outcomes(cells[cell], here, name, OUTCOMES)) == OUTCOMES
    assert store.changed_since(one, "decode[code]", "decode_tok_s", environment(10**6))


def stranger(store: Store, card: int) -> None:
    """What is asked where there is no baseline: why not."""
    assert store.other_machines(identity(card, MACHINES + 1))


def timed(title: str, calls: list[Any]) -> None:
    wall, cpu = [], []
    for call in calls:
        start, used = time.perf_counter(), time.process_time()
        call()
        wall.append(1000 * (time.perf_counter() - start))
        cpu.append(1000 * (time.process_time() - used))
    wall.sort()
    print(
        f"{title:<44} median {statistics.median(wall):6.1f} ms   p95 {wall[int(0.95 * len(wall))]:6.1f} ms"
        f"   CPU {statistics.median(cpu):6.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, default=None, help="keep the store here, and use one that is there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        run(folder, args.sessions)


def run(folder: Path, count: int) -> None:
    print(f"{now()}  Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores")
    chance = random.Random(1)
    known: dict[tuple[int, int], dict[str, Any]] = {}
    begun = time.perf_counter()
    with Store.open(folder) as store:
        if not store.sessions(1):
            first = 16 * CARDS * MACHINES  # until every baseline is pinned, by the code that records a real one
            store.add([entry(number, chance, known) for number in range(first)])
            for at in range(first, count, BATCH):
                with writing(store._engine) as connection:  # noqa: SLF001 - the rest is written in bulk, as it would be
                    bulk(connection, [entry(number, chance, known) for number in range(at, min(count, at + BATCH))])
            print(f"filled in {time.perf_counter() - begun:.0f} s")
    size = (folder / "history.sqlite").stat().st_size
    print(f"{count} sessions, {CARDS} cards, {MACHINES} machines, {count * 10} figures: {size / 2**20:.0f} MiB")
    pairs = [(number % CARDS, number // CARDS % MACHINES) for number in range(96)]
    with Store.open(folder) as store:
        timed("gate of one session, 10 figures, opened", [lambda p=p: ask(store, *p) for p in pairs])
        timed("  of it: baselines and sigma0", [lambda p=p: store.baselines_of(identity(*p)) for p in pairs])
        timed("no baseline here: why", [lambda p=p: stranger(store, p[0]) for p in pairs])
        fresh = [entry(count + n, chance, known) for n in range(96)]
        timed("record one session", [lambda e=e: store.add([e]) for e in fresh])
        timed("list of the last 20 sessions", [lambda: store.sessions(20)] * 20)
    timed("opened anew, and the gate of one session", [lambda p=p: _anew(folder, p) for p in pairs])


def _anew(folder: Path, pair: tuple[int, int]) -> None:
    with Store.open(folder) as store:
        ask(store, *pair)


if __name__ == "__main__":
    main()
