"""What else the machine did while a run was measured.

The runner asks a ``Guard`` around every run. ``Unwatched`` answers honestly that nobody looked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class GuardWord:
    """The guard's word on one run. reason: who disturbed, how much (None unless disturbed)."""

    word: Literal["clean", "disturbed", "not watched"]
    reason: str | None = None
    details: dict[str, Any] = field(default_factory=dict)


class Guard(Protocol):
    """Watches one run at a time."""

    def begin(self, label: str) -> None: ...

    def end(self) -> GuardWord: ...


class Unwatched:
    """No guard: runs are never repeated for foreign load, and the record says "not watched"."""

    def begin(self, label: str) -> None:
        """Nothing to start."""

    def end(self) -> GuardWord:
        return GuardWord("not watched")
