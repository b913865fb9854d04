"""The store: what is recorded, which baselines follow, and what it answers."""

from __future__ import annotations

import copy
import shutil
import statistics
from typing import TYPE_CHECKING, Any

import pytest
from documents import ENVIRONMENT, IDENTITY, at, attempt, changed, document

from pytest_llmbench.errors import InputError
from pytest_llmbench.history import acceptance, baselines, keys
from pytest_llmbench.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_llmbench.records import Baseline, Outcome

DECODE = ("decode[code]", "decode_tok_s")


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("empty")
    Store.open(folder).close()
    return folder / "history.sqlite"


@pytest.fixture
def store(tmp_path: Path, empty: Path) -> Iterator[Store]:
    shutil.copy(empty, tmp_path)  # migrating costs more than the rest of a test
    with Store.open(tmp_path) as one:
        yield one


def fill(store: Store, count: int, first: int = 0, **more: Any) -> None:
    for number in range(first, first + count):
        assert store.record(document(number, decode=60.0 + number / 10, **more), store.storage / "runs" / str(number))


def decode(store: Store) -> Baseline:
    return store.baselines_of(IDENTITY)[DECODE]


def outcomes(store: Store, figure: str = "decode_tok_s", limit: int = 10) -> tuple[Outcome, ...]:
    return store.outcomes(keys.cell_key(IDENTITY, "decode[code]"), keys.machine_key(IDENTITY), figure, limit)


# ---- recording ----


def test_a_session_is_recorded_once(store: Store) -> None:
    one = document(1)
    assert store.record(one, store.storage / "runs/a")
    assert not store.record(one, store.storage / "runs/a")
    assert [row.session for row in store.sessions()] == ["S0001"]
    other = document(1, identity=changed("card_id", "other"))
    assert store.record(other, "elsewhere")  # the same session measured another card too
    assert len(store.sessions()) == 2
    assert [row.card_id for row in store.sessions(card_id="other")] == ["other"]


def test_a_probe_is_never_recorded(store: Store) -> None:
    assert not store.record(document(1, probe=True), "x")
    assert store.sessions() == []


def test_a_folder_in_the_storage_is_kept_relative_to_it(store: Store, tmp_path: Path) -> None:
    store.record(document(1), tmp_path / "runs" / "S1" / "card")
    store.record(document(2), tmp_path.parent / "elsewhere")
    assert [row.folder for row in store.sessions()] == [(tmp_path.parent / "elsewhere").as_posix(), "runs/S1/card"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "no 'llmbench_report' in it"),
        ({"llmbench_report": 2}, "has format 2, this version reads 1"),
        ({"llmbench_report": 1}, "no 'contract' in it"),
        (document(1) | {"started": "yesterday"}, "Invalid isoformat string: 'yesterday'"),
        (document(1) | {"cells": [{}]}, "no 'id' in it"),
        (document(1) | {"complete": "perhaps"}, "complete: "),
        (document(1) | {"card": []}, "list indices"),
    ],
)
def test_what_is_not_a_report_is_refused(store: Store, content: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match="report = '/the/folder'") as caught:
        store.record(content, "/the/folder")
    assert reason in caught.value.reason
    assert store.sessions() == []


def test_a_session_that_never_got_to_its_machine_is_kept_without_a_key(store: Store) -> None:
    broken = document(1, complete=False, problems=["the server did not start"])
    broken["contract"] = {}
    broken["cells"] = [one | {"status": "failed", "figures": [], "attempts": []} for one in broken["cells"]]
    assert store.record(broken, "x")
    (row,) = store.sessions()
    assert (row.complete, row.machine, dict(row.statuses)) == (False, "unknown", {"failed": 2})
    assert store.baselines_of(IDENTITY) == {}
    assert store.setups() == []
    (kept,) = store.entries_of("S0001")
    assert kept.problems == ("the server did not start",)


def test_the_gates_fields_are_kept_where_a_report_has_them(store: Store) -> None:
    one = document(1)
    told = {"verdict": "regressed", "reference": 63.8, "change": -0.06, "interval": [-0.08, -0.05], "resolves": 0.03}
    told |= {"sigma": 0.009, "again": [59.9, 60.1], "dip": True, "clear": False, "from_the_future": 1}
    one["cells"][0]["figures"][0] |= told
    store.record(one, "x")
    (entry,) = store.entries_of("S0001")
    kept = entry.cells[0].figures[0].model_dump(mode="json")
    assert {name: kept[name] for name in told if name in kept} == {
        n: v for n, v in told.items() if n != "from_the_future"
    }
    (row,) = store.sessions()
    assert dict(row.verdicts) == {"regressed": 1, "not compared": 2}


# ---- baselines ----


def test_a_baseline_collects_and_is_pinned(store: Store) -> None:
    fill(store, 9)
    assert not decode(store).pinned
    fill(store, 5, first=9)
    found = decode(store)
    assert found.pinned
    assert found.values == tuple(60.0 + n / 10 for n in range(10))
    assert found.sessions == tuple(f"S{n:04}" for n in range(10))
    assert (found.since, found.until) == (at(0), at(540))
    assert found.accepted is None


def test_sessions_close_to_each_other_count_once(store: Store) -> None:
    for number in range(7):
        store.record(document(number, minutes=10 * number), "x")
    assert decode(store).sessions == ("S0000", "S0003", "S0006")


def test_a_figure_at_a_time(store: Store) -> None:
    store.record(document(0, decode=None), "x")
    store.record(document(1, minutes=70, ttft=None), "x")
    store.record(document(2, minutes=80), "x")
    found = store.baselines_of(IDENTITY)
    assert found["decode[code]", "decode_tok_s"].sessions == ("S0001",)
    assert found["decode[code]", "ttft_ms"].sessions == ("S0000", "S0002")


def test_an_older_session_added_later_does_not_move_a_pinned_one(store: Store) -> None:
    fill(store, 10, first=100)
    before = decode(store)
    store.record(document(1, decode=10.0), "x")
    assert decode(store) == before


@pytest.mark.parametrize(
    "how",
    [
        {"status": "disturbed"},
        {"status": "failed"},
        {"sessions": ["S0000"]},  # taken over from the session that this one resumed
        {"sessions": ["S0000", "S0001"]},  # half of the runs are
        {"replaced": {"session": "S0000"}},  # a supplement's second result
    ],
)
def test_only_a_sessions_own_first_valid_results_enter(store: Store, how: dict[str, Any]) -> None:
    one = document(1, continues={"kind": "supplement", "session": "S0000"})
    one["cells"][0] |= how
    store.record(one, "x")
    assert {cell for cell, _ in store.baselines_of(IDENTITY)} == {"prefill[2048]"}


def test_another_card_or_machine_has_its_own(store: Store) -> None:
    fill(store, 3)
    assert store.baselines_of(changed("machine.host_id", "there")) == {}
    assert store.baselines_of(changed("card.args", ["-c", "4096"])) == {}
    other = changed("card.cells.prefill[2048].prompt_tokens", 4096)
    assert {cell for cell, _ in store.baselines_of(other)} == {"decode[code]"}
    # Another build is what one tests: the same baseline.
    store.record(document(9, environment=changed("engine.version", "b2", ENVIRONMENT)), "x")
    assert len(decode(store).values) == 4


def test_sigma0_comes_from_figures_of_the_same_name_on_this_machine(store: Store) -> None:
    fill(store, 5)
    factors = {"calm": 1.01, "noisy": 1.1}
    spreads = [baselines.spread([60.0 + n / 10 for n in range(5)], "higher")]
    for at_minute, (name, factor) in enumerate(factors.items(), 1):
        assert decode(store).sigma0 is None  # two figures say nothing of a kind
        other = changed("card.args", ["-c", name])
        other["card_id"] = name
        for n in range(5):
            store.record(document(10 * at_minute + n, decode=50.0 * factor**n, identity=other), "x")
        spreads.append(baselines.spread([50.0 * factor**n for n in range(5)], "higher"))
    known = [one for one in spreads if one is not None]
    assert len(known) == 3
    assert decode(store).sigma0 == pytest.approx(statistics.median(known))
    elsewhere = changed("machine.host_id", "there")
    for n in range(5):
        store.record(document(40 + n, decode=50.0 * 2.0**n, identity=elsewhere), "x")
    assert decode(store).sigma0 == pytest.approx(statistics.median(known))


# ---- acceptance ----


def test_accepting_begins_a_new_baseline_from_that_session_on(store: Store) -> None:
    fill(store, 14)
    one = store.accept("card", ["decode[code]"], why="faster kernel", who="ann", since="S0011", when=at(900))
    found = store.baselines_of(IDENTITY)
    assert found[DECODE].sessions == ("S0011", "S0012", "S0013")
    assert found[DECODE].accepted == "faster kernel"
    assert not found[DECODE].pinned
    assert found["prefill[2048]", "prefill_tok_s"].pinned  # another cell keeps its own
    assert one.cells == {"decode[code]": keys.cell_key(IDENTITY, "decode[code]")}
    ((number, kept),) = acceptance.read(store.storage)
    assert (number, kept) == (1, one)
    fill(store, 9, first=14)
    assert decode(store).sessions == tuple(f"S{n:04}" for n in range(11, 21))
    assert decode(store).pinned


def test_the_last_session_is_accepted_unless_one_is_named(store: Store) -> None:
    fill(store, 3)
    assert store.accept("card", why="so be it").since == "S0002"
    assert decode(store).sessions == ("S0002",)
    assert {one.accepted for one in store.baselines_of(IDENTITY).values()} == {"so be it"}


def test_what_old_baselines_knew_of_the_spread_stays(store: Store) -> None:
    for build in ("one", "two", "three"):
        fill(store, 10, first={"one": 0, "two": 10, "three": 20}[build])
        before = decode(store).sigma0
        store.accept("card", why=f"after build {build}")
    assert before is not None
    assert decode(store).sigma0 == before


def test_an_older_session_recorded_after_an_acceptance_does_not_enter(store: Store) -> None:
    fill(store, 2, first=10)
    store.accept("card", why="another build", since="S0011")
    store.record(document(3), "x")
    assert decode(store).sessions == ("S0011",)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"card_id": "crad"}, r"card = 'crad': the history has no such session of card crad \(last: none\)"),
        ({"since": "S9"}, r"since = 'S9': .* \(last: S0001, S0000\)"),
        ({"cells": ["decode[cod]"]}, r"cell = 'decode\[cod\]': not in session S0001"),
        ({"why": " "}, r"reason = ' ': says nothing"),
        ({"when": "soon"}, r"when = 'soon': not a time"),
    ],
)
def test_an_acceptance_of_nothing_is_refused(store: Store, asked: dict[str, Any], message: str) -> None:
    fill(store, 2)
    with pytest.raises(InputError, match=message):
        store.accept(**({"card_id": "card", "why": "because"} | asked))
    assert decode(store).accepted is None
    assert list(acceptance.read(store.storage)) == []


# ---- questions ----


def test_outcomes_are_the_last_ones_oldest_first(store: Store) -> None:
    fill(store, 14)
    assert [one.session for one in outcomes(store)] == [f"S{n:04}" for n in range(4, 14)]
    last = outcomes(store, limit=1)[0]
    assert (last.started, last.usable, last.disturbed, last.crashed) == (at(780), True, False, False)
    assert (last.verdict, last.value, last.dip, last.clear) == ("ok", 61.3, False, None)
    assert last.values == pytest.approx([61.3 * 0.99, 61.3, 61.3 * 1.01])


def test_an_outcome_without_a_number_is_there_and_not_usable(store: Store) -> None:
    store.record(document(1, decode=None), "x")
    missing = document(2)
    missing["cells"][0] |= {"status": "missing", "figures": [], "attempts": []}
    store.record(missing, "x")
    disturbed = document(3, decode=None)
    disturbed["cells"][0]["status"] = "disturbed"
    store.record(disturbed, "x")
    taken = document(4)
    taken["cells"][0]["sessions"] = ["S0003"]
    store.record(taken, "x")
    found = outcomes(store)
    assert [(one.session, one.usable, one.disturbed, one.value) for one in found] == [
        ("S0001", False, False, None),
        ("S0002", False, False, None),
        ("S0003", False, True, None),
    ]


@pytest.mark.parametrize(
    ("attempts", "crashed"),
    [
        ([attempt(1), attempt(2)], False),
        ([attempt(1, error="died"), attempt(1), attempt(2)], True),
        ([attempt(1, error="died"), attempt(1, error="died")], False),
        ([attempt(1, error="died"), attempt(1, guard="disturbed")], False),
        ([attempt(1), attempt(2, error="died")], False),
        ([attempt(1), attempt(1, error="died", again=1), attempt(1, again=1)], True),
        ([attempt(1, error="died"), attempt(1, again=1)], False),
    ],
)
def test_a_crash_that_a_retry_survived(store: Store, attempts: list[dict[str, Any]], crashed: bool) -> None:  # noqa: FBT001
    one = document(1)
    one["cells"][0]["attempts"] = attempts
    store.record(one, "x")
    assert outcomes(store)[0].crashed is crashed


def test_other_machines_are_told_with_their_differences(store: Store) -> None:
    fill(store, 2)
    assert store.other_machines(IDENTITY) == ()
    assert store.other_machines(changed("card_id", "never seen", changed("machine.host_id", "x"))) == ()
    there = changed("machine.host_id", "there", changed("card.args", ["-c", "4096", "-np", "1"]))
    assert store.other_machines(there) == (
        "2 sessions of this card until 2026-01-02 had:",
        "  another machine: host here, this one is there",
        "  server arguments: was -c 8192, is -c 4096",
    )
    many = copy.deepcopy(there)
    many["card"]["sampling"] = {f"knob{n}": n for n in range(12)}
    assert len(store.other_machines(many)) == 8


def test_what_changed_since_the_baseline(store: Store) -> None:
    fill(store, 3)
    now = changed("engine.version", "b12301", changed("machine.driver", "581.0", ENVIRONMENT))
    assert store.changed_since(IDENTITY, *DECODE, now) == ("engine b12223 -> b12301", "driver 580.1 -> 581.0")
    assert store.changed_since(IDENTITY, *DECODE, ENVIRONMENT) == ()
    assert store.changed_since(changed("machine.host_id", "x"), *DECODE, now) == ()


def test_setups_know_every_cell_that_was_measured(store: Store) -> None:
    fill(store, 2)
    part = document(5)
    del part["cells"][1]
    del part["contract"]["identity"]["card"]["cells"]["prefill[2048]"]
    store.record(part, "x")
    store.record(document(6, identity=changed("machine.host_id", "there")), "x")
    there, here = store.setups()
    assert here.identity == IDENTITY
    assert (here.sessions, here.last) == (3, at(300))
    assert there.identity["machine"]["host_id"] == "there"


# ---- sessions too close to each other --------------------------------------------------------------------------------------


def told(store: Store, number: int, minutes: float, **more: Any) -> str | None:
    made = document(number, minutes=minutes, **more)
    store.record(made, "x")
    return store.not_counted(made)


def test_a_session_too_soon_after_another_says_when_the_next_counts(store: Store) -> None:
    assert told(store, 0, 0) is None
    clock = [at(0)[11:16], at(31)[11:16]]  # at 03:04:05; at 03:34 it would not be 30 minutes
    assert told(store, 1, 0.5) == (
        f"this session does not count for the baseline: it started 0.5 min after the one of {clock[0]} "
        f"(30 apart are needed); the next counts from {clock[1]} UTC on"
    )
    assert told(store, 2, 30) is None
    assert decode(store).sessions == ("S0000", "S0002")


def test_a_session_that_did_not_count_for_another_reason_does_not_blame_the_clock(store: Store) -> None:
    fill(store, 1)
    made = document(1, minutes=1)
    for one in made["cells"]:
        one["status"] = "disturbed"
    store.record(made, "x")
    assert store.not_counted(made) is None
    fill(store, 9, first=2)  # complete: later sessions do not enter, however far away
    assert told(store, 20, 60 * 10 + 1) is None


def test_only_the_cells_that_were_measured_a_moment_ago_are_named(store: Store) -> None:
    first = document(0)
    del first["cells"][1]
    store.record(first, "x")
    said = told(store, 1, 1)
    assert said is not None
    assert said.startswith("this session does not count for the baselines of decode[code]: ")


# ---- cards of the same identity --------------------------------------------------------------------------------------------


def test_a_card_has_only_the_cells_that_it_measured_itself(store: Store) -> None:
    fill(store, 2)
    other = document(5, identity=IDENTITY | {"card_id": "ctl"})
    del other["cells"][1]
    store.record(other, "x")
    cells = {one.card_id: list(one.identity["card"]["cells"]) for one in store.setups()}
    assert cells == {"ctl": ["decode[code]"], IDENTITY["card_id"]: ["decode[code]", "prefill[2048]"]}


def test_what_was_compared_with_nothing_is_not_called_ok(store: Store) -> None:
    made = document(0)
    made["cells"][0]["figures"][0]["reference"] = 60.0
    store.record(made, "x")
    assert store.sessions()[0].verdicts == {"ok": 1, "not compared": 2}
