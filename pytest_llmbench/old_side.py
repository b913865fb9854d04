"""The old card's run in a direct comparison: its folder lies in the new one's, and pairs are made of both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.against import cards
from pytest_llmbench.against.pairs import Pairs
from pytest_llmbench.errors import LlmbenchError
from pytest_llmbench.session import SetupRun
from pytest_llmbench.wishes import Gating

if TYPE_CHECKING:
    from pytest_llmbench.records import CellResult, CellSpec
    from pytest_llmbench.wishes import Against

FOLDER = "against"


class OldSide:
    """The other half of a direct comparison. run: the old card's; pairs: what is made of both, once it is prepared."""

    def __init__(self, new: SetupRun, wish: Against) -> None:
        """Raises InputError for cards that cannot be compared."""
        common, only_new, only_old = cards.common(new.card, wish.card)
        compared = {spec.id for spec in common}
        cells = tuple(spec for spec in new.cells if spec.id in compared)
        cards.refuse(new.card, wish.card, cells)
        self._new, self._wish = new, wish
        self._only = {"only_new": list(only_new), "only_old": list(only_old)}
        self._differs: list[str] = []
        self.pairs: Pairs | None = None
        self.run = SetupRun(
            wish.card,
            cells=cells,
            left_out=[(cell, "the new card has no such cell") for cell in only_old],
            folder=new.folder / FOLDER,
            session=new.session,
            wishes=replace(
                new.wishes,
                against=None,
                control=None,
                canary=None,
                gating=Gating(),
                compare=None,
                save=(),
                json=None,
                go_on=None,
                model=None,
            ),
            progress=new.progress,
        )

    def prepare(self) -> None:
        """Check the old card's promises; its server is not started yet. Raises LlmbenchError."""
        new, wish = self._new, self._wish
        try:
            self.run.prepare()
        except LlmbenchError as exc:
            raise LlmbenchError(f"the old card, {self.run.card.id}: {exc}") from None
        self.pairs = Pairs(new, self.run, self.run.cells, wish, new.progress.note)
        differs = [
            *cards.engines(self.run.environment, new.environment),
            *cards.differences(new.card, wish.card),
        ]
        terms: dict[str, Any] = {
            "margin": wish.margin,
            "most_pairs": wish.pairs,
            "budget_min": None if wish.budget_s is None else wish.budget_s / 60,
            "error": self.pairs.asked.error,
            "figures": self.pairs.asked.figures,
            "differs": differs,
        } | self._only
        self._differs = differs
        new.compared = {"role": "new", "card": wish.card.id, "folder": FOLDER} | terms
        self.run.compared = {"role": "old", "card": new.card.id, "folder": ".."} | terms
        new.progress.note(f"new against old differ in: {'; '.join(differs) or 'nothing that is known'}")

    async def measure(self, spec: CellSpec) -> CellResult:
        """Measure all cells' pairs with the first cell that is asked for; the others find theirs made."""
        new = self._new
        assert self.pairs is not None
        if spec not in self.pairs.cells:
            new.results[spec.id] = new.unsupported(spec, "not compared: the old card has no such cell")
            return new.results[spec.id]
        try:
            await self.pairs.measure()
        except LlmbenchError as exc:
            new.give_up(f"the old card, {self.run.card.id}: {exc}")
            raise LlmbenchError(new.problems[-1]) from None
        said = cards.prompts(self.run.preparation.contract, new.preparation.contract)
        if said is not None and said not in self._differs:
            self._differs.append(said)
            new.progress.note(f"new against old differ in: {said}")
        return new.result_of(spec)

    def finish(self) -> None:
        """Say how far the pairs came, on both sides, and write the old card's documents."""
        pairs = self.pairs
        if pairs is None:
            return
        came = {"pairs": pairs.pairs, "ended": pairs.ended, "minutes": round(pairs.seconds / 60, 2)}
        for side in (self._new, self.run):
            side.compared = (side.compared or {}) | came
        self.run.finish()
