"""The runner: makes attempts of runs, one after the other, and keeps every one of them.

Guard repeats, retries of invalid runs, retries after a crash and runs on fresh servers are all attempts of a run, each
with its number, its reason and the server start it used. So the runner owns the server factory.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench import stats
from pytest_llmbench.client import parse
from pytest_llmbench.client.http import LoopLag
from pytest_llmbench.engine.command import redact
from pytest_llmbench.errors import ServerError
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.part import Sent
from pytest_llmbench.records import Attempt, CellResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import Answer, CellSpec, Figure, Prompt, RequestTrace
    from pytest_llmbench.watch import Guard, GuardWord

FIRST = "first"
WARM_UP_RUN = 0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a run is attempted again, by cause (METHOD: 3 repeats of a disturbed run, one more of an invalid one)."""

    disturbed: int = 3
    invalid: int = 1
    crash: int = 1


class StartNumbered(Protocol):
    """Start the setup's server anew; the number counts the starts of this session."""

    async def __call__(self, start_number: int) -> RunningServer: ...


class PromptSource(Protocol):
    """Prompts of a cell, unique per request and the same in every session."""

    async def __call__(self, spec: CellSpec, run: int, attempt: int, request: int, client: LlmClient) -> Prompt: ...


class Progress(Protocol):
    """Told what happens, so that a person sees it. Must return at once."""

    def phase(self, text: str) -> None: ...

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None: ...

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None: ...


@dataclass
class Live:
    """A running server with its client, and what was already done on it."""

    server: RunningServer
    client: LlmClient
    warmed: set[str] = field(default_factory=set)

    async def close(self) -> None:
        await self.client.aclose()  # first: a server with an open stream takes 30 s to stop
        await self.server.stop()


class Runner:
    """Measures cells of one setup.

    factory starts a server; connect makes its client; prompts builds what is sent; body turns a prompt into a request.
    prepare is awaited once, on the first server that is ready, before the first request (the contract is written
    there); verify on every server.
    """

    def __init__(
        self,
        *,
        card_id: str,
        factory: StartNumbered,
        connect: Callable[[RunningServer], LlmClient],
        prompts: PromptSource,
        body: Callable[[CellSpec, Prompt], Mapping[str, Any]],
        journal: Journal,
        bounds: Bounds,
        guard: Guard,
        progress: Progress,
        retry: RetryPolicy,
        warm_ups: Mapping[str, CellSpec],
        verify: Callable[[RunningServer], None],
        prepare: Callable[[Live], Any],
    ) -> None:
        self.card_id, self.journal, self.bounds = card_id, journal, bounds
        self._factory, self._connect, self._prompts, self._body = factory, connect, prompts, body
        self._guard, self._progress, self._retry = guard, progress, retry
        self._warm_ups, self._verify, self._prepare = warm_ups, verify, prepare
        self._live: Live | None = None
        self._starts = 0
        self._measuring: asyncio.Task[Any] | None = None
        self._prepared = False

    # ---- servers ----

    async def live(self) -> Live:
        """The running server, started if there is none. Raises ServerError, PromiseBrokenError."""
        if self._live is not None and self._live.server.exit_status() is not None:
            await self.drop_server(f"found dead: {self._live.server.exit_status()}")
        if self._live is None:
            self._live = await self._start()
        return self._live

    async def fresh(self, reason: str) -> Live:
        """A server that was started just now."""
        await self.drop_server(reason)
        return await self.live()

    async def drop_server(self, reason: str) -> None:
        """Stop the running server, if any."""
        if self._live is None:
            return
        live, self._live = self._live, None
        exit_status = live.server.exit_status()
        await live.close()
        self.journal.event(
            "server stopped",
            start=live.server.start_number,
            reason=reason,
            exit=exit_status or live.server.exit_status(),
            died=exit_status is not None,
        )

    async def _start(self) -> Live:
        self._starts += 1
        self._progress.phase(f"starting the server (start {self._starts})")
        self.journal.event("server starting", start=self._starts)
        try:
            server = await self._factory(self._starts)
        except ServerError as exc:
            self.journal.event("server failed", start=self._starts, error=str(exc))
            raise
        live = Live(server, self._connect(server))
        try:
            self.journal.event(
                "server ready",
                start=self._starts,
                pid=server.pid,
                argv=redact(server.argv),
                observer_changes=server.observer_changes,
                ready_s=server.ready_s,
                log=server.log_path.name,
                props=server.props,
                models=server.models,
            )
            self._verify(server)
            await live.client.warm_up()
            if not self._prepared:
                await self._prepare(live)
                self._prepared = True
        except BaseException:
            await live.close()
            raise
        return live

    async def aclose(self) -> None:
        await self._end_abandoned()
        await self.drop_server("end of the session")

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
        await self.drop_server("its measurement was abandoned by the test")

    # ---- runs ----

    async def measure(self, spec: CellSpec) -> CellResult:
        """Measure one cell: each promised run, attempted again as the policy says. Raises ServerError where not even
        a server can be started; every other failure is in the result."""
        attempts: list[Attempt] = []
        broken: str | None = None
        await self._end_abandoned()
        self._measuring = asyncio.current_task()
        await self.live()
        first_start = self._starts
        for run in range(1, spec.runs + 1):
            try:
                await self.run(spec, run, attempts)
            except ServerError as exc:  # it ran before and does not start again: the cell's failure, with what there is
                broken = str(exc)
                break
        result = stats.conclude(
            spec,
            self.card_id,
            attempts,
            PARTS[spec.part].kinds,
            raw_file=str(self.journal.folder / self.journal.raw_file(spec.id)),
            server_logs=[str(self.journal.folder / f"server-{n}.log") for n in range(first_start, self._starts + 1)],
            broken=broken,
        )
        self.journal.event(
            "cell", cell=spec.id, status=result.status, reasons=result.reasons, summaries=result.summaries
        )
        return result

    async def run(self, spec: CellSpec, run: int, attempts: list[Attempt], *, reason: str = FIRST) -> None:
        """Make a run, and again while the policy allows; append every attempt to ``attempts``.

        The last attempt counts no more than the others: ``stats`` takes the first valid one.
        """
        left = {"disturbed": self._retry.disturbed, "invalid": self._retry.invalid, "crash": self._retry.crash}
        for number in itertools.count(1):
            attempt = await self._attempt(spec, run, number, reason)
            attempts.append(attempt)
            cause, reason = _again(attempt)
            if cause is None or left[cause] == 0:
                return
            left[cause] -= 1

    async def _attempt(self, spec: CellSpec, run: int, number: int, reason: str) -> Attempt:
        live = await self.live()
        attempt = await self._warm_up(live, spec)
        if attempt is None:
            self._progress.run_started(spec, run, number, reason, live.client)
            attempt = await self._send(live, spec, run, number, reason)
        else:  # the server did not survive it: this attempt is over before it began
            attempt = replace(attempt, cell=spec.id, run=run, number=number, reason=reason)
        self.journal.event("attempt", attempt=attempt)
        self.journal.sync()
        self._progress.run_finished(spec, attempt)
        return attempt

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

    async def _send(self, live: Live, spec: CellSpec, run: int, number: int, reason: str) -> Attempt:
        wanted = range(spec.requests_per_run if run != WARM_UP_RUN else 1)
        prompts = [await self._prompts(spec, run, number, request, live.client) for request in wanted]
        bodies = [self._body(spec, prompt) for prompt in prompts]
        ids = [f"{spec.id}/{run}/{number}/{request}/s{live.server.start_number}" for request in wanted]
        wall = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._guard.begin(f"{spec.id} run {run} attempt {number}")
        try:
            with _gc_frozen():
                async with LoopLag() as lag:
                    t_start = time.monotonic_ns()
                    traces = await asyncio.gather(*map(live.client.stream_chat, bodies, ids))
                    t_end = time.monotonic_ns()
        except asyncio.CancelledError:
            self.journal.event("attempt interrupted", cell=spec.id, run=run, attempt=number)
            raise
        word = self._guard.end()
        for trace, prompt in zip(traces, prompts, strict=True):
            self.journal.request(
                spec.id,
                trace,
                run=run,
                attempt=number,
                server_start=live.server.start_number,
                prompt={"sha256": prompt.sha256, "tokens": prompt.tokens, "exact": prompt.exact, "nonce": prompt.nonce},
            )
        answers = [parse(trace) for trace in traces]
        error = await self._broke_off(live, f"{spec.id} run {run} attempt {number}", traces, answers)
        return self._read(
            spec,
            traces,
            answers,
            prompts,
            word,
            lag,
            Attempt(
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
                figures=(),
                error=error,
                examined_for_cache=sum(a.cached_tokens is not None for a in answers),
            ),
        )

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
            await self.drop_server(error.splitlines()[0])
        return error

    def _read(
        self,
        spec: CellSpec,
        traces: Sequence[RequestTrace],
        answers: Sequence[Answer],
        prompts: Sequence[Prompt],
        word: GuardWord,
        lag: LoopLag,
        attempt: Attempt,
    ) -> Attempt:
        sent = [Sent(t, a, p.tokens) for t, a, p in zip(traces, answers, prompts, strict=True)]
        reading = PARTS[spec.part].read(spec, sent, self.bounds)
        figures = reading.figures
        if lag.max_ms > self.bounds.loop_lag_ms:
            why = f"the client was too slow to tell: its event loop ran {lag.max_ms:.0f} ms late (bound {self.bounds.loop_lag_ms:.0f})"
            figures = tuple(_with_reason(figure, why) for figure in figures)
        details = reading.details | {"loop_lag_max_ms": round(lag.max_ms, 2)}
        if word.reason:
            details["guard"] = word.reason
        return replace(attempt, figures=figures, details=details)


def _again(attempt: Attempt) -> tuple[str | None, str]:
    """Why the run should be attempted once more: the policy's word for it, and the reason recorded."""
    if attempt.error is not None:
        return "crash", f"attempt {attempt.number} broke off: {attempt.error.splitlines()[0]}"
    if attempt.guard == stats.DISTURBED:
        return "disturbed", f"attempt {attempt.number} was disturbed: {attempt.details.get('guard', '')}"
    gated = {kind.name for kind in PARTS[attempt.cell.partition("[")[0]].kinds if kind.gated}
    for figure in attempt.figures:
        if figure.name in gated and figure.reasons:
            return "invalid", f"attempt {attempt.number} was invalid: {figure.reasons[0]}"
    return None, ""


def _with_reason(figure: Figure, why: str) -> Figure:
    return replace(figure, reasons=(*figure.reasons, why))


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
