"""The runner: a cell's runs, each attempted as often as the policy says.

Guard repeats, retries of invalid runs, retries after a crash and runs on fresh servers are all attempts of a run, each
with its number, its reason and the server start it used. So the runner owns the server factory.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench import stats
from pytest_llmbench.errors import LlmbenchError, PromiseBrokenError
from pytest_llmbench.measure import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.attempts import Attempts
    from pytest_llmbench.records import Attempt, CellResult, CellSpec

FIRST = "first"
RUNS_AGAIN = 5


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a run is attempted again, by cause (METHOD: 3 repeats of a disturbed run, one more of an invalid one)."""

    disturbed: int = 3
    invalid: int = 1
    crash: int = 1


class Runner:
    """Measures cells of one setup.

    attempts: makes single ones. One server serves all parts that take the card's arguments as they are.
    """

    def __init__(self, *, card_id: str, attempts: Attempts, retry: RetryPolicy) -> None:
        self.card_id, self.servers, self.journal = card_id, attempts.servers, attempts.journal
        self._attempts, self._retry = attempts, retry
        self._measuring: asyncio.Task[Any] | None = None
        self._made: dict[str, list[Attempt]] = {}

    def finished_runs(self, spec: CellSpec) -> int:
        """Runs of a cell that came to their end in this session or an earlier one that it goes on with."""
        made = self._made.get(spec.id, [])
        return sum(
            any(one.run == run and why_again(spec, one)[0] is None for one in made) for run in range(1, spec.runs + 1)
        )

    async def aclose(self) -> None:
        await self._end_abandoned()
        await self.servers.drop("end of the session")

    async def _end_abandoned(self) -> None:
        """End a measurement whose caller is gone, and the server that it kept busy.

        A time limit that raises out of the event loop (pytest-timeout) leaves the task behind, and the loop would go on
        with it beside the next test.
        """
        task, self._measuring = self._measuring, None
        if task is None or task.done() or task is asyncio.current_task():
            return
        task.cancel()
        await asyncio.wait([task])
        await self.servers.drop("its measurement was abandoned by the test")

    # ---- runs ----

    async def measure_again(self, result: CellResult, nth: int, reason: str) -> CellResult:
        """Measure a cell on one more fresh server; the result with these attempts too (``Attempt.again`` = nth).

        The same prompts as its own runs, and more runs than they: the median of a start should say more about the start than
        about its runs. Status and summaries stay those of its own runs.
        """
        await self._end_abandoned()
        self._measuring = asyncio.current_task()
        spec, attempts = replace(result.spec, runs=runs_again(result.spec)), list(result.attempts)
        before = self.servers.starts
        try:
            await self.servers.drop(reason)
            for run in range(1, spec.runs + 1):
                await self.run(spec, run, attempts, reason=reason, again=nth, one_server=True)
                if attempts[-1].error is not None:  # its server is gone: what another one gives is another start's
                    break
        except LlmbenchError as exc:  # this start says nothing; the ones before it still count
            self.journal.event("measuring again failed", cell=spec.id, again=nth, error=str(exc))
            if not any(one.again == nth for one in attempts):  # it counts as one that was tried
                attempts.append(self._attempts.not_started(spec, 1, 1, reason, nth, str(exc)))
                self.journal.event("attempt", attempt=attempts[-1])
        logs = [str(self.journal.folder / f"server-{n}.log") for n in range(before + 1, self.servers.starts + 1)]
        return replace(result, attempts=tuple(attempts), server_logs=(*result.server_logs, *logs))

    async def measure(self, spec: CellSpec, taken: Sequence[Attempt] = ()) -> CellResult:
        """Measure one cell: each promised run, attempted again as the policy says.

        taken: attempts that an earlier session made of some runs; those are not made again. Raises ServerError where not
        even the card's own server can be started, and PromiseBrokenError where one of its own for a run is not the promised one;
        every other failure is in the result.
        """
        attempts = self._made[spec.id] = list(taken)
        broken: str | None = None
        await self._end_abandoned()
        self._measuring = asyncio.current_task()
        cold = PARTS[spec.part].cold
        if not cold:
            await self.servers.live()
        before = self.servers.starts if cold else self.servers.starts - 1
        for run in range(1, spec.runs + 1):
            if any(one.run == run for one in taken):
                continue
            try:
                await self.run(spec, run, attempts)
            except (
                LlmbenchError
            ) as exc:  # it ran before and does not start again: the cell's failure, with what there is
                if cold and isinstance(exc, PromiseBrokenError):
                    raise  # no size is tried on a server that is not the promised one
                broken = str(exc)
                break
        starts = sorted({one.server_start for one in taken} | set(range(before + 1, self.servers.starts + 1)))
        result = stats.conclude(
            spec,
            self.card_id,
            attempts,
            PARTS[spec.part].kinds,
            raw_file=str(self.journal.folder / self.journal.raw_file(spec.id)),
            server_logs=[str(self.journal.folder / f"server-{n}.log") for n in starts],
            broken=broken,
        )
        self.journal.event(
            "cell", cell=spec.id, status=result.status, reasons=result.reasons, summaries=result.summaries
        )
        if cold:  # after that event: whoever is killed while a large server stops has measured this cell
            await self.servers.drop(f"{spec.id} is done")
        return result

    async def measure_start(
        self, spec: CellSpec, earlier: Sequence[Attempt], *, again: int, reason: str
    ) -> tuple[list[Attempt], tuple[int, ...], str | None]:
        """Measure a cell's promised runs on the running server (a new one where there is none), as one start of several.

        earlier: the attempts of starts before; attempts of the same run and ``again`` are counted on. Returns the attempts, the
        server starts that they used, and what kept runs from being made. The caller puts the cell together.
        """
        await self._end_abandoned()
        self._measuring = asyncio.current_task()
        attempts: list[Attempt] = []
        before, broken = self.servers.starts, None
        try:
            if not PARTS[spec.part].cold:
                await self.servers.live()
                before = self.servers.starts - 1
            for run in range(1, spec.runs + 1):
                made = sum(one.run == run and one.again == again for one in earlier)
                await self.run(spec, run, attempts, reason=reason, again=again, first=made + 1)
        except LlmbenchError as exc:  # this start says nothing more of the cell; others may
            broken = str(exc)
            self.journal.event("start failed", cell=spec.id, reason=reason, error=broken)
        if PARTS[spec.part].cold:
            await self.servers.drop(f"{spec.id} is done")
        return attempts, tuple(range(before + 1, self.servers.starts + 1)), broken

    async def run(
        self,
        spec: CellSpec,
        run: int,
        attempts: list[Attempt],
        *,
        reason: str = FIRST,
        again: int = 0,
        first: int = 1,
        one_server: bool = False,
    ) -> None:
        """Make a run, and again while the policy allows; append every attempt to ``attempts``. one_server: not after a crash.

        The last attempt counts no more than the others: ``stats`` takes the first valid one.
        """
        left = {"disturbed": self._retry.disturbed, "invalid": self._retry.invalid, "crash": self._retry.crash}
        if PARTS[spec.part].cold or one_server:
            left["crash"] = 0  # a size that does not fit is the answer, not an accident
        for number in itertools.count(first):
            attempt = await self._attempts.make(spec, run, number, reason, again)
            attempts.append(attempt)
            cause, reason = why_again(spec, attempt)
            if cause is None or left[cause] == 0:
                return
            left[cause] -= 1


def runs_again(spec: CellSpec) -> int:
    """Runs on a fresh server when a cell is measured again: 5 (GATE); 1 where each needs a server or a long answer of its own."""
    return 1 if PARTS[spec.part].cold or spec.part == "long_answer" else RUNS_AGAIN


def why_again(spec: CellSpec, attempt: Attempt) -> tuple[str | None, str]:
    """Why the run should be attempted once more: the policy's word for it, and the reason recorded."""
    if attempt.error is not None:
        return "crash", f"attempt {attempt.number} broke off: {attempt.error.splitlines()[0]}"
    if attempt.guard == stats.DISTURBED:
        return "disturbed", f"attempt {attempt.number} was disturbed: {attempt.details.get('guard', '')}"
    required = {kind.name for kind in PARTS[spec.part].kinds if kind.gated and kind.required}
    for figure in attempt.figures:
        if figure.name in required and figure.reasons:
            return "invalid", f"attempt {attempt.number} was invalid: {figure.reasons[0]}"
    return None, ""
