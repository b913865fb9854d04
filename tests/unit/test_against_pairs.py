"""The pairs of a direct comparison over two sides made by hand: order, what is dropped, when it ends."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from cells import CODE, attempt, figure, good, result

from pytest_llmbench.against.figures import GIVE_UP, Compared, Pair
from pytest_llmbench.against.pairs import INTERRUPTED, Pairs
from pytest_llmbench.gate.sequential import Asked
from pytest_llmbench.measure import PARTS
from pytest_llmbench.records import Verdict
from pytest_llmbench.wishes import Against

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_llmbench.records import Attempt, CellResult, CellSpec

RATE = next(kind for kind in PARTS["decode"].kinds if kind.name == "decode_tok_s")


class FakeServers:
    def __init__(self, log: list[str], name: str) -> None:
        self.starts, self._log, self._name = 0, log, name

    async def drop(self, reason: str) -> None:
        self._log.append(f"{self._name} dropped")


class FakeSide:
    """A side whose nth start (from 1) gives the attempts that ``made`` says."""

    def __init__(self, log: list[str], name: str, made: Callable[[int], list[Attempt]]) -> None:
        self.card: Any = None
        self.results: dict[str, CellResult] = {}
        self.servers, self.runner, self._log, self._name, self._made = FakeServers(log, name), self, log, name, made
        self.again: list[int] = []

    async def start(self, spec: CellSpec | None = None) -> None:
        self._log.append(f"{self._name} begun")

    async def measure_start(self, spec: CellSpec, earlier: Sequence[Attempt], *, again: int, reason: str) -> Any:
        self.servers.starts += 1
        self._log.append(f"{self._name} {self.servers.starts}")
        self.again.append(again)
        return self._made(self.servers.starts), (self.servers.starts,), None

    def conclude(self, spec: CellSpec, attempts: Sequence[Attempt], starts: Sequence[int], broken: str | None) -> None:
        self.results[spec.id] = result(attempts)

    async def stop_server(self) -> None: ...


def start(rate: float, nth: int, **more: Any) -> list[Attempt]:
    return [good(run, rate, 50.0, server_start=nth, **more) for run in (1, 2)]


def pairs(new: Any, old: Any, log: list[str] | None = None, clock: Any = None, **wish: Any) -> tuple[Pairs, Any, Any]:
    log = [] if log is None else log
    sides: list[Any] = [FakeSide(log, "new", new), FakeSide(log, "old", old)]
    asked = Against(**({"card": None, "margin": 0.02, "pairs": 30} | wish))
    more = {} if clock is None else {"clock": clock}
    return Pairs(sides[0], sides[1], [CODE], asked, lambda _: None, **more), sides[0], sides[1]


def test_the_order_cancels_a_drift_and_a_figure_that_knows_ends_it() -> None:
    log: list[str] = []

    def wobble(nth: int) -> float:
        return 1 + 0.001 * (nth % 3)

    one, new, old = pairs(
        lambda nth: [good(run, 50 * wobble(nth), 100 * wobble(nth), again=nth - 1) for run in (1, 2)],
        lambda nth: start(100.0, nth, again=nth - 1),
        log,
    )
    asyncio.run(one.measure())
    order = [line for line in log if line.split()[-1].isdigit()]
    assert order[:8] == ["new 1", "old 1", "old 2", "new 2", "new 3", "old 3", "old 4", "new 4"]
    assert one.ended == "every figure knows"
    assert {found.outcome for found in one.figures.values()} == {"regressed"}
    assert one.pairs == len(new.again) == len(old.again) < 12
    assert new.again == list(range(one.pairs))
    # Before the first start nothing is dropped: the server on which prompts were built serves.
    assert log[:3] == ["new begun", "new 1", "old begun"]
    before = len(log)
    asyncio.run(one.measure())
    assert len(log) == before


def test_a_start_without_a_number_is_dropped_and_the_next_one_goes_on_with_the_promised_runs() -> None:
    def new(nth: int) -> list[Attempt]:
        if nth == 1:
            return [attempt(1, figure(40.0), guard="disturbed"), good(2, 50.0)]
        return start(50.0 + 0.01 * nth, nth, number=2 if nth == 2 else 1, again=max(0, nth - 1) if nth > 2 else 0)

    one, side, _ = pairs(new, lambda nth: start(100.0, nth, again=nth - 1))
    asyncio.run(one.measure())
    found = one.figures["decode[code]", "decode_tok_s"]
    assert side.again[:3] == [0, 0, 2]
    assert side.results[CODE.id].status == "measured"
    assert found.pairs[0].dropped is not None
    assert found.pairs[0].dropped.startswith("new run 1 of 2: ")
    assert found.pairs[0].new is None
    assert found.known.pairs == len([pair for pair in found.pairs if not pair.dropped])
    assert found.outcome == "regressed"


def test_a_figure_without_values_is_given_up() -> None:
    one, _, _ = pairs(lambda nth: [attempt(1, error="died", server_start=nth)], lambda nth: start(100.0, nth))
    asyncio.run(one.measure())
    assert one.pairs == GIVE_UP
    assert one.ended == "what does not know had no value in 3 pairs in a row"
    assert {found.outcome for found in one.figures.values()} == {"inconclusive"}


def test_no_pair_begins_that_would_end_after_the_budget() -> None:
    ticks = iter(range(0, 10_000, 10))
    one, _, _ = pairs(
        lambda nth: start(100.0, nth), lambda nth: start(100.0, nth), clock=lambda: next(ticks), budget_s=70
    )
    asyncio.run(one.measure())
    assert one.pairs == 2
    assert one.ended is not None
    assert one.ended.startswith("the budget of 1.17 min")


def test_a_verdict_stays_that_of_the_moment_at_which_it_was_known() -> None:
    one = Compared(RATE, Asked())
    for number in range(1, 21):
        new = 50.0 if number <= 10 else 200.0
        one.take(Pair(number, "new", 100.0 + number / 100, new, (100.0,), (new,), (number,), (number,)))
    assert one.outcome == "regressed"
    assert len(one.counted) == one.known.pairs == 7
    assert (
        one.verdict(CODE.id, result(start(50, 1)).summary("decode_tok_s"), strict=False, ended="", facts=()).value == 50
    )


@pytest.mark.parametrize(
    ("limit", "kind"),
    [("ok", "regressed"), ("below floor", "below floor"), ("below target", "regressed")],
)
def test_a_missed_floor_stands_and_a_regression_goes_before_a_target(limit: Any, kind: str) -> None:
    one, side, _ = pairs(lambda nth: start(50.0, nth, again=nth - 1), lambda nth: start(100.0, nth, again=nth - 1))
    asyncio.run(one.measure())
    missed = Verdict(CODE.id, "decode_tok_s", limit, failed=limit != "ok", lines=("below it",), value=50.0)
    (found,) = one.verdicts(side.results[CODE.id], [missed], strict=False, facts=["differs: the engine"])
    assert (found.kind, found.failed) == (kind, True)
    assert any(line.startswith("decode[code] regressed against old: 50.0 tok/s, old 100.0") for line in found.lines)
    assert ("differs: the engine" in found.lines) is (kind == "regressed")


def test_what_was_never_compared_is_inconclusive() -> None:
    one, _, _ = pairs(lambda nth: start(50.0, nth), lambda nth: start(100.0, nth))
    fine = Verdict(CODE.id, "decode_tok_s", "ok", failed=False, lines=(), value=50.0)
    (found,) = one.verdicts(result(start(50.0, 1)), [fine], strict=True, facts=())
    assert (found.kind, found.failed) == ("inconclusive", True)
    assert INTERRUPTED in found.lines[0]
