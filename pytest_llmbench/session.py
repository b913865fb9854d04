"""One setup, measured: the composition of all rooms, usable without pytest.

``SetupRun`` checks the card's promises, starts the server when the first cell is measured, and writes what was promised
and what became of it. ``bench.Bench`` is the face of it that a test sees.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench import ending, fit_search, sameness, stats, verdict
from pytest_llmbench.assembly import assemble
from pytest_llmbench.engine import log as engine_log
from pytest_llmbench.engine.launch import is_container
from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.files import now
from pytest_llmbench.history import saved
from pytest_llmbench.journal import Journal, plain
from pytest_llmbench.judging import Gate
from pytest_llmbench.measure import PARTS, request
from pytest_llmbench.preparation import Preparation
from pytest_llmbench.records import CellResult
from pytest_llmbench.slowdown import Planted
from pytest_llmbench.watch.session import start_watch
from pytest_llmbench.watch.settings import Settings as WatchSettings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_llmbench.attempts import Progress
    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.control_side import ControlSide
    from pytest_llmbench.old_side import OldSide
    from pytest_llmbench.outcomes import JudgedCell
    from pytest_llmbench.records import Attempt, CellSpec, CellStatus, Verdict
    from pytest_llmbench.report.form import Document
    from pytest_llmbench.runner import Runner
    from pytest_llmbench.servers import Live
    from pytest_llmbench.watch import Watch
    from pytest_llmbench.wishes import Wishes


NOT_TRIED = "not tried: {} failed, and the test stops at the first size that fails"


class SetupRun:
    """One card in one session.

    preparation: what is promised, and what is known of it (cells, contract, environment, key). folder: where everything is
    left; created with the first thing to keep. results, verdicts: by cell; searched: sizes of the finer memory search.
    control: what takes turns; old, compared: the other side of a direct comparison. checked: cells whose verdict a test
    asked for. remeasured_s: seconds spent on fresh servers before a verdict.
    After ``finish``, saved: what was asked to be saved by name, and why it was not (None: it was); forgotten: why the history
    does not have this run; not_written: the files that could not be written, and why; table: as table.md has it.
    """

    def __init__(
        self,
        card: SetupCard,
        *,
        cells: Sequence[CellSpec],
        left_out: Sequence[tuple[str, str]],
        folder: Path,
        session: str,
        wishes: Wishes,
        progress: Progress,
        watch: Watch | None = None,
    ) -> None:
        self.card, self.folder, self.session, self.wishes = card, folder, session, wishes
        self.progress = progress
        self.preparation = Preparation(
            card, cells=cells, left_out=left_out, folder=folder, wishes=wishes, phase=progress.phase
        )
        self.results: dict[str, CellResult] = {}
        self.searched: dict[str, CellResult] = {}
        self.verdicts: dict[str, tuple[Verdict, ...]] = {}
        self.problems: list[str] = []
        self.forgotten: list[str] = []
        self.checked: set[str] = set()
        self.saved: dict[str, str | None] = {}
        self.started = now()
        self.journal: Journal | None = None
        self._runner: Runner | None = None
        self.watch: Watch | None = watch
        self._owns_watch = watch is None
        self.control = _control_side(self)
        self._hopeless: LlmbenchError | None = None
        self._measured = False
        self._tried: set[str] = set()
        self.gate = Gate(wishes.gating, wishes.storage, card.id, canary=wishes.canary is not None)
        self.planted = Planted(wishes.canary) if wishes.canary is not None else None
        self.remeasured_s = 0.0
        self.old: OldSide | None = None
        self.compared: dict[str, Any] | None = None
        self.bounds = sameness.bounds(card)
        self.not_written: list[str] = []
        self.interrupted = False
        self.table = ""

    @property
    def cells(self) -> tuple[CellSpec, ...]:
        """What is promised."""
        return self.preparation.cells

    @property
    def environment(self) -> dict[str, Any]:
        """This machine and the setup, as far as they are known; for the documents."""
        return self.preparation.environment

    @property
    def key(self) -> dict[str, Any]:
        """What makes figures comparable; empty until the card was held beside this machine."""
        return self.preparation.key

    @property
    def leaves_nothing(self) -> bool:
        """The call was wrong, and there is no folder."""
        return self.preparation.leaves_nothing

    # ---- starting ----

    async def start(self, spec: CellSpec | None = None) -> None:
        """Check every promise, start the server, build the prompts, write the contract.

        spec: what is to be measured; a part that starts its own servers does not need the card's. Raises LlmbenchError,
        which is kept among the problems of the document too.
        """
        if spec is not None:
            self._tried.add(spec.id)
        if self._hopeless is not None:
            raise self._hopeless
        if self.old is not None and self.preparation.fixed:
            return  # the pairs start their servers themselves
        try:
            if self._runner is None:
                self.prepare()
                self._prepare_old()
            needs_none = spec is not None and self._needs_no_server(spec)
            if needs_none and not self.preparation.fixed:
                if all(map(self._needs_no_server, self.cells)):
                    await self.write_contract(None)
                else:  # prompts of the other parts are counted by the card's server
                    await self.runner.servers.live()
            elif not needs_none:
                await self.runner.servers.live()
        except (LlmbenchError, OSError) as exc:
            raise self._broken(exc) from None

    def _needs_no_server(self, spec: CellSpec) -> bool:
        """Whether the card's own server has nothing to do for a cell: it starts its own, or was taken over."""
        going_on = self.preparation.going_on
        return PARTS[spec.part].cold or (going_on is not None and spec.id in going_on.taken.whole)

    def _broken(self, exc: LlmbenchError | OSError) -> LlmbenchError:
        """Keep what ended a start or a cell among the problems; where this session measured nothing yet, nothing is tried again."""
        found = (
            exc
            if isinstance(exc, LlmbenchError)
            else LlmbenchError(f"{exc.filename or self.folder}: {exc.strerror or exc}")
        )
        self.problems.append(str(found))
        # It never ran, or nothing can be written (a full disk): trying again for every cell only costs time.
        if not self._measured or isinstance(exc, OSError):
            self._hopeless = found
        return found

    def prepare(self) -> None:
        """Check every promise and make the runner; no server is started yet. Raises LlmbenchError."""
        self._runner = self._prepare_runner()

    def _prepare_old(self) -> None:
        """The old card's run, where this is a direct comparison."""
        if self.wishes.against is None:
            return
        from pytest_llmbench.old_side import OldSide  # noqa: PLC0415 - a run of its own: it imports this module

        self.old = OldSide(self, self.wishes.against)
        try:
            self.old.prepare()
        except LlmbenchError as exc:
            self.old.run.problems.append(str(exc))
            raise

    def give_up(self, problem: str) -> None:
        """Nothing more can be measured, and why."""
        self.problems.append(problem)
        self._hopeless = LlmbenchError(problem)

    def _prepare_runner(self) -> Runner:
        setup = self.preparation.check()
        self.preparation.go_on()
        with self.preparation.nothing_left():
            self._refuse_canary()
            if not self.wishes.probe:
                self.gate.open(self.key, self.environment, self._judged_figures())
            self.journal = _journal(self.folder)
        self.journal.event("session", session=self.session, card=self.card.id, environment=self.environment)
        going_on = self.preparation.going_on
        if going_on is not None:
            taken = going_on.take_over(self.folder, self.journal, self.card.id)
            self.results |= {result.spec.id: self._within_promise(result) for result in taken}
            self.searched |= {one.spec.id: one for one in going_on.searched(self.folder, self.journal, self.card.id)}
        self._texts = request.PromptBook(self.card)
        if self.planted is not None:
            self.planted.limit(self.preparation.gpus)
        if self.watch is None:
            self.progress.phase("starting the watch")
            self.watch = start_watch(
                self.folder, WatchSettings.of(self.card.watch.model_dump(mode="json")), env=dict(setup.spec.env)
            )
        if self.control is not None:
            self.control.prepare()
        self.environment["watch"] = self.watch.facts
        return assemble(self, setup, self.journal, self._texts)

    def _refuse_canary(self) -> None:
        """Refuse one that cannot be planted here."""
        if (canary := self.wishes.canary) is None:
            return
        canary.environment(tuple(self.card.server.env.items()))
        if canary.way == "pause" and is_container(tuple(self.card.server.wrapper)):
            reason = "a server in a container cannot be stopped from outside"
            raise InputError("--llmbench-canary", canary.words, reason, "--llmbench-canary threads:N")

    def _judged_figures(self) -> int:
        return sum(kind.gated and kind.direction != "none" for spec in self.cells for kind in PARTS[spec.part].kinds)

    async def write_contract(self, live: Live | None) -> None:
        """Fix the promise, with the prompts that a live server counts."""
        assert self.journal is not None
        await self.preparation.fix(live, self._texts, self.journal, self.compared, self.gate.terms())

    # ---- measuring ----

    async def measure(self, spec: CellSpec) -> CellResult:
        """Measure a promised cell. Raises LlmbenchError where no server can be started."""
        await self.start(spec)
        assert self._runner is not None
        if self.old is not None:
            return await self.old.measure(spec)
        going_on = self.preparation.going_on
        if going_on is not None and spec.id in going_on.taken.whole:
            await self._search(self.results[spec.id])
            return self.results[spec.id]
        taken = going_on.taken.attempts.get(spec.id, ()) if going_on else ()
        smaller = self._failed_size_below(spec)
        if (impossible := self.preparation.impossible.get(spec.id)) is not None:
            result = stats.conclude(spec, self.card.id, (), PARTS[spec.part].kinds, broken=impossible)
        elif smaller is not None:
            result = self.unsupported(spec, NOT_TRIED.format(smaller))
        else:
            try:
                result = self._within_promise(await self._runner.measure(spec, taken))
            except (LlmbenchError, OSError) as exc:
                raise self._broken(exc) from None
            self._measured = True
        self.results[spec.id] = result
        await self._search(result)
        return result

    @property
    def runner(self) -> Runner:
        assert self._runner is not None
        return self._runner

    def conclude(self, spec: CellSpec, attempts: Sequence[Attempt], starts: Sequence[int], broken: str | None) -> None:
        """Put a cell of several starts together; its status and summaries are those of its own promised runs."""
        result = self._within_promise(
            stats.conclude(
                spec,
                self.card.id,
                attempts,
                PARTS[spec.part].kinds,
                raw_file=str(self.folder / Journal.raw_file(spec.id)),
                server_logs=[str(self.folder / f"server-{n}.log") for n in starts],
                broken=broken,
            )
        )
        before, self.results[spec.id] = self.results.get(spec.id), result
        if self.journal is not None and (before is None or before.status != result.status):
            self.journal.event(
                "cell", cell=spec.id, status=result.status, reasons=result.reasons, summaries=result.summaries
            )

    async def _search(self, result: CellResult) -> None:
        """Search finer below a size that failed, where the card wants it; what is known already is not tried again."""
        if not (self.card.plan.fit.refine and fit_search.due(result)):
            return
        assert self._runner is not None
        assert self.journal is not None
        runner, known = self._runner, {one.spec.context or 0: one for one in self.searched.values()}

        async def measure(spec: CellSpec) -> CellResult:
            self.searched[spec.id] = await runner.measure(spec)
            return self.searched[spec.id]

        largest = await fit_search.search(result.spec, self.results.values(), known, measure)
        self.journal.event("search", failed=result.spec.id, largest=largest)

    def _failed_size_below(self, spec: CellSpec) -> str | None:
        """The first size of the memory test that failed, where the cell is a larger one."""
        for one in self.results.values():
            if one.spec.part == spec.part == "fit" and one.status in {"failed", "unsupported"}:
                assert one.spec.context is not None
                assert spec.context is not None
                if one.spec.context < spec.context:
                    return one.spec.id
        return None

    def _within_promise(self, result: CellResult) -> CellResult:
        """A size above the card's own context promises nothing: that it fails is what was to be found out."""
        size = result.spec.context
        if result.status != "failed" or size is None or self.card.context is None or size <= self.card.context:
            return result
        return replace(result, status="unsupported")

    def unsupported(self, spec: CellSpec, why: str) -> CellResult:
        if self.journal is not None:
            self.journal.event("cell", cell=spec.id, status="unsupported", reasons=[why], summaries=[])
        return stats.unsupported(spec, self.card.id, why)

    async def settled(self, result: CellResult) -> CellResult:
        """Measure a cell again on fresh servers while a figure of it is suspect (GATE), as often as was allowed."""
        if self.wishes.probe or self._runner is None or result.status != "measured":
            return result
        kinds = PARTS[result.spec.part].kinds
        while suspects := self.gate.suspects(result, kinds):
            nth = max((attempt.again for attempt in result.attempts), default=0) + 1
            reason = f"suspect: {'; '.join(suspects)}"
            self.progress.note(f"{result.spec.id} {reason}: measuring again on fresh server {nth}")
            began = time.monotonic()
            try:
                result = await self._runner.measure_again(result, nth, reason)
            except OSError as exc:
                raise self._broken(exc) from None
            self.remeasured_s += time.monotonic() - began
            self.results[result.spec.id] = result
        return result

    def judge(self, result: CellResult) -> tuple[Verdict, ...]:
        """The verdicts of a cell's figures, kept for the document; a probe is not judged."""
        if self.wishes.probe or (self.compared or {}).get("role") == "old":
            return ()
        limits = self.card.thresholds.get(result.spec.id, {})
        references = None
        if self.preparation.saved is not None and self.wishes.compare is not None:
            compare = self.wishes.compare
            references = saved.references(self.preparation.saved, result.spec.id, compare.tolerances, compare.tolerance)
        verdicts = self.gate.judge(
            result,
            PARTS[result.spec.part].kinds,
            {name: verdict.Threshold(limit.floor, limit.target) for name, limit in limits.items()},
            references,
            seen=lambda: self._seen(result),
        )
        if self.old is not None and self.old.pairs is not None:
            differs = (self.compared or {})["differs"]
            facts = [
                f"differs (old -> new): {'; '.join(differs) if differs else 'nothing that is known'}",
                f"old: {self.folder / 'against' / Journal.raw_file(result.spec.id)}",
            ]
            verdicts = self.old.pairs.verdicts(result, verdicts, strict=self.wishes.gating.strict, facts=facts)
        self.verdicts[result.spec.id] = verdicts
        if self.journal is not None:
            self.journal.event("verdicts", cell=result.spec.id, verdicts=verdicts)
        return verdicts

    def _seen(self, result: CellResult) -> dict[str, Any]:
        """A cell as a report document has it, as far as ``gate.facts`` reads it."""
        environment = self.environment | {"engine_log": self.engine_logs()}
        return {
            "cells": [{"id": result.spec.id, "attempts": [plain(one) for one in result.attempts]}],
            "environment": environment,
        }

    def engine_logs(self) -> dict[str, Any]:
        """What the servers' logs say, by their names."""
        return {path.name: engine_log.read(path).to_json() for path in sorted(self.folder.glob("server-*.log"))}

    def message(self, result: CellResult) -> str:
        """Everything that a failing cell has to say; empty for one that passes."""
        verdicts = self.verdicts.get(result.spec.id, ())
        return verdict.explain(result, verdicts, facts=self.gate.explanation.facts(result, verdicts))

    # ---- ending ----

    @property
    def not_reached(self) -> tuple[str, ...]:
        """Promised cells that the session ended before; a later one can go on with them (--llmbench-resume)."""
        if not self.preparation.fixed or self.wishes.probe or self.wishes.canary or self.compared is not None:
            return ()
        unreached = [one.id for one in self.cells if one.id not in self.results and not self._is_given_up(one.id)]
        return (*unreached, *(one.id for one in self.cells if one.id in self._not_judged))

    def _is_given_up(self, cell: str) -> bool:
        """Whether it was asked for and could not be measured: another session is no remedy, what the problem says is."""
        return cell in self._tried and bool(self.problems) and not self.interrupted

    @property
    def _not_judged(self) -> frozenset[str]:
        """After ``finish``: the cells that were measured, and interrupted before their verdict."""
        if not self.interrupted or self.wishes.probe or self.compared is not None:
            return frozenset()
        return frozenset(
            cell for cell, one in self.results.items() if one.status == "measured" and cell not in self.verdicts
        )

    async def stop(self) -> None:
        """Stop the server, the control's and the old card's; nothing is left running."""
        try:
            await self.stop_server()
        finally:
            if self.control is not None:
                await self.control.stop()
            if self.old is not None:
                await self.old.run.stop_server()
            if self.planted is not None:
                self.planted.close()
                self.problems += [one for one in self.planted.problems if one not in self.problems]

    async def stop_server(self) -> None:
        """Stop this setup's own server."""
        if self._runner is not None:
            await self._runner.aclose()

    def finish(self, *, interrupted: bool = False) -> Document:
        """Write report.json and table.md, and save what was asked for. Works after any kind of end.

        interrupted: the session ended before its time; a cell that was on its way to a verdict gets none, and a later
        session can go on with it. Of a direct comparison what the pairs say so far is told: nothing goes on with it.
        """
        self.interrupted = interrupted
        for result in self.results.values():
            if result.spec.id in self.verdicts:
                continue
            if not interrupted or self.compared is not None or result.status != "measured":
                self.judge(result)  # taken over, and no test of this session asked for it
        return ending.finish(self)

    def control_facts(self) -> dict[str, Any] | None:
        """For the documents: what the control did in this session; None where none was asked for."""
        return None if self.control is None else self.control.facts()

    def judged(self) -> list[JudgedCell]:
        """Every promised cell with what was decided about it, after ``finish``."""
        results = {spec.id: self.result_of(spec) for spec in self.cells}
        # A test that only measures asserts for itself: no session fails for what no test checked.
        # The pairs of a comparison that was interrupted speak for all their cells: their test never came to ask.
        told = self.checked | (self.verdicts.keys() if self.interrupted and self.compared is not None else set())
        asked = {cell: found for cell, found in self.verdicts.items() if cell in told}
        judged = self.gate.judged(results, asked, lambda part: PARTS[part].kinds)
        return [replace(one, not_judged=one.result.spec.id in self._not_judged) for one in judged]

    def result_of(self, spec: CellSpec) -> CellResult:
        """A promised cell's result; one that says why it has none where it was not measured."""
        if spec.id in self.results:
            return self.results[spec.id]
        status: CellStatus = "failed" if self.problems else "missing"
        reasons = tuple(self.problems) or (self._why_missing(spec),)
        return CellResult(spec, self.card.id, status, attempts=(), summaries=(), reasons=reasons)

    def _why_missing(self, spec: CellSpec) -> str:
        made = self._runner.finished_runs(spec) if self._runner is not None else 0
        if not made:
            return "the session ended before this cell was measured"
        return f"the session ended after {made} of {spec.runs} runs of this cell; they are kept, and --llmbench-resume goes on"

    def close(self) -> None:
        """Close the journal; after the server has stopped, for that is written into it too."""
        if self.planted is not None:
            self.planted.close()
        if self.old is not None:
            self.old.run.close()
        self.gate.close()
        if self.control is not None:
            self.control.close()
        if self.watch is not None and self._owns_watch:
            self.watch.close()
        if self.journal is not None:
            self.journal.close()
            self.journal = None


def _control_side(run: SetupRun) -> ControlSide | None:
    if run.wishes.control is None:
        return None
    from pytest_llmbench.control_side import ControlSide  # noqa: PLC0415 - a run of its own: it imports this module

    return ControlSide(run, run.wishes.control)


def _journal(folder: Path) -> Journal:
    try:
        return Journal(folder)
    except OSError as exc:
        raise InputError(
            "--llmbench-storage", str(folder), f"cannot be written: {exc.strerror}", "name another place"
        ) from None
