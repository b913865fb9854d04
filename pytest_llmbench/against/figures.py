"""One figure of one cell, pair after pair: the values, what is known, and the verdict with its words. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import counted
from pytest_llmbench.gate.messages import bare, shown
from pytest_llmbench.gate.sequential import Asked, Comparison, Sequential
from pytest_llmbench.records import Verdict
from pytest_llmbench.verdict import name_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.records import Summary, VerdictKind

GIVE_UP = 3
"""So many pairs in a row without a value of a figure end its comparison."""
LISTED = 10
"""More pairs than so many are counted in a message, not listed."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A start of the old and one of the new setup next to each other, as one figure saw them.

    old, new: medians of the starts' runs in the figure's unit, None where not every promised run was valid; old_runs, new_runs:
    the valid values. old_starts, new_starts: numbers of the server starts in each side's folder (two where a crash was
    survived). dropped: why the pair does not count.
    """

    number: int
    first: str
    old: float | None
    new: float | None
    old_runs: tuple[float, ...]
    new_runs: tuple[float, ...]
    old_starts: tuple[int, ...]
    new_starts: tuple[int, ...]
    dropped: str | None = None


@dataclass
class Compared:
    """A figure in comparison. It keeps the verdict of the moment at which it knew; later pairs are only kept."""

    kind: FigureKind
    asked: Asked
    pairs: list[Pair] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._sequential = Sequential(self.asked, self.kind.direction)
        self.known: Comparison = self._sequential.now()
        self._in_vain = 0

    @property
    def open(self) -> bool:
        """Whether one more pair is needed, and may help."""
        return self.known.outcome == "measure again" and self._in_vain < GIVE_UP

    def take(self, pair: Pair) -> None:
        self.pairs.append(pair)
        if pair.old is None or pair.new is None:
            self._in_vain += 1
        elif self.open:
            self._in_vain = 0
            self.known = self._sequential.add(pair.old, pair.new)

    @property
    def counted(self) -> list[Pair]:
        """The pairs that the verdict stands on."""
        return [pair for pair in self.pairs if pair.dropped is None][: self.known.pairs]

    @property
    def outcome(self) -> VerdictKind:
        return "inconclusive" if self.known.outcome == "measure again" else self.known.outcome

    def to_json(self) -> dict[str, Any]:
        """For the document."""
        low, high = self.known.interval
        return {
            "outcome": self.outcome,
            "pairs": [asdict(pair) for pair in self.pairs],
            "counted": self.known.pairs,
            "ratio": None if self.known.change is None else 1 + self.known.change,
            "interval": [None if end is None else 1 + end for end in (low, high)],
            "margin": self.asked.margin,
            "could_have_seen": self.known.could_have_seen,
        }

    def verdict(self, cell: str, summary: Summary, *, strict: bool, ended: str, facts: Sequence[str]) -> Verdict:
        """The verdict. ended: why the pairs ended; facts: lines for the message of a figure that moved or stayed open."""
        kind, known = self.outcome, self.known
        olds = [pair.old for pair in self.counted if pair.old is not None]
        news = [pair.new for pair in self.counted if pair.new is not None]
        low, high = known.interval
        lines = [self._headline(cell, summary, ended)]
        if kind != "equivalent":
            lines += [*self._pairs(), *facts]
        return Verdict(
            cell,
            summary.name,
            kind,
            failed=kind == "regressed" or (kind == "inconclusive" and strict),
            lines=tuple(lines),
            value=statistics.median(news) if news else summary.median,
            reference=statistics.median(olds) if olds else None,
            change=known.change,
            interval=None if low is None or high is None else (low, high),
            resolves=known.could_have_seen,
        )

    def short(self) -> str:
        """Where it stands, for a line of progress: ``new 58.9, old 63.8; -7.7 % (-9.9 … -5.4)``."""
        last = self.pairs[-1]
        if last.dropped is not None:
            return f"dropped, {last.dropped}"
        assert last.old is not None
        assert last.new is not None
        return f"new {bare(last.new)}, old {bare(last.old)}; {self._change()}"

    def _change(self) -> str:
        low, high = ("?" if end is None else f"{100 * end:+.1f}" for end in self.known.interval)
        return f"{100 * (self.known.change or 0.0):+.1f} % ({low} … {high})"

    def _headline(self, cell: str, summary: Summary, ended: str) -> str:
        name, known = name_of(cell, summary), self.known
        if not known.pairs:
            return f"{name} inconclusive against old: no pair has a value on both sides ({ended})"
        olds = [pair.old for pair in self.counted if pair.old is not None]
        news = [pair.new for pair in self.counted if pair.new is not None]
        says = (
            f"{name} {self.outcome} against old: {shown(statistics.median(news), self.kind.unit)}, "
            f"old {bare(statistics.median(olds))}; {self._change()}, "
            f"{counted(known.pairs, 'pair')}, {100 * (1 - self.asked.error):g} % interval, margin {100 * self.asked.margin:g} %"
        )
        if self.outcome != "inconclusive":
            return says
        seen = known.could_have_seen
        could = (
            "too few pairs to bound anything"
            if seen is None or not math.isfinite(seen)
            else f"a worsening of {100 * seen:.1f} % would have been seen"
        )
        return f"{says}: {ended}; {could}"

    def _pairs(self) -> list[str]:
        lines = []
        told = self.pairs if self.outcome == "inconclusive" else self.pairs[: self.counted[-1].number]
        for pair in told[:LISTED]:
            sides = [("old", pair.old_runs), ("new", pair.new_runs)]
            said = "; ".join(
                f"{side} {' '.join(map(bare, runs)) or 'no value'}"
                for side, runs in (sides if pair.first == "old" else sides[::-1])
            )
            lines.append(f"pair {pair.number}: {said}{f' (dropped: {pair.dropped})' if pair.dropped else ''}")
        more = len(told) - LISTED
        return [*lines, *([f"and {more} more pairs, in report.json"] if more > 0 else [])]
