"""What a figure is, apart from how it is read: everything right of ``measure`` needs only this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pytest_llmbench.records import Direction


@dataclass(frozen=True, slots=True)
class FigureKind:
    """A figure's name, unit, direction and definition (one line, printed in the report).

    gated: thresholds and comparisons may judge it; otherwise it is a companion. required: a cell without it is not
    measured; where not, it stands there with the reason why it has no value.
    """

    name: str
    unit: str
    direction: Direction
    definition: str
    gated: bool = True
    required: bool = True


class PartFigures(Protocol):
    """The figures of a part, as a report names them."""

    @property
    def kinds(self) -> tuple[FigureKind, ...]: ...

    @property
    def headline(self) -> str:
        """The figure that speaks for the part in one line."""
        ...
