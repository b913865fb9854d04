"""How long runs and server starts take, out of a report's attempts. Pure."""

from __future__ import annotations

import datetime as dt
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def run_s(attempts: Sequence[Mapping[str, Any]]) -> float | None:
    """The median duration of a run that counts, in seconds; None where no attempt has its times."""
    found: list[float] = [
        (one["t_end_ns"] - one["t_start_ns"]) / 1e9 for one in _counting(attempts) if "t_end_ns" in one
    ]
    return statistics.median(found) if found else None


def start_s(attempts: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> float | None:
    """Seconds that a fresh server costs before its first run: stop, start and warm-up, as seen where the cell was measured again.

    Without that, what lay between the session's beginning and its first run: the first start, the checks and the prompts.
    """
    fresh: dict[int, list[Mapping[str, Any]]] = {}
    for one in _counting(attempts):
        if "t_end_ns" in one:
            fresh.setdefault(one.get("again", 0), []).append(one)
    gaps: list[float] = [
        (min(one["t_start_ns"] for one in runs) - max(one["t_end_ns"] for one in fresh[nth - 1])) / 1e9
        for nth, runs in fresh.items()
        if nth - 1 in fresh
    ]
    if gaps:
        return max(0.0, statistics.median(gaps))
    first = min(
        (one["wall"] for cell in document["cells"] for one in _counting(cell["attempts"]) if "wall" in one),
        default=None,
    )
    if first is None:
        return None
    began = dt.datetime.fromisoformat(document["started"])
    return max(0.0, (dt.datetime.fromisoformat(first) - began).total_seconds())


def _counting(attempts: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [one for one in attempts if one["run"] and not one["error"]]
