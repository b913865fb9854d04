"""What else the machine did while a run was measured.

The runner asks a ``Guard`` around every run; a session holds a ``Watch``, which is one. ``Unwatched`` answers honestly
that nobody looked, and why. ``session.start_watch`` gives the real one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Word = Literal["clean", "disturbed", "not watched"]


@dataclass(frozen=True, slots=True)
class GuardWord:
    """The guard's word on one run. reason: who disturbed, how much, or why nobody looked (None where clean).

    details: the summary of the run's samples (``judge.judge`` says what is in it).
    """

    word: Word
    reason: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


class Guard(Protocol):
    """Watches one run at a time."""

    def begin(self, label: str) -> None: ...

    def end(self) -> GuardWord: ...


class Watch(Guard, Protocol):
    """A guard with the rest of what a session asks about its machine. facts: what is watched and what cannot be."""

    facts: dict[str, Any]

    def set_server(self, pid: int | None) -> None:
        """The server that was started just now (None: stopped): its tree's memory is measured."""
        ...

    def now(self) -> dict[str, Any]:
        """A sample taken at this moment; empty where nothing is watched."""
        ...

    def quiet(self) -> dict[str, Any]:
        """The quiet check so far; empty where nothing is watched."""
        ...

    def close(self) -> None: ...


class Unwatched:
    """No watch: runs are never repeated for foreign load, and the record says "not watched" and why."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = reason
        self.facts: dict[str, Any] = {"watched": False, "reason": reason}

    def begin(self, label: str) -> None:
        """Nothing to start."""

    def end(self) -> GuardWord:
        return GuardWord("not watched", self.reason)

    def set_server(self, pid: int | None) -> None:
        """Nobody to tell."""

    def now(self) -> dict[str, Any]:
        return {}

    def quiet(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Nothing to close."""
