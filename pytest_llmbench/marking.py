"""What the reviewed file of marks says of a session's items: pytest markers, and marks that cover nothing."""

from __future__ import annotations

import datetime as dt
from functools import cached_property
from typing import TYPE_CHECKING

from pytest_llmbench.card import FIGURES
from pytest_llmbench.marks import effect
from pytest_llmbench.marks import file as marks_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.records import CellSpec

MARKERS: Mapping[str, str] = {
    "slow": "a cell with an accepted slow mark in effect; set by the plugin, for -m 'not slow'",
    "flaky": "a cell with an accepted flaky mark in effect; set by the plugin, for -m 'not flaky'",
}


class Marking:
    """The marks of a session's cards. plans: card id to the cells of its plan. Raises MarksError for a file that is wrong.

    The machine is looked at only where a mark of one of these cards is for one machine: without marks a collection
    touches no device.
    """

    def __init__(self, path: Path, plans: Mapping[str, Sequence[CellSpec]]) -> None:
        self._marks, self._plans = marks_file.read(path), plans

    def markers_of(self, card: str, cell: str) -> tuple[str, ...]:
        """The pytest markers of a cell today; an expired mark gives none."""
        its = [one for one in self._marks.marks if (one.card, one.cell) == (card, cell)]
        if not its:
            return ()
        key = self._machine_key if any(one.machine != marks_file.ANY for one in its) else marks_file.ANY
        return effect.markers(its, card=card, cell=cell, machine_key=key, today=dt.datetime.now(dt.UTC).date())

    def covers_nothing(self) -> list[str]:
        """Marks of these cards for cells and figures that do not exist, a line each."""
        figures = {str(part): names for part, names in FIGURES.items()}
        plans = {card: {spec.id: figures[spec.part] for spec in cells} for card, cells in self._plans.items()}
        return marks_file.covers_nothing(self._marks, plans)

    @cached_property
    def _machine_key(self) -> str:
        from pytest_llmbench import machine, sameness  # noqa: PLC0415 - costs time, and is seldom needed
        from pytest_llmbench.history import keys  # noqa: PLC0415

        here = machine.detect()
        return keys.machine_key({"machine": sameness.host(here.host_id, here.cpu, here.gpus)})
