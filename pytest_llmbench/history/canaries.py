"""What became of a planted slowdown: caught or not, by which figures. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.history.entry import SessionEntry
    from pytest_llmbench.records import Direction, VerdictKind


@dataclass(frozen=True, slots=True)
class Seen:
    """One judged figure of a canary's session. change: as it moved; resolves: what it could have shown, both as shares.

    expected: how it should have moved, None where the slowdown is of no known size.
    """

    cell: str
    figure: str
    unit: str
    direction: Direction
    verdict: VerdictKind
    change: float | None
    resolves: float | None
    expected: float | None

    @property
    def caught(self) -> bool:
        return self.verdict == "regressed"

    @property
    def missed(self) -> bool:
        """Not caught, although it said that it resolves a change of that size."""
        known = self.expected is not None and self.resolves is not None
        return not self.caught and known and (self.resolves or 0.0) <= abs(self.expected or 0.0)


@dataclass(frozen=True, slots=True)
class Catch:
    """A canary's session, read. caught: a figure regressed, every cell has its number, and nothing else was found wrong.

    why_not: where it was not caught. unknown: why it is no result at all, where it is none.
    """

    session: str
    started: str
    words: str
    seen: tuple[Seen, ...]
    caught: bool
    why_not: str
    unknown: str = ""


def unknown(one: SessionEntry) -> str:
    """Why a session with a planted slowdown says nothing about the gate: cells that nobody judged; empty where it does."""
    without = [
        cell.cell
        for cell in one.cells
        if cell.status == "missing"
        or (cell.status == "measured" and all(figure.verdict is None for figure in cell.figures))
    ]
    return f"the session ended before these cells were judged: {', '.join(without)}" if without else ""


def read(one: SessionEntry) -> Catch:
    """Read a canary's session. ValueError for a session that is none."""
    if one.canary is None:
        raise ValueError(f"session {one.session} is no canary")
    share = one.canary.get("share")
    seen = tuple(
        Seen(
            cell.cell,
            figure.name,
            figure.unit,
            figure.direction,
            figure.verdict,
            figure.change,
            figure.resolves,
            None if share is None else (share / (1 - share) if figure.direction == "lower" else -share),
        )
        for cell in one.cells
        for figure in cell.figures
        if figure.verdict is not None
    )
    why_not = _why_not(one, seen)
    return Catch(one.session, one.started, str(one.canary["words"]), seen, not why_not, why_not, unknown(one))


def _why_not(one: SessionEntry, seen: Sequence[Seen]) -> str:
    if one.problems:
        return one.problems[0].partition("\n")[0]
    without = [f"{cell.cell} {cell.status}" for cell in one.cells if cell.status not in {"measured", "unsupported"}]
    if without:
        return f"not every cell has a number: {', '.join(without)}"
    if any(figure.verdict == "machine changed" for figure in seen):
        return "the gate said that the machine changed"
    if not any(figure.caught for figure in seen):
        return "no figure regressed"
    return ""


def line(canaries: Sequence[SessionEntry]) -> str:
    """One line for a report: when a planted slowdown was last caught. canaries: oldest first."""
    found = [one for one in map(read, canaries) if not one.unknown]
    if not found:
        return "canary: never tried (llmbench canary plants a slowdown and sees whether it is caught)"
    last = next((one for one in reversed(found) if one.caught), None)
    said = f"{last.words} caught on {last.started[:10]}" if last else "never caught"
    newest = found[-1]
    if newest.caught:
        return f"canary: {said}"
    return f"canary: {newest.words} NOT caught on {newest.started[:10]} ({newest.why_not}); {'before: ' if last else ''}{said}"
