"""Why a session stayed out of its baselines although its numbers are usable: it started too soon after another. Pure."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING

from pytest_llmbench.history import baselines as rules
from pytest_llmbench.history.entry import seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.history.entry import SessionEntry
    from pytest_llmbench.history.read import KeptBaseline


def not_counted(entry: SessionEntry, kept: Sequence[KeptBaseline]) -> str | None:
    """The line about a session with usable figures that baselines which still collect did not take; None where none is.

    kept: the current baselines of its cells on its machine, after it was recorded.
    """
    found = {(one.cell_key, one.figure): one for one in kept}
    at = seconds(entry.started)
    measured: set[str] = set()
    near: dict[str, float] = {}
    members: list[float] = []
    for line in entry.cells:
        for figure in line.figures:
            if figure.direction == "none" or not rules.usable(own=line.own, status=line.status, median=figure.median):
                continue
            measured.add(line.cell)
            one = found.get((line.key or "", figure.name))
            if one is None or one.baseline.pinned or entry.session in one.baseline.sessions:
                continue
            theirs = [seconds(when) for when in one.started]
            nearest = min(theirs, key=lambda member: abs(at - member), default=math.inf)
            if abs(at - nearest) < rules.APART_S:
                near[line.cell] = nearest
                members += theirs
    if not near:
        return None
    nearest = min(near.values(), key=lambda member: abs(at - member))
    of = "the baseline" if near.keys() == measured else f"the baselines of {', '.join(near)}"
    return (
        f"this session does not count for {of}: it started {abs(at - nearest) / 60:.1f} min "
        f"{'after' if at >= nearest else 'before'} the one of {_clock(nearest, at)} "
        f"({rules.APART_S / 60:.0f} apart are needed); "
        f"the next counts from {_clock(math.ceil((max(members) + rules.APART_S) / 60) * 60, at)} UTC on"
    )


def _clock(moment: float, beside: float) -> str:
    """Hours and minutes in UTC; with the day where it is another one."""
    when, today = (dt.datetime.fromtimestamp(one, dt.UTC) for one in (moment, beside))
    return when.strftime("%H:%M" if when.date() == today.date() else "%Y-%m-%d %H:%M")
