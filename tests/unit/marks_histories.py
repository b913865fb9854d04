"""Histories of sessions made by hand, a few letters each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.marks.evidence import FigureHistory
from pytest_llmbench.records import Outcome

if TYPE_CHECKING:
    from pytest_llmbench.records import Direction

REFERENCE = 60.0


def outcome(number: int, change: float = 0.0, **more: Any) -> Outcome:
    """Session ``s01`` of 1 January, …; change: of its own value, and what the verdict says."""
    value = REFERENCE * (1 + change)
    facts: dict[str, Any] = {
        "session": f"s{number:02}",
        "started": f"2026-01-{number:02}T03:00:00+00:00",
        "usable": True,
        "disturbed": False,
        "crashed": False,
        "verdict": "ok",
        "value": value,
        "values": (value, value * 1.001, value * 0.999),
        "reference": REFERENCE,
        "change": change,
        "sigma": 0.01,
        "clear": True,
    }
    return Outcome(**{**facts, **more})


# One letter a session: . ok, + improved, r regressed 8 %, t below target by 4 %, d a dip of 9 %, c a survived crash,
# x disturbed, u not usable for another reason, n no baseline, i inconclusive, f below floor, s runs far apart,
# l low mode (-6 %, not suspect by itself), b below target yet clear of its reference, m the machine changed
_LETTERS: dict[str, tuple[float, dict[str, Any]]] = {
    ".": (0.0, {}),
    "+": (0.05, {"verdict": "improved"}),
    "r": (-0.08, {"verdict": "regressed", "clear": False}),
    "t": (-0.04, {"verdict": "below target", "clear": False}),
    "d": (-0.09, {"dip": True}),
    "c": (0.0, {"crashed": True}),
    "x": (-0.2, {"usable": False, "disturbed": True, "verdict": None}),
    "u": (0.0, {"usable": False, "verdict": None, "value": None, "values": ()}),
    "n": (0.0, {"verdict": "no baseline", "clear": None}),
    "i": (-0.03, {"verdict": "inconclusive", "clear": False}),
    "f": (-0.5, {"verdict": "below floor", "clear": False}),
    "s": (0.0, {"values": (60.0, 45.0, 61.0)}),
    "l": (-0.06, {}),
    "b": (0.0, {"verdict": "below target"}),
    "m": (-0.05, {"verdict": "machine changed", "clear": False}),
}


def history(
    letters: str, name: str = "decode_tok_s", direction: Direction = "higher", accepted: str | None = None
) -> FigureHistory:
    """One session a letter; latencies are mirrored."""
    outcomes = []
    for number, letter in enumerate(letters, 1):
        change, more = _LETTERS[letter]
        one = outcome(number, -change if direction == "lower" else change, **more)
        if letter == "l":  # a few tenths of a percent between sessions, as real ones have
            one = replace(one, value=one.value * (1 + 0.001 * (number % 3)) if one.value else None)
        outcomes.append(one)
    return FigureHistory(name, direction, tuple(outcomes), accepted)
