"""A run that goes on with an earlier one: what it promises, takes over, replaces, and says about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench import resume, stats
from pytest_llmbench.contract import cell_from_json
from pytest_llmbench.fit_search import size_of, sized
from pytest_llmbench.journal import Journal
from pytest_llmbench.measure import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pytest_llmbench.records import Attempt, CellResult, CellSpec
    from pytest_llmbench.resume import Continue, Earlier, Taken


@dataclass(frozen=True)
class GoingOn:
    """An earlier run and what of it this one takes over. own: cells that this session selects; order: ids of the plan."""

    wish: Continue
    earlier: Earlier
    taken: Taken
    own: Sequence[CellSpec]
    order: Sequence[str]

    @property
    def cells(self) -> tuple[CellSpec, ...]:
        """What is promised now: the earlier run's cells and this session's, in the order of the plan."""
        both = {cell["id"]: cell_from_json(cell) for cell in self.earlier.cells} | {spec.id: spec for spec in self.own}
        place = {cell: at for at, cell in enumerate(self.order)}
        return tuple(both[cell] for cell in sorted(both, key=lambda cell: place.get(cell, len(place))))

    @property
    def first_start(self) -> int:
        """Server starts are counted on, so that logs and attempts of both sessions keep their numbers."""
        return self.earlier.last_start + 1

    def take_over(self, folder: Path, journal: Journal, card: str) -> Iterator[CellResult]:
        """Copy what is taken over into the new run's folder; yields the cells that need nothing more."""
        attempts = [one for found in self.taken.attempts.values() for one in found]
        resume.copy_records(self.earlier, attempts, folder)
        journal.event("taken over", session=self.earlier.session, cells=sorted(self.taken.whole))
        for one in attempts:
            journal.event("attempt", attempt=one)
        specs = {spec.id: spec for spec in self.cells}
        for cell, (status, reasons) in self.taken.whole.items():
            result = _conclude(specs[cell], self.taken.attempts[cell], status, reasons, folder, card)
            journal.event("cell", cell=cell, status=result.status, reasons=result.reasons, summaries=result.summaries)
            yield result

    def searched(self, folder: Path, journal: Journal, card: str) -> Iterator[CellResult]:
        """The sizes that the finer search of ``fit`` tried already, after ``take_over``."""
        like = next((spec for spec in self.cells if spec.part == "fit"), None)
        for cell, (status, reasons) in self.taken.searched.items():
            size = size_of(cell)
            assert size is not None
            assert like is not None
            result = _conclude(sized(like, size), self.taken.attempts[cell], status, reasons, folder, card)
            journal.event("cell", cell=cell, status=result.status, reasons=result.reasons, summaries=result.summaries)
            yield result
        for cell, largest in self.earlier.searched.items():
            if cell in self.taken.whole:
                journal.event("search", failed=cell, largest=largest)

    def to_json(self) -> dict[str, Any]:
        """For contract and document: which run, why, and which runs of which cells were taken over."""
        return {
            "kind": self.wish.kind,
            "session": self.earlier.session,
            "reason": self.wish.reason,
            "taken": {cell: sorted({one.run for one in found}) for cell, found in self.taken.attempts.items()},
            "replaced": list(self.taken.replaced),
        }

    def replaced(self, card: str) -> dict[str, dict[str, Any]]:
        """The valid results that gave way to this session's, as the earlier run has them; by cell."""
        specs = {spec.id: spec for spec in self.cells}
        found = {}
        for cell in self.taken.replaced:
            was = stats.conclude(specs[cell], card, self.earlier.attempts[cell], PARTS[specs[cell].part].kinds)
            found[cell] = {
                "session": self.earlier.session,
                "status": was.status,
                "medians": {summary.name: summary.median for summary in was.summaries},
                "raw_file": str(self.earlier.folder / Journal.raw_file(cell)),
            }
        return found


def _conclude(
    spec: CellSpec, attempts: Sequence[Attempt], status: str, reasons: tuple[str, ...], folder: Path, card: str
) -> CellResult:
    if not attempts and status == "unsupported":
        return stats.unsupported(spec, card, reasons[0])
    starts = sorted({one.server_start for one in attempts})
    found = stats.conclude(
        spec,
        card,
        attempts,
        PARTS[spec.part].kinds,
        raw_file=str(folder / Journal.raw_file(spec.id)),
        server_logs=[str(folder / f"server-{n}.log") for n in starts],
    )
    if status == "failed" and found.status != "failed":  # by a server that did not start: no attempt tells of it
        return replace(found, status="failed", reasons=reasons)
    return found
