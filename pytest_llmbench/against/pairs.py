"""The pairs: new and old started in turns, each start measuring every cell that does not know yet.

One start serves all cells, for loading a model costs more than measuring on it; a cell whose figures all know takes no part in
later starts. The order is new old, old new, new old, …: what drifts evenly cancels.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench import stats
from pytest_llmbench.against.figures import GIVE_UP, Compared, Pair
from pytest_llmbench.errors import counted
from pytest_llmbench.gate.sequential import Asked
from pytest_llmbench.measure import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.records import Attempt, CellResult, CellSpec, Verdict
    from pytest_llmbench.runner import Runner
    from pytest_llmbench.wishes import Against

INTERRUPTED = "the session was interrupted"
_FIRST_LINE = 160


class Side(Protocol):
    """One of the two setups, a run of its own."""

    card: SetupCard
    results: dict[str, CellResult]

    @property
    def runner(self) -> Runner: ...

    async def start(self, spec: CellSpec | None = None) -> None: ...

    def conclude(self, spec: CellSpec, attempts: Sequence[Attempt], starts: Sequence[int], broken: str | None) -> None:
        """Put the cell together from all its attempts, into ``results``."""
        ...

    async def stop_server(self) -> None: ...


@dataclass
class _Made:
    """What one side has of one cell: all attempts, all server starts."""

    attempts: list[Attempt] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Start:
    """What one start gave a cell."""

    attempts: Sequence[Attempt]
    starts: tuple[int, ...]


class Pairs:
    """Measures the pairs of a session. cells: what is compared; note: a line for a person.

    pairs: those that are whole; ended: why they ended, None while they go on or where they were interrupted.
    """

    def __init__(
        self,
        new: Side,
        old: Side,
        cells: Sequence[CellSpec],
        wish: Against,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sides: dict[str, Side] = {"new": new, "old": old}
        self.cells, self.wish, self._note, self._clock = tuple(cells), wish, note, clock
        judged = {spec.id: judged_kinds(spec) for spec in cells}
        self.asked = Asked(
            margin=wish.margin, budget=wish.pairs, figures=max(1, sum(len(kinds) for kinds in judged.values()))
        )
        self.figures = {
            (cell, kind.name): Compared(kind, self.asked) for cell, kinds in judged.items() for kind in kinds
        }
        self._made = {(side, spec.id): _Made() for side in self._sides for spec in cells}
        self._used: set[str] = set()
        self._task: asyncio.Task[Any] | None = None
        self.pairs, self.ended = 0, None if self.figures else "no figure of these cells can be compared"
        self.seconds = 0.0

    # ---- measuring ----

    async def measure(self) -> None:
        """Measure pairs until every figure knows or the budget is used up; at once where that is so.

        Raises LlmbenchError where the old setup cannot be started at all.
        """
        await self._end_abandoned()
        if self.ended is not None:
            return
        self._task = asyncio.current_task()
        began, last = self._clock(), 0.0
        for number in itertools.count(1):
            active = [spec for spec in self.cells if self._open(spec)]
            self.ended = self._why_ended(number, active, self._clock() - began, last)
            if self.ended is not None:
                break
            at = self._clock()
            order = ("new", "old") if number % 2 else ("old", "new")
            found = {side: await self._start(side, number, active) for side in order}
            for spec in active:
                self._take(number, order[0], spec, found)
            self.pairs = number
            last, self.seconds = self._clock() - at, self._clock() - began
        self._note(f"{counted(self.pairs, 'pair')} in {self.seconds / 60:.1f} min: {self.ended}")
        await self.stop()

    def _open(self, spec: CellSpec) -> bool:
        return any(one.open for (cell, _), one in self.figures.items() if cell == spec.id)

    def _why_ended(self, number: int, active: Sequence[CellSpec], elapsed: float, last: float) -> str | None:
        if all(one.outcome != "inconclusive" for one in self.figures.values()):
            return "every figure knows"
        if number > self.wish.pairs:
            return f"the budget of {counted(self.wish.pairs, 'pair')} is used up"
        if not active:
            return f"what does not know had no value in {GIVE_UP} pairs in a row"
        if self.wish.budget_s is not None and number > 1 and elapsed + last > self.wish.budget_s:
            return f"the budget of {self.wish.budget_s / 60:.3g} min has no room for another pair ({last / 60:.1f} min)"
        return None

    async def _start(self, side: str, number: int, active: Sequence[CellSpec]) -> dict[str, _Start]:
        """Start one side anew and measure on it; the other side's server is gone before."""
        one, other = self._sides[side], self._sides["old" if side == "new" else "new"]
        reason = f"pair {number}, {side}"
        self._note(f"pair {number} of at most {self.wish.pairs}: the {side} side")
        await other.stop_server()
        if side in self._used:
            await one.runner.servers.drop(reason)
        else:  # the server on which its prompts were built is as fresh as any
            await one.start(active[0])
            self._used.add(side)
        found = {}
        for spec in active:
            made = self._made[side, spec.id]
            result = one.results.get(spec.id)
            # Until its own promised runs are there, a start goes on with them; then each has its number.
            again = number - 1 if result is not None and result.status == "measured" else 0
            attempts, starts, broken = await one.runner.measure_start(spec, made.attempts, again=again, reason=reason)
            made.attempts += attempts
            made.starts += [start for start in starts if start not in made.starts]
            one.conclude(spec, made.attempts, made.starts, broken if again == 0 else None)
            found[spec.id] = _Start(attempts, starts)
        return found

    def _take(self, number: int, first: str, spec: CellSpec, found: Mapping[str, Mapping[str, _Start]]) -> None:
        for kind in judged_kinds(spec):
            old, new = (stats.summarise(spec, found[side][spec.id].attempts, kind) for side in ("old", "new"))
            reasons = [
                f"{side} {one.reasons[0] if one.reasons else f'is {one.median}'}".splitlines()[0][:_FIRST_LINE]
                for side, one in (("old", old), ("new", new))
                if one.median is None or one.median <= 0
            ]
            self.figures[spec.id, kind.name].take(
                Pair(
                    number=number,
                    first=first,
                    old=None if reasons else old.median,
                    new=None if reasons else new.median,
                    old_runs=old.values,
                    new_runs=new.values,
                    old_starts=found["old"][spec.id].starts,
                    new_starts=found["new"][spec.id].starts,
                    dropped="; ".join(reasons) or None,
                )
            )
        self._note(f"{spec.id} pair {number} of at most {self.wish.pairs}: {self._state(spec)}")

    def _state(self, spec: CellSpec) -> str:
        of_cell = {name: one for (cell, name), one in self.figures.items() if cell == spec.id}
        speaks = of_cell.get(PARTS[spec.part].headline) or next(iter(of_cell.values()))
        waiting = [name for name, one in of_cell.items() if one.open]
        if not waiting:
            return f"{speaks.short()}, {speaks.outcome}"
        return f"{speaks.short()}, goes on" + ("" if len(waiting) == len(of_cell) else f" for {', '.join(waiting)}")

    async def _end_abandoned(self) -> None:
        """End a measurement whose test is gone (a time limit), so that it does not go on beside the next one."""
        task, self._task = self._task, None
        if task is None or task.done() or task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait([task])
        self.ended = "its test was abandoned"
        await self.stop()

    async def stop(self) -> None:
        """Stop both servers."""
        for side in self._sides.values():
            await side.stop_server()

    # ---- what it says ----

    def verdicts(
        self, result: CellResult, limits: Sequence[Verdict], *, strict: bool, facts: Sequence[str]
    ) -> tuple[Verdict, ...]:
        """The cell's verdicts. limits: what the card's thresholds say; a missed floor stands, a regression goes before a target."""
        ended, found = self.ended or INTERRUPTED, []
        for limit in limits:
            one = self.figures.get((result.spec.id, limit.figure))
            if one is None or limit.value is None:
                found.append(limit)
                continue
            verdict = one.verdict(result.spec.id, result.summary(limit.figure), strict=strict, ended=ended, facts=facts)
            if limit.kind == "below floor" or (limit.failed and verdict.kind != "regressed"):
                found.append(replace(limit, lines=(*limit.lines, verdict.lines[0])))
            else:
                found.append(verdict)
        return tuple(found)

    def figures_json(self) -> dict[str, dict[str, Any]]:
        """Every figure's pairs and outcome, by cell and name."""
        found: dict[str, dict[str, Any]] = {}
        for (cell, name), one in self.figures.items():
            if one.pairs:
                found.setdefault(cell, {})[name] = one.to_json()
        return found


def judged_kinds(spec: CellSpec) -> list[FigureKind]:
    """The figures of a cell that are compared."""
    return [kind for kind in PARTS[spec.part].kinds if kind.gated and kind.direction != "none"]
