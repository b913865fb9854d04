"""What the control says of a run, with a history given in: its role, its verdicts, its own level; and how turns are taken."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from pytest_llmbench.control import BLOCK_TURNS, Control
from pytest_llmbench.control_gate import RETRY_EVERY, ControlGate, is_same, key_of, machine_words
from pytest_llmbench.errors import ServerError
from pytest_llmbench.figure_kinds import FigureKind
from pytest_llmbench.gate.rule import RULE, decide
from pytest_llmbench.records import Attempt, Baseline, CellResult, CellSpec, Figure, Outcome, Summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.gate.decision import Decision
    from pytest_llmbench.history.store import Store

CELL = CellSpec("decode[code]", "decode", runs=2)
TURN = CellSpec("ctx[512-code]", "context", runs=2)
KIND = FigureKind("decode_tok_s", "tok/s", "higher", gated=True, definition="")
IDENTITY: dict[str, Any] = {
    "card_id": "a",
    "card": {"model": {"sha256": "m"}, "engine_kind": "x", "cells": {CELL.id: {}}},
    "machine": {},
}


def attempt(value: float | None, *, run: int = 1, again: int = 0, cell: str = CELL.id, control: Any = None) -> Attempt:
    return Attempt(
        cell=cell,
        run=run,
        number=1,
        reason="first",
        server_start=1,
        guard="clean",
        wall="",
        t_start_ns=0,
        t_end_ns=1,
        request_ids=(f"{cell}/{run}",),
        figures=(Figure("decode_tok_s", "tok/s", value),),
        again=again,
        error=None if value is not None else "it died\nand more",
        details={} if control is None else {"control": {"decode_tok_s": control}},
    )


def result(value: float, control: float | None, again: Sequence[tuple[float, float]] = ()) -> CellResult:
    own = [attempt(value, run=run, control=control) for run in (1, 2)]
    fresh = [attempt(v, run=run, again=nth, control=c) for nth, (v, c) in enumerate(again, 1) for run in range(1, 6)]
    summary = Summary("decode_tok_s", "tok/s", "higher", value, (value, value), 2, 0.0)
    return CellResult(CELL, "a", "measured", (*own, *fresh), (summary,))


def history(
    sessions: int, *, own: float = 0.005, machine: float = 0.04, with_control: int | None = None
) -> list[Outcome]:
    chance = random.Random(1)
    found = []
    for nth in range(sessions):
        moved = 1 + chance.gauss(0, machine)
        value, control = (100 * moved * (1 + chance.gauss(0, own)) for _ in range(2))
        has = with_control is None or nth < with_control
        one = Outcome(
            f"s{nth:03}", f"2026-01-01T{nth:04}", usable=True, disturbed=False, crashed=False, verdict="ok", value=value
        )
        found.append(replace(one, control=control if has else None, control_key="key" if has else None))
    return found


class FakeStore:
    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes

    def outcomes(self, _cell: str, _machine: str, _figure: str, limit: int) -> tuple[Outcome, ...]:
        return tuple(self._outcomes[-limit:])

    def first_with_control(
        self, _cell: str, _machine: str, _figure: str, key: str, *, since: str, limit: int
    ) -> tuple[Outcome, ...]:
        return tuple(one for one in self._outcomes if one.control_key == key and one.started >= since)[:limit]


class ByCell(FakeStore):
    """Outcomes by the order in which cells are asked for."""

    def __init__(self, by_cell: dict[str, list[Outcome]]) -> None:
        super().__init__([])
        self._left = list(by_cell.values())

    def outcomes(self, cell: str, machine: str, figure: str, limit: int) -> tuple[Outcome, ...]:
        self._outcomes = self._left.pop(0)
        return super().outcomes(cell, machine, figure, limit)


def gate(outcomes: list[Outcome], *, key: str = "key", same: bool = True) -> ControlGate:
    first = outcomes[:10]
    baseline = Baseline(
        tuple(one.value for one in first if one.value), tuple(one.session for one in first), since="2026-01-01T0000"
    )
    store = cast("Store", FakeStore(outcomes))
    return ControlGate(store, IDENTITY, {(CELL.id, "decode_tok_s"): baseline}, {CELL.id: [KIND]}, key=key, same=same)


def decided(one: ControlGate, of: CellResult, left: int = 0) -> Decision:
    baseline = one._baselines[CELL.id, "decode_tok_s"]
    median = of.summary("decode_tok_s").median
    assert median is not None
    again = [a.figures[0].value or 0 for a in of.attempts if a.again and a.run == 1]
    raw = decide(median, again, baseline, "higher", RULE, left)
    return one.decide(of, "decode_tok_s", median, raw, RULE, left, None)


def test_on_trial_it_changes_no_verdict_and_says_how_long() -> None:
    one = gate(history(10, with_control=7))
    assert (one.role, one.why) == ("trial", "control on trial: 7 of 8 sessions with it; it changes no verdict yet")
    found = decided(one, result(60, 60, [(60, 60)] * 4))
    assert found.kind == "regressed"
    assert found.control is not None
    assert not found.control.used
    assert gate(history(9), same=False).role == "trial"


def test_another_build_of_the_control_begins_anew() -> None:
    assert gate(history(20), key="another").why.startswith("control on trial: 0 of 8")


def test_it_rests_where_it_does_not_pay_and_is_tried_every_twentieth_session() -> None:
    assert gate(history(20)).role == "judges"
    noise: dict[str, Any] = {"own": 0.05, "machine": 0.0}
    rests = gate(history(20, **noise))
    assert (rests.role, rests.why.rpartition("; ")[2]) == ("rests", f"it rests for {RETRY_EVERY - 1} more sessions")
    assert gate(history(20 + RETRY_EVERY - 2, with_control=20, **noise)).role == "rests"
    assert gate(history(20 + RETRY_EVERY - 1, with_control=20, **noise)).role == "trial"


@pytest.mark.parametrize(
    ("value", "control", "kind", "word"),
    [(80, 80, "machine changed", "slower"), (94, 100, "regressed", "unchanged"), (96, 96, "ok", "unchanged")],
)
def test_setup_or_machine(value: float, control: float, kind: str, word: str) -> None:
    one = gate(history(20))
    found = decided(one, result(value, control, [(value, control)] * 4))
    assert found.kind == kind
    assert found.control is not None
    assert machine_words(found.control).startswith(f"control {word} (")
    assert found.fails is (kind != "ok")
    assert found.again == (value,) * 4  # as measured, whatever was judged
    if kind == "regressed":
        assert found.control.used
        assert found.resolves is not None
        assert found.control.resolves_without is not None
        assert found.resolves < found.control.resolves_without
        plain = decide(94, [94] * 4, one._baselines[CELL.id, "decode_tok_s"], "higher", RULE, 0)
        assert plain.kind == "ok"  # without the control nobody would have seen it


@pytest.mark.parametrize("sessions", [64, 66, 70, 130, 260, 400])
def test_it_goes_on_judging_when_the_baseline_is_long_past(sessions: int) -> None:
    one = gate(history(sessions))
    assert decided(one, result(94, 100, [(94, 100)] * 4)).kind == "regressed"
    assert decided(one, result(94, 100)).kind == "inconclusive"  # suspect, and no fresh server was allowed
    assert decided(one, result(80, 80, [(80, 80)] * 4)).kind == "machine changed"
    assert decided(one, result(100, 100)).kind == "ok"


def test_one_cell_that_never_had_it_keeps_no_other_on_trial() -> None:
    outcomes = history(20)
    store = cast("Store", ByCell({CELL.id: outcomes, "decode[new]": []}))
    baselines = gate(outcomes)._baselines
    identity = IDENTITY | {"card": IDENTITY["card"] | {"cells": {CELL.id: {}, "decode[new]": {"x": 1}}}}
    figures = {CELL.id: [KIND], "decode[new]": [KIND]}
    one = ControlGate(store, identity, baselines, figures, key="key", same=True)
    assert (one.role, one.why) == ("judges", "control: it pays for 1 of 2 figures")


def test_without_a_number_beside_it_today_it_says_nothing() -> None:
    found = decided(gate(history(20)), result(60, None, [(60, 60)] * 4))
    assert found.kind == "regressed"
    assert found.control is not None
    assert found.control.why == "no control: it has no number beside this figure today"


def test_its_own_level_is_confirmed_by_its_later_turns() -> None:
    one = gate(history(20))
    baselines = {(TURN.id, "decode_tok_s"): Baseline(tuple(100 + x / 10 for x in range(10)), tuple("abcdefghij"))}

    def level(later: int, value: float = 70.0) -> Any:
        own = [attempt(value, run=run, cell=TURN.id) for run in (1, 2)]
        more = [attempt(value, run=run, again=1, cell=TURN.id) for run in range(3, 3 + later)]
        summary = Summary("decode_tok_s", "tok/s", "higher", value, (value, value), 2, 0.0)
        return one.level(CellResult(TURN, "c", "measured", (*own, *more), (summary,)), baselines, RULE).final

    fell = level(12)
    assert (fell.kind, fell.failed) == ("machine changed", True)
    assert level(5) is None  # too few turns to tell
    assert level(12, 100.0) is None


def test_which_control_it_is_and_whether_it_is_the_setups_model() -> None:
    engine = {"kind": "x", "version": "1", "sha256": "e", "path": "/somewhere"}
    assert key_of(IDENTITY, engine) == key_of(IDENTITY, engine | {"path": "/else"})
    assert key_of(IDENTITY, engine) != key_of(IDENTITY, engine | {"sha256": "f"})
    assert is_same(IDENTITY, IDENTITY)
    assert not is_same(IDENTITY, IDENTITY | {"card": {"model": {"sha256": "n"}, "engine_kind": "x"}})


# ---- turns -----------------------------------------------------------------------------------------------------------


class FakeTurns:
    def __init__(self, *values: float | Exception | None) -> None:
        self.values, self.made, self.rests = list(values), [], []  # type: ignore[var-annotated]

    async def turn(self, spec: CellSpec, run: int, again: int) -> list[Attempt]:
        self.made.append((run, again))
        value = self.values.pop(0)
        if isinstance(value, Exception):
            raise value
        return [attempt(value, run=run, again=again, cell=spec.id)]

    async def rest(self, reason: str) -> None:
        self.rests.append(reason)


def control(turns: FakeTurns, said: list[str], *, resident: bool = True) -> Control:
    return Control(turns, TURN, resident=resident, note=said.append)


def test_turns_beyond_the_promise_are_counted_on_and_apart() -> None:
    turns = FakeTurns(1.0, 2.0, 3.0)
    one = control(turns, [])
    found = [asyncio.run(one()) for _ in range(3)]
    assert turns.made == [(1, 0), (2, 0), (3, 1)]
    assert [each["decode_tok_s"] for each in found] == [1.0, 2.0, 3.0]
    assert found[0]["reason"] == "no valid prefill_tok_s, ttft_ms"


def test_it_is_lost_after_two_broken_turns_in_a_row_and_at_once_without_a_server() -> None:
    said: list[str] = []
    turns = FakeTurns(None, 1.0, None, None)
    one = control(turns, said)
    found = [asyncio.run(one()) for _ in range(5)]
    assert found[0]["reason"] == "the control's turn broke off: it died"
    assert one.lost is not None
    assert len(turns.made) == 4
    assert found[4] == {
        "decode_tok_s": None,
        "prefill_tok_s": None,
        "ttft_ms": None,
        "reason": f"the control was lost: {one.lost}",
    }
    assert len(said) == 1
    gone = control(FakeTurns(ServerError("no port")), said)
    asyncio.run(gone())
    assert gone.lost == "no port"


def test_a_block_gives_its_median_to_the_whole_lifetime() -> None:
    turns = FakeTurns(*[float(n) for n in range(1, BLOCK_TURNS + 1)])
    one = control(turns, [], resident=False)
    asyncio.run(one.before_start())
    assert turns.rests
    assert asyncio.run(one()) == asyncio.run(one())
    assert asyncio.run(one())["decode_tok_s"] == 2.0
    assert len(asyncio.run(one())["attempts"]) == BLOCK_TURNS
