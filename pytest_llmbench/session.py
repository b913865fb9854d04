"""One setup, measured: the composition of all rooms, usable without pytest.

``SetupRun`` checks the card's promises, starts the server when the first cell is measured, and writes what was promised
and what became of it. ``Bench`` is the face of it that a test sees.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pytest_llmbench import contract as contracts
from pytest_llmbench import machine, plan, promises, prompts, resume, sameness, stats, verdict
from pytest_llmbench.client import LlmClient
from pytest_llmbench.engine import from_card
from pytest_llmbench.engine import log as engine_log
from pytest_llmbench.engine.command import Arguments
from pytest_llmbench.errors import InputError, LlmbenchError, PromiseBrokenError, printable
from pytest_llmbench.files import new_session, write_json, write_text
from pytest_llmbench.going_on import GoingOn
from pytest_llmbench.history import saved
from pytest_llmbench.journal import Journal, plain
from pytest_llmbench.measure import PARTS, request
from pytest_llmbench.report import document, table
from pytest_llmbench.runner import RetryPolicy, Runner, again
from pytest_llmbench.watch.memory import WatchedMemory
from pytest_llmbench.watch.session import start_watch
from pytest_llmbench.watch.settings import Settings as WatchSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.records import Attempt, CellResult, CellSpec, Verdict
    from pytest_llmbench.resume import Continue
    from pytest_llmbench.runner import Changes, Live, Progress
    from pytest_llmbench.watch import Watch


FIT_STEP = 1024
NOT_TRIED = "not tried: {} failed, and the test stops at the first size that fails"


class BenchFailedError(LlmbenchError, AssertionError):
    """A cell has no valid number, or its number is not what was promised. The text is the whole message."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What to compare with: a saved name, and by how much a figure may be worse (shares; per figure, and otherwise)."""

    name: str
    tolerances: Mapping[str, float] = field(default_factory=dict)
    tolerance: float = 0.10


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the caller wants of a run beside the card."""

    storage: Path
    compare: Comparison | None = None
    save: tuple[str, ...] = ()
    json: Path | None = None
    model: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    ready_timeout_s: float = 600.0
    silence_timeout_s: float = 1800.0
    plan_changes: Mapping[str, Any] = field(default_factory=dict)
    probe: bool = False
    go_on: Continue | None = None


class SetupRun:
    """One card in one session.

    saved: after ``finish``, what was asked to be saved: the name, and why it was not (None: it was).
    not_written: why the extra report could not be written.
    folder: where everything is left; created with the first thing to keep. leaves_nothing: the call was wrong, and there
    is no folder. cells: what is promised; left_out: (cell,
    why) of the rest of the plan.
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
    ) -> None:
        self.card, self.folder, self.session, self.wishes = card, folder, session, wishes
        self.cells, self._progress = tuple(cells), progress
        self.results: dict[str, CellResult] = {}
        self.searched: dict[str, CellResult] = {}
        self.verdicts: dict[str, tuple[Verdict, ...]] = {}
        self.problems: list[str] = []
        self.saved: dict[str, str | None] = {}
        self.environment: dict[str, Any] = {}
        self.contract = contracts.Contract(card.id, self.cells, tuple(left_out), (), {})
        self._started = _now()
        self._saved: dict[str, Any] | None = None
        self._key: dict[str, Any] = {}
        self._journal: Journal | None = None
        self._runner: Runner | None = None
        self._watch: Watch | None = None
        self._hopeless: LlmbenchError | None = None
        self._promised = False
        self._impossible: dict[str, str] = {}
        self._going_on: GoingOn | None = None
        self._bounds = sameness.bounds(card)
        self.leaves_nothing = False
        self.not_written: str | None = None

    # ---- starting ----

    async def start(self, spec: CellSpec | None = None) -> None:
        """Check every promise, start the server, build the prompts, write the contract.

        spec: what is to be measured; a part that starts its own servers does not need the card's. Raises LlmbenchError,
        which is kept among the problems of the document too.
        """
        if self._hopeless is not None:
            raise self._hopeless
        try:
            if self._runner is None:
                self._runner = self._prepare_runner()
            needs_none = spec is not None and PARTS[spec.part].cold
            if needs_none and not self._promised:
                if all(PARTS[one.part].cold for one in self.cells):
                    await self._write_contract(None)
                else:  # prompts of the other parts are counted by the card's server
                    await self._runner.live()
            elif not needs_none:
                await self._runner.live()
        except LlmbenchError as exc:
            self.problems.append(str(exc))
            if not self.results:  # it never ran: trying again for every cell only costs time
                self._hopeless = exc
            raise

    def _prepare_runner(self) -> Runner:
        setup = self._check_promises()
        if self.wishes.go_on is not None:
            with self._nothing_left():
                self._going_on = self._go_on(self.wishes.go_on, setup)
        with self._nothing_left():
            self._journal = _journal(self.folder)
        self._journal.event("session", session=self.session, card=self.card.id, environment=self.environment)
        if self._going_on is not None:
            taken = self._going_on.take_over(self.folder, self._journal, self.card.id)
            self.results |= {result.spec.id: self._within_promise(result) for result in taken}
        self._prompts = request.PromptBook(self.card)
        self._progress.phase("starting the watch")
        self._watch = start_watch(
            self.folder, WatchSettings.of(self.card.watch.model_dump(mode="json")), env=dict(setup.spec.env)
        )
        self.environment["watch"] = self._watch.facts

        async def start_server(start_number: int, changes: Changes) -> RunningServer:
            changed = replace(setup, spec=replace(setup.spec, changes=changes))
            return await changed.start(start_number, self.folder / f"server-{start_number}.log")

        return Runner(
            card_id=self.card.id,
            factory=start_server,
            connect=self._connect,
            prompts=self._prompts,
            body=lambda spec, prompt: request.body(self.card, spec, prompt),
            journal=self._journal,
            bounds=self._bounds,
            watch=self._watch,
            progress=self._progress,
            retry=RetryPolicy(),
            warm_ups={spec.part: spec for spec in plan.cells(self.card) if spec.warmups},
            verify=self._verify,
            prepare=self._write_contract,
            memory=WatchedMemory(self._watch, self.folder),
            context_asked=lambda spec: _changed(self.card, PARTS[spec.part].changes(spec), known=True).slot_context,
            first_start=self._going_on.first_start if self._going_on else 1,
        )

    def _go_on(self, wish: Continue, setup: from_card.Setup) -> GoingOn:
        """Read the earlier run, refuse one of another setup, and promise its cells too."""
        earlier = resume.read(resume.find(self.wishes.storage, self.card.id, wish))
        resume.refuse_other(earlier, self._sameness(), wish)
        taken = resume.choose(earlier, self.cells, wish, lambda spec, last: again(spec, last)[0] is None)
        going_on = GoingOn(wish, earlier, taken, self.cells, [spec.id for spec in plan.cells(self.card)])
        self.cells = going_on.cells
        promised = {spec.id for spec in self.cells}
        left_out = tuple((cell, why) for cell, why in self.contract.left_out if cell not in promised)
        self.contract = contracts.Contract(self.card.id, self.cells, left_out, (), {})
        self._key["card"] = self._identity(setup)
        return going_on

    def _check_promises(self) -> from_card.Setup:
        self._progress.phase("checking the card against this machine")
        here = machine.detect()
        self.environment |= {"machine": here.to_json(), "software": machine.software()}
        pairs = promises.require_gpus(self.card.hardware, here)
        self.environment["differs_from_card"] = promises.differences(self.card.hardware, here, pairs)
        self.environment["gpus_not_verified"] = promises.unverified(self.card.hardware)
        setup = from_card.resolve(
            self.card,
            variables=self.wishes.variables,
            model=self.wishes.model,
            ready_timeout_s=self.wishes.ready_timeout_s,
            phase=self._progress.phase,
        )
        self.environment |= {"engine": setup.engine_facts, "model": setup.model_facts}
        self._key = {
            "card_id": self.card.id,
            "card": self._identity(setup),
            "machine": sameness.host(here.host_id, here.cpu, here.gpus),
        }
        if self.wishes.compare is not None:
            with self._nothing_left():
                self._saved = saved.load(self.wishes.storage, self.wishes.compare.name, self.card.id)
                saved.refuse_other(self._saved, self._key)
        return setup

    @contextmanager
    def _nothing_left(self) -> Iterator[None]:
        """A wrong call, found out late: it leaves no folder, for nothing was promised."""
        try:
            yield
        except InputError:
            self.leaves_nothing = True
            raise

    def _verify(self, server: RunningServer, changes: Changes) -> None:
        from_card.verify(_changed(self.card, changes), server)
        if self.card.hardware.gpus and _engine_log(server.log_path).no_usable_gpu:
            raise PromiseBrokenError(
                "hardware.gpus",
                ", ".join(gpu.name for gpu in self.card.hardware.gpus),
                "a server that runs on the CPU: its log says 'no usable GPU found'",
                "take an engine build with the GPU's backend, and see that its driver and libraries are found",
            )

    def _identity(self, setup: from_card.Setup) -> dict[str, Any]:
        """What makes numbers comparable; of the plan only the cells that this session promises."""
        return sameness.identity(self.card, self.cells, {"sha256": setup.model_facts["sha256"]})

    def _connect(self, server: RunningServer) -> LlmClient:
        most = max((spec.requests_per_run for spec in self.cells), default=1)
        return LlmClient(
            server.base_url, connections=most + 1, silence_s=self.wishes.silence_timeout_s, headers=server.headers
        )

    async def _write_contract(self, live: Live | None) -> None:
        """Fix the promise: prompts are built now, so that their hashes stand in it before the first request.

        Not those of parts with servers of their own: their size follows from what the server says (live is None where
        there are only such parts).
        """
        promised = []
        for number, spec in enumerate(self.cells, 1):
            if PARTS[spec.part].cold or live is None:
                continue
            self._progress.phase(f"building prompts: {spec.id} ({number} of {len(self.cells)})")
            try:
                for run in range(1, spec.runs + 1):
                    for nth in range(spec.requests_per_run):
                        prompt = await self._prompts(spec, run, 1, nth, live.client)
                        promised.append(contracts.PromisedPrompt(spec.id, run, nth, prompt))
            except InputError as exc:  # a depth that cannot hold its own task: no other cell's business
                self._impossible[spec.id] = str(exc)
        self.contract = contracts.Contract(
            self.card.id, self.cells, self.contract.left_out, tuple(promised), self._terms(live)
        )
        self._promised = True
        write_json(self.folder / "contract.json", self.contract.to_json())
        assert self._journal is not None
        self._journal.event("contract", file="contract.json", sha256=self.contract.to_json()["sha256"])

    def _sameness(self) -> dict[str, Any]:
        """What two sessions must share before their numbers may stand in one document."""
        engine = self.environment["engine"]
        known = {name: engine.get(name) for name in ("kind", "version", "sha256", "libraries_sha256")}
        return sameness.terms(self.card, self.cells, self._key, known)

    def _terms(self, live: Live | None) -> dict[str, Any]:
        compare = self.wishes.compare
        return self._sameness() | {
            "probe": self.wishes.probe,
            "plan_changes": dict(self.wishes.plan_changes),
            "continues": self._going_on.to_json() if self._going_on else None,
            "tool": self.environment["software"],
            "prompts_version": prompts.PROMPTS_VERSION,
            "card_content": self.card.as_json(),
            "observer": {
                "request_fields": request.OBSERVER_FIELDS,
                "server_command": list(live.server.observer_changes) if live else "said with each server start",
            },
            "server_changes": {spec.id: changes for spec in self.cells if (changes := PARTS[spec.part].changes(spec))},
            "retries": plain(RetryPolicy()),
            "watch": self.environment["watch"],
            "compare": None
            if compare is None
            else {"name": compare.name, "tolerance": compare.tolerance, "tolerances": dict(compare.tolerances)},
        }

    # ---- measuring ----

    async def measure(self, spec: CellSpec) -> CellResult:
        """Measure a promised cell. Raises LlmbenchError where no server can be started."""
        await self.start(spec)
        assert self._runner is not None
        if self._going_on is not None and spec.id in self._going_on.taken.whole:
            return self.results[spec.id]
        taken = self._going_on.taken.attempts.get(spec.id, ()) if self._going_on else ()
        smaller = self._failed_size_below(spec)
        if spec.id in self._impossible:
            result = stats.conclude(spec, self.card.id, (), PARTS[spec.part].kinds, broken=self._impossible[spec.id])
        elif smaller is not None:
            result = self._unsupported(spec, NOT_TRIED.format(smaller))
        else:
            result = self._within_promise(await self._runner.measure(spec, taken))
        self.results[spec.id] = result
        if (
            spec.part == "fit"
            and result.attempts
            and result.status in {"failed", "unsupported"}
            and self.card.plan.fit.refine
        ):
            await self._search(spec)
        return result

    async def _search(self, failed: CellSpec) -> None:
        """Halve the way between the last size that answered and the first that failed, down to steps of 1,024 tokens.

        These sizes are not promised cells: they are found out, and stand apart in the document.
        """
        assert self._runner is not None
        assert failed.context is not None
        good, bad = stats.fit_largest(self.results.values()), failed.context
        while good is not None and (middle := (good + bad) // 2 // FIT_STEP * FIT_STEP) > good:
            result = await self._runner.measure(replace(failed, id=f"fit[{middle}]", context=middle))
            self.searched[result.spec.id] = result
            good, bad = (middle, bad) if result.status == "measured" else (good, middle)

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

    def _unsupported(self, spec: CellSpec, why: str) -> CellResult:
        if self._journal is not None:
            self._journal.event("cell", cell=spec.id, status="unsupported", reasons=[why], summaries=[])
        return stats.unsupported(spec, self.card.id, why)

    def judge(self, result: CellResult) -> tuple[Verdict, ...]:
        """The verdicts of a cell's figures, kept for the document; a probe is not judged."""
        if self.wishes.probe:
            return ()
        part = PARTS[result.spec.part]
        limits = self.card.thresholds.get(result.spec.id, {})
        references = None
        if self._saved is not None and self.wishes.compare is not None:
            compare = self.wishes.compare
            references = saved.references(self._saved, result.spec.id, compare.tolerances, compare.tolerance)
        verdicts = verdict.judge(
            result,
            part.kinds,
            {name: verdict.Threshold(limit.floor, limit.target) for name, limit in limits.items()},
            references,
        )
        self.verdicts[result.spec.id] = verdicts
        if self._journal is not None:
            self._journal.event("verdicts", cell=result.spec.id, verdicts=verdicts)
        return verdicts

    # ---- ending ----

    async def stop(self) -> None:
        """Stop the server; nothing is left running."""
        if self._runner is not None:
            await self._runner.aclose()

    def finish(self) -> document.Document:
        """Write report.json and table.md, and save what was asked for. Works after any kind of end."""
        for result in self.results.values():
            if result.spec.id not in self.verdicts:  # taken over, and no test of this session asked for it
                self.judge(result)
        if self._watch is not None:
            self.environment["quiet_check"] = self._watch.quiet()
        self.environment["engine_log"] = {
            path.name: _engine_log(path).to_json() for path in sorted(self.folder.glob("server-*.log"))
        }
        report = document.build(
            session=self.session,
            started=self._started,
            finished=_now(),
            card=self.card.as_json(),
            contract=self.contract,
            environment=self.environment,
            results=self.results,
            searched=self.searched,
            verdicts=self.verdicts,
            problems=self.problems,
            probe=self.wishes.probe,
            plan_changes=self.wishes.plan_changes,
            continues=self._going_on.to_json() if self._going_on else None,
            replaced=self._going_on.replaced(self.card.id) if self._going_on else None,
            parts=PARTS,
            base=self.folder,
        )
        content = report.model_dump(mode="json")
        if not self.leaves_nothing:
            write_json(self.folder / "report.json", content)
            write_text(self.folder / "table.md", table.render(report))
        if self.wishes.json is not None:
            try:
                write_json(self.wishes.json, content)
            except OSError as exc:  # what was measured is in the folder all the same
                self.not_written = f"--llmbench-json = {str(self.wishes.json)!r}: cannot be written: {exc.strerror}"
        for name in self.wishes.save:
            why_not = saved.why_not_saved(self.wishes.storage, name, self.card.id, self.results, report.complete)
            self.saved[name] = why_not
            if why_not is None:
                saved.save(
                    self.wishes.storage,
                    name,
                    key=self._key,
                    when=self._started,
                    run_folder=self.folder.name,
                    results=self.results.values(),
                )
        if self._journal is not None:
            self._journal.event("report", complete=report.complete, problems=self.problems)
        return report

    def close(self) -> None:
        """Close the journal; after the server has stopped, for that is written into it too."""
        if self._watch is not None:
            self._watch.close()
        if self._journal is not None:
            self._journal.close()
            self._journal = None


class Bench:
    """What a bench test holds: measure a promised cell, then check what its number says.

    skip: called with the reason where a cell is not possible on this machine; without it that is a failure too. report:
    the document, once it is written. cells: what is promised, in order.
    """

    def __init__(self, run: SetupRun, skip: Callable[[str], NoReturn] | None = None) -> None:
        self._run, self._skip = run, skip
        self.measured: list[CellResult] = []
        self.report: document.Document | None = None

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

        Returns the verdicts; raises BenchFailedError with the whole explanation. (A coroutine, because a verdict may need
        more runs on fresh servers.)
        """
        verdicts = self._run.judge(result)
        if result.status == "unsupported" and self._skip is not None:
            self._skip(printable(f"{result.spec.id}: {result.reasons[0]}", lines=True))
        if self._run.wishes.probe and result.status not in {"failed", "missing"}:
            return verdicts  # a trial asks whether it runs, not how fast
        message = verdict.explain(result, verdicts)
        if message:
            raise BenchFailedError(message)
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
            bench.report = run.finish()
            run.close()


def _journal(folder: Path) -> Journal:
    try:
        return Journal(folder)
    except OSError as exc:
        raise InputError(
            "--llmbench-storage", str(folder), f"cannot be written: {exc.strerror}", "name another place"
        ) from None


def _engine_log(path: Path) -> engine_log.EngineLog:
    return engine_log.parse(path.read_text(encoding="utf-8", errors="replace"))


def _changed(card: SetupCard, changes: Changes, *, known: bool = False) -> SetupCard:
    """The card as a server with other arguments is verified: by what is not changed, unless the change is known."""
    args = Arguments(card.server.args)
    for flag, value in changes:
        args = args.set(flag, value if known else "0")
    return card.model_copy(update={"server": card.server.model_copy(update={"args": args.tokens})}) if changes else card


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
