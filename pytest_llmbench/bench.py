"""What a bench test holds, and the same without pytest."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NoReturn

from pytest_llmbench import plan
from pytest_llmbench.errors import InputError, LlmbenchError, printable
from pytest_llmbench.files import new_session
from pytest_llmbench.marks.effect import Effect
from pytest_llmbench.session import SetupRun
from pytest_llmbench.wishes import Comparison, Gating, Wishes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from pytest_llmbench.attempts import Progress
    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.records import Attempt, CellResult, CellSpec, Verdict
    from pytest_llmbench.report.form import Document

__all__ = ["Bench", "BenchFailedError", "Comparison", "Gating", "Wishes", "measuring"]


class BenchFailedError(LlmbenchError, AssertionError):
    """A cell has no valid number, or its number is not what was promised. The text is the whole message."""


class Bench:
    """What a bench test holds: measure a promised cell, then check what its number says.

    skip: called with the reason where a cell is not possible on this machine; without it that is a failure too. xfail:
    called with the message of a failure that a reviewed mark covers; without it that fails. report: the document, once it
    is written. cells: what is promised, in order.
    """

    def __init__(
        self,
        run: SetupRun,
        skip: Callable[[str], NoReturn] | None = None,
        xfail: Callable[[str], NoReturn] | None = None,
    ) -> None:
        self._run, self._skip, self._xfail = run, skip, xfail
        self.measured: list[CellResult] = []
        self.report: Document | None = None

    @property
    def card(self) -> SetupCard:
        return self._run.card

    @property
    def cells(self) -> tuple[CellSpec, ...]:
        return self._run.cells

    async def measure(self, cell: CellSpec | str) -> CellResult:
        """Measure a cell, by its spec or id (``decode[code]``). Raises InputError for one that is not promised."""
        spec = cell if not isinstance(cell, str) else self._spec(cell)
        result = await self._run.measure(spec)
        self.measured.append(result)
        return result

    async def decode(self, prompt_id: str) -> CellResult:
        """Measure ``decode[prompt_id]``."""
        return await self.measure(f"decode[{prompt_id}]")

    async def prefill(self, depth: int) -> CellResult:
        """Measure ``prefill[depth]``."""
        return await self.measure(f"prefill[{depth}]")

    async def check(self, result: CellResult) -> tuple[Verdict, ...]:
        """Judge a result: every promised run valid, every threshold kept, nothing worse than what it is compared with.

        A cell with a suspect figure is measured again on fresh servers first. Returns the verdicts; raises
        BenchFailedError with the whole explanation.
        """
        result = await self._run.settled(result)
        self._run.checked.add(result.spec.id)
        verdicts = self._run.judge(result)
        if result.status == "unsupported" and self._skip is not None:
            self._skip(printable(f"{result.spec.id}: {result.reasons[0]}", lines=True))
        if self._run.wishes.probe and result.status not in {"failed", "missing"}:
            return verdicts  # a trial asks whether it runs, not how fast
        effect = self._run.gate.effects.get(result.spec.id, Effect())
        message = self._run.message(result)
        said = "\n".join(
            [message, *effect.failures, *(f"  {note}" for note in effect.notes)] if message else effect.failures
        )
        if effect.xfail is not None and self._xfail is not None:
            self._xfail(printable(f"{effect.xfail}\n{said}", lines=True))
        if said:
            raise BenchFailedError(said)
        return verdicts

    def _spec(self, cell_id: str) -> CellSpec:
        for spec in self._run.cells:
            if spec.id == cell_id:
                return spec
        raise InputError(
            "cell",
            cell_id,
            f"not promised in this session (promised: {', '.join(c.id for c in self._run.cells)})",
            "put it into the card's plan",
        )


class Silent:
    """A Progress that says nothing."""

    def phase(self, text: str) -> None: ...

    def note(self, text: str) -> None: ...

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None: ...

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None: ...


@asynccontextmanager
async def measuring(
    card: SetupCard, wishes: Wishes, *, cells: Sequence[str] | None = None, progress: Progress | None = None
) -> AsyncIterator[Bench]:
    """Measure a card without pytest: the server starts with the first cell, and is gone after the block.

    cells: the ids that are promised; None: all of the plan. Everything is left in a new folder under
    ``wishes.storage``/runs; ``bench.report`` holds the document once the block has ended. Raises InputError for a cell that
    is not in the plan.
    """
    planned = {spec.id: spec for spec in plan.cells(card)}
    for cell in cells or ():
        if cell not in planned:
            raise InputError("cells", cell, "not in the card's plan", f"one of {', '.join(planned)}")
    promised = [spec for spec in planned.values() if cells is None or spec.id in cells]
    session = new_session()
    run = SetupRun(
        card,
        cells=promised,
        left_out=[(cell, "not asked for") for cell, spec in planned.items() if spec not in promised],
        folder=wishes.storage / "runs" / session / card.id,
        session=session,
        wishes=wishes,
        progress=progress or Silent(),
    )
    bench = Bench(run)
    try:
        yield bench
    finally:
        try:
            await run.stop()
        finally:
            try:
                bench.report = run.finish()
            finally:
                run.close()
