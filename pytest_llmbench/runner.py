"""The runner: makes attempts of runs, one after the other, and keeps every one of them.

Guard repeats, retries of invalid runs, retries after a crash and runs on fresh servers are all attempts of a run, each
with its number, its reason and the server start it used. So the runner owns the server factory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench import stats
from pytest_llmbench.client import parse
from pytest_llmbench.errors import InputError, ServerError
from pytest_llmbench.files import now
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.part import RunFacts, Sent, read_run
from pytest_llmbench.records import Attempt
from pytest_llmbench.watch.gpu_summary import energy_per_token_j

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import Answer, CellResult, CellSpec, Prompt, RequestTrace
    from pytest_llmbench.servers import Live, Servers
    from pytest_llmbench.watch import Watch

FIRST = "first"
WARM_UP_RUN = 0
RUNS_AGAIN = 5


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a run is attempted again, by cause (METHOD: 3 repeats of a disturbed run, one more of an invalid one)."""

    disturbed: int = 3
    invalid: int = 1
    crash: int = 1


class PromptSource(Protocol):
    """Prompts of a cell, unique per request and the same in every session."""

    async def __call__(self, spec: CellSpec, run: int, attempt: int, request: int, client: LlmClient) -> Prompt: ...


class Interleave(Protocol):
    """Awaited before each attempt of a run that is not cold, with the setup's server idle: the control's turn."""

    async def __call__(self) -> Mapping[str, Any]:
        """What it gave, kept as the attempt's ``details["control"]``."""
        ...


class Progress(Protocol):
    """Told what happens, so that a person sees it. Must return at once."""

    def phase(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays."""

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None: ...

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None: ...


class Runner:
    """Measures cells of one setup.

    prompts builds what is sent; body turns a prompt into a request. One server serves all parts that take the card's
    arguments as they are. interleave: what takes turns with this setup's runs. context_asked: tokens that one request of a cell should be able to use.
    """

    def __init__(
        self,
        *,
        card_id: str,
        servers: Servers,
        prompts: PromptSource,
        body: Callable[[CellSpec, Prompt], Mapping[str, Any]],
        journal: Journal,
        bounds: Bounds,
        watch: Watch,
        progress: Progress,
        retry: RetryPolicy,
        warm_ups: Mapping[str, CellSpec],
        context_asked: Callable[[CellSpec], int | None],
        interleave: Interleave | None = None,
    ) -> None:
        self.card_id, self.servers, self.journal, self.bounds = card_id, servers, journal, bounds
        self._prompts, self._body = prompts, body
        self._watch, self._progress, self._retry = watch, progress, retry
        self._warm_ups, self._context_asked = warm_ups, context_asked
        self._interleave = interleave
        self._measuring: asyncio.Task[Any] | None = None

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
        broken: str | None = None
        try:
            await self.servers.drop(reason)
            for run in range(1, spec.runs + 1):
                await self.run(spec, run, attempts, reason=reason, again=nth)
        except ServerError as exc:  # this start says nothing; the ones before it still count
            broken = str(exc)
            self.journal.event("measuring again failed", cell=spec.id, again=nth, error=broken)
        logs = [str(self.journal.folder / f"server-{n}.log") for n in range(before + 1, self.servers.starts + 1)]
        return replace(result, attempts=tuple(attempts), server_logs=(*result.server_logs, *logs))

    async def measure(self, spec: CellSpec, taken: Sequence[Attempt] = ()) -> CellResult:
        """Measure one cell: each promised run, attempted again as the policy says.

        taken: attempts that an earlier session made of some runs; those are not made again. Raises ServerError where not
        even the card's own server can be started; every other failure is in the result.
        """
        attempts = list(taken)
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
            except ServerError as exc:  # it ran before and does not start again: the cell's failure, with what there is
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
        except (ServerError, InputError) as exc:  # this start says nothing more of the cell; others may
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
    ) -> None:
        """Make a run, and again while the policy allows; append every attempt to ``attempts``.

        The last attempt counts no more than the others: ``stats`` takes the first valid one.
        """
        left = {"disturbed": self._retry.disturbed, "invalid": self._retry.invalid, "crash": self._retry.crash}
        if PARTS[spec.part].cold:
            left["crash"] = 0  # a size that does not fit is the answer, not an accident
        for number in itertools.count(first):
            attempt = await self._attempt(spec, run, number, reason, again)
            attempts.append(attempt)
            cause, reason = why_again(spec, attempt)
            if cause is None or left[cause] == 0:
                return
            left[cause] -= 1

    async def _attempt(self, spec: CellSpec, run: int, number: int, reason: str, again: int) -> Attempt:
        if PARTS[spec.part].cold:
            attempt = await self._cold_attempt(spec, run, number, reason, again)
        else:
            live = await self.servers.live()
            broken = await self._warm_up(live, spec)
            if broken is None:
                beside = {"control": dict(await self._interleave())} if self._interleave is not None else {}
                self._progress.run_started(spec, run, number, reason, live.client)
                attempt = await self._send(live, spec, run, number, reason, again)
                attempt = replace(attempt, details=attempt.details | beside)
            else:  # the server did not survive it: this attempt is over before it began
                attempt = replace(broken, cell=spec.id, run=run, number=number, reason=reason, again=again)
        self.journal.event("attempt", attempt=attempt)
        self.journal.sync()
        self._progress.run_finished(spec, attempt)
        return attempt

    async def _cold_attempt(self, spec: CellSpec, run: int, number: int, reason: str, again: int) -> Attempt:
        """Start a server for this attempt alone and measure on it; a start that fails is the attempt's failure."""
        wall, t_start = now("milliseconds"), time.monotonic_ns()
        try:
            live = await self.servers.cold(f"{spec.id} starts its own", PARTS[spec.part].changes(spec))
        except ServerError as exc:
            t_end = time.monotonic_ns()
            return Attempt(
                cell=spec.id,
                run=run,
                number=number,
                reason=reason,
                server_start=self.servers.starts,
                guard="not watched",
                wall=wall,
                t_start_ns=t_start,
                t_end_ns=t_end,
                request_ids=(),
                figures=(),
                error=str(exc),
                details={"failed_after_s": round((t_end - t_start) / 1e9, 2)},
                again=again,
            )
        self._progress.run_started(spec, run, number, reason, live.client)
        attempt = await self._send(live, PARTS[spec.part].sized(spec, live.context), run, number, reason, again)
        if attempt.error is None:
            return attempt
        seconds = round((attempt.t_end_ns - t_start) / 1e9, 2)
        error = f"{attempt.error}\n  {seconds:.1f} s after the server's start began"
        if live.server.exit_status() is None:  # of one that died, the end of the log is in the message already
            error += "\n  the server lives; the last lines of its log:\n" + _log_end(live.server)
        return replace(attempt, error=error, details=attempt.details | {"failed_after_s": seconds})

    async def _warm_up(self, live: Live, spec: CellSpec) -> Attempt | None:
        """The part's warm-up, once a server start, whichever cell of the part comes first.

        None when all is well; else the attempt that broke off.
        """
        warm_up = self._warm_ups.get(spec.part)
        if warm_up is None or spec.part in live.warmed:
            return None
        live.warmed.add(spec.part)
        for number in range(1, warm_up.warmups + 1):
            self._progress.run_started(warm_up, WARM_UP_RUN, number, "warm-up", live.client)
            attempt = await self._send(live, warm_up, WARM_UP_RUN, number, "warm-up")
            self.journal.event("attempt", attempt=attempt)
            self._progress.run_finished(warm_up, attempt)
            if attempt.error is not None:
                return attempt
        return None

    async def _send(self, live: Live, spec: CellSpec, run: int, number: int, reason: str, again: int = 0) -> Attempt:
        wanted = range(spec.requests_per_run if run != WARM_UP_RUN else 1)
        prompts = [await self._prompts(spec, run, number, request, live.client) for request in wanted]
        bodies = [self._body(spec, prompt) for prompt in prompts]
        ids = [f"{spec.id}/{run}/{number}/{request}/s{live.server.start_number}" for request in wanted]
        wall = now("milliseconds")
        self._watch.begin(_label(spec, run, number))
        try:
            with _gc_frozen():
                t_start = time.monotonic_ns()
                traces = await live.client.burst(bodies, ids)
                t_end = time.monotonic_ns()
        except asyncio.CancelledError:
            live.busy = True  # the server may go on with what was asked; nothing else is measured on it
            self._watch.end()
            self.journal.event("attempt interrupted", cell=spec.id, run=run, attempt=number)
            raise
        word = self._watch.end()
        answers = [parse(trace) for trace in traces]
        error = await self._broke_off(live, _label(spec, run, number), traces, answers)
        client = live.client
        known = RunFacts(word.word, word.reason, error, client.lag_max_ms, client.kernel_stamps)
        facts = self._facts(spec, live, known)
        for trace, prompt in zip(traces, prompts, strict=True):
            self.journal.request(
                spec.id,
                trace,
                run=run,
                attempt=number,
                again=again,
                server_start=live.server.start_number,
                prompt={"sha256": prompt.sha256, "tokens": prompt.tokens, "exact": prompt.exact, "nonce": prompt.nonce},
                facts=facts,
            )
        part = PARTS[spec.part]
        sent = [Sent(t, a, p.tokens) for t, a, p in zip(traces, answers, prompts, strict=True)]
        reading = read_run(part, spec, sent, self.bounds, facts)
        details = reading.details | _watched(word.details, answers)
        if part.keeps_text and run != WARM_UP_RUN:
            series = f"-again{again}" if again else ""
            names = [f"{spec.id}{series}-run{run}-attempt{number}-{nth}" for nth in wanted]
            details = details | {
                "texts": [self.journal.text(n, a.content) for n, a in zip(names, answers, strict=True)]
            }
        return Attempt(
            cell=spec.id,
            run=run,
            number=number,
            reason=reason,
            server_start=live.server.start_number,
            guard=word.word,
            wall=wall,
            t_start_ns=t_start,
            t_end_ns=t_end,
            request_ids=tuple(ids),
            figures=reading.figures,
            error=error,
            examined_for_cache=sum(a.cached_tokens is not None for a in answers),
            details=details,
            again=again,
        )

    def _facts(self, spec: CellSpec, live: Live, known: RunFacts) -> RunFacts:
        """What is known of a run beside its requests. The memory is asked for where a part has its own server."""
        facts = replace(
            known,
            slots=live.slots,
            context=live.context,
            context_asked=self._context_asked(spec),
            load_s=live.server.ready_s,
        )
        if not PARTS[spec.part].cold:
            return facts
        peak = self.servers.memory.peak(live.server.start_number)
        return replace(facts, peak_memory_mib=peak.mib, memory_source=peak.source, memory_reason=peak.reason)

    async def _broke_off(
        self, live: Live, during: str, traces: Sequence[RequestTrace], answers: Sequence[Answer]
    ) -> str | None:
        """What ended the attempt before its time, if anything did; the server is then replaced."""
        cut_off = any(t.transport_error for t in traces)
        if cut_off or any(not a.ended and not a.error for a in answers):
            # A dying process closes its sockets a moment before it can be reaped.
            for _ in range(20):
                if live.server.exit_status() is not None:
                    break
                await asyncio.sleep(0.05)
        error = next((f"{a.error} (during {during})" for a in answers if a.error), None)
        try:
            live.server.require_alive(during)
        except ServerError as exc:
            error = str(exc)
        if error is not None and (cut_off or live.server.exit_status() is not None):
            # A request broke off inside it: the next attempt gets a server with nothing left over.
            await self.servers.drop(error.splitlines()[0])
        return error


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


def _watched(summary: dict[str, Any], answers: Sequence[Answer]) -> dict[str, Any]:
    """The watch's summary of a run for its record, with the energy a token of each GPU that tells its energy."""
    if not summary:
        return {}
    counts = [answer.completion_tokens for answer in answers]
    tokens = sum(filter(None, counts)) if None not in counts else None
    gpus = [
        gpu | {"energy_per_token_j": energy_per_token_j(gpu.get("energy_j"), tokens)}
        for gpu in summary.get("gpus") or ()
    ]
    return {"watch": summary | {"gpus": gpus}}


def _label(spec: CellSpec, run: int, number: int) -> str:
    return f"the warm-up of {spec.part}" if run == WARM_UP_RUN else f"{spec.id} run {run} attempt {number}"


def _log_end(server: RunningServer, lines: int = 8) -> str:
    with server.log_path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 16384))
        text = file.read().decode("utf-8", "replace")
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


@contextlib.contextmanager
def _gc_frozen() -> Iterator[None]:
    """No garbage collection while a run is measured: a full one costs milliseconds at the wrong moment."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
