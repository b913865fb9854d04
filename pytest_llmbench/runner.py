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
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench import stats
from pytest_llmbench.client import parse
from pytest_llmbench.engine.command import redact
from pytest_llmbench.errors import ServerError
from pytest_llmbench.measure import PARTS
from pytest_llmbench.measure.part import RunFacts, Sent, read_run
from pytest_llmbench.records import Attempt, CellResult
from pytest_llmbench.watch.gpu_summary import energy_per_token_j

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.engine import RunningServer
    from pytest_llmbench.journal import Journal
    from pytest_llmbench.measure.validity import Bounds
    from pytest_llmbench.records import Answer, CellSpec, Prompt, RequestTrace
    from pytest_llmbench.watch import Watch
    from pytest_llmbench.watch.memory import MemoryWatch

Changes = tuple[tuple[str, str], ...]

FIRST = "first"
WARM_UP_RUN = 0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a run is attempted again, by cause (METHOD: 3 repeats of a disturbed run, one more of an invalid one)."""

    disturbed: int = 3
    invalid: int = 1
    crash: int = 1


class StartNumbered(Protocol):
    """Start the setup's server anew; the number counts the starts of this run's folder.

    changes: (flag, value) in place of the card's own arguments.
    """

    async def __call__(self, start_number: int, changes: Changes) -> RunningServer: ...


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
    """A running server with its client, and what was already done on it.

    changes: what it was started with in place of the card's arguments. busy: a request to it was given up.
    """

    server: RunningServer
    client: LlmClient
    changes: Changes = ()
    warmed: set[str] = field(default_factory=set)
    busy: bool = False

    @property
    def context(self) -> int | None:
        """Tokens that one request may use, as the server says."""
        found = (self.server.props.get("default_generation_settings") or {}).get("n_ctx")
        return found if isinstance(found, int) else None

    @property
    def slots(self) -> int | None:
        found = self.server.props.get("total_slots")
        return found if isinstance(found, int) else None

    async def close(self) -> None:
        await self.client.aclose()  # first: a server with an open stream takes 30 s to stop
        await self.server.stop()


class Runner:
    """Measures cells of one setup.

    factory starts a server; connect makes its client; prompts builds what is sent; body turns a prompt into a request.
    prepare is awaited once, on the first server of the card as it stands, before its first request (the contract is
    written there); verify on every server. One server serves all parts that take the card's arguments as they are.
    context_asked: tokens that one request of a cell should be able to use. first_start: the number of the first start.
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
        watch: Watch,
        progress: Progress,
        retry: RetryPolicy,
        warm_ups: Mapping[str, CellSpec],
        verify: Callable[[RunningServer, Changes], None],
        prepare: Callable[[Live], Any],
        memory: MemoryWatch,
        context_asked: Callable[[CellSpec], int | None],
        first_start: int = 1,
    ) -> None:
        self.card_id, self.journal, self.bounds = card_id, journal, bounds
        self._factory, self._connect, self._prompts, self._body = factory, connect, prompts, body
        self._watch, self._progress, self._retry = watch, progress, retry
        self._warm_ups, self._verify, self._prepare = warm_ups, verify, prepare
        self._memory, self._context_asked = memory, context_asked
        self._live: Live | None = None
        self._starts = first_start - 1
        self._measuring: asyncio.Task[Any] | None = None
        self._prepared = False

    # ---- servers ----

    async def live(self) -> Live:
        """The running server of the card as it stands, started if there is none. Raises ServerError, PromiseBrokenError."""
        if self._live is not None and self._live.server.exit_status() is not None:
            await self.drop_server(f"found dead: {self._live.server.exit_status()}")
        if self._live is not None and self._live.busy:
            await self.drop_server("it may still be busy with a request that was given up")
        if self._live is not None and self._live.changes:
            await self.drop_server("it was started with other arguments than the card's")
        if self._live is None:
            self._live = await self._start(())
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
        self._watch.set_server(None)
        self.journal.event(
            "server stopped",
            start=live.server.start_number,
            reason=reason,
            exit=exit_status or live.server.exit_status(),
            died=exit_status is not None,
        )

    async def _cold(self, spec: CellSpec) -> Live:
        """A server started for one run of a part that wants its own. Raises ServerError."""
        await self.drop_server(f"{spec.id} starts its own")
        left = await self._memory.settle()
        if left is not None:
            self.journal.event("memory not idle", cell=spec.id, found=left)
        self._live = await self._start(PARTS[spec.part].changes(spec))
        return self._live

    async def _start(self, changes: Changes) -> Live:
        self._starts += 1
        said = "".join(f" with {flag} {value}" for flag, value in changes)
        self._progress.phase(f"starting the server{said} (start {self._starts})")
        self.journal.event("server starting", start=self._starts, changes=changes)
        try:
            server = await self._factory(self._starts, changes)
        except ServerError as exc:
            self.journal.event("server failed", start=self._starts, error=str(exc))
            raise
        live = Live(server, self._connect(server), changes)
        self._watch.set_server(server.pid)
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
            self._verify(server, changes)
            await live.client.warm_up()
            if not self._prepared and not changes:
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
            await self.live()
        before = self._starts if cold else self._starts - 1
        for run in range(1, spec.runs + 1):
            if any(one.run == run for one in taken):
                continue
            try:
                await self.run(spec, run, attempts)
            except ServerError as exc:  # it ran before and does not start again: the cell's failure, with what there is
                broken = str(exc)
                break
        if cold:
            await self.drop_server(f"{spec.id} is done")
        starts = sorted({one.server_start for one in taken} | set(range(before + 1, self._starts + 1)))
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
        return result

    async def run(self, spec: CellSpec, run: int, attempts: list[Attempt], *, reason: str = FIRST) -> None:
        """Make a run, and again while the policy allows; append every attempt to ``attempts``.

        The last attempt counts no more than the others: ``stats`` takes the first valid one.
        """
        left = {"disturbed": self._retry.disturbed, "invalid": self._retry.invalid, "crash": self._retry.crash}
        if PARTS[spec.part].cold:
            left["crash"] = 0  # a size that does not fit is the answer, not an accident
        for number in itertools.count(1):
            attempt = await self._attempt(spec, run, number, reason)
            attempts.append(attempt)
            cause, reason = again(spec, attempt)
            if cause is None or left[cause] == 0:
                return
            left[cause] -= 1

    async def _attempt(self, spec: CellSpec, run: int, number: int, reason: str) -> Attempt:
        if PARTS[spec.part].cold:
            attempt = await self._cold_attempt(spec, run, number, reason)
        else:
            live = await self.live()
            broken = await self._warm_up(live, spec)
            if broken is None:
                self._progress.run_started(spec, run, number, reason, live.client)
                attempt = await self._send(live, spec, run, number, reason)
            else:  # the server did not survive it: this attempt is over before it began
                attempt = replace(broken, cell=spec.id, run=run, number=number, reason=reason)
        self.journal.event("attempt", attempt=attempt)
        self.journal.sync()
        self._progress.run_finished(spec, attempt)
        return attempt

    async def _cold_attempt(self, spec: CellSpec, run: int, number: int, reason: str) -> Attempt:
        """Start a server for this attempt alone and measure on it; a start that fails is the attempt's failure."""
        wall, t_start = _now(), time.monotonic_ns()
        try:
            live = await self._cold(spec)
        except ServerError as exc:
            t_end = time.monotonic_ns()
            return Attempt(
                cell=spec.id,
                run=run,
                number=number,
                reason=reason,
                server_start=self._starts,
                guard="not watched",
                wall=wall,
                t_start_ns=t_start,
                t_end_ns=t_end,
                request_ids=(),
                figures=(),
                error=str(exc),
                details={"failed_after_s": round((t_end - t_start) / 1e9, 2)},
            )
        self._progress.run_started(spec, run, number, reason, live.client)
        attempt = await self._send(live, PARTS[spec.part].sized(spec, live.context), run, number, reason)
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

    async def _send(self, live: Live, spec: CellSpec, run: int, number: int, reason: str) -> Attempt:
        wanted = range(spec.requests_per_run if run != WARM_UP_RUN else 1)
        prompts = [await self._prompts(spec, run, number, request, live.client) for request in wanted]
        bodies = [self._body(spec, prompt) for prompt in prompts]
        ids = [f"{spec.id}/{run}/{number}/{request}/s{live.server.start_number}" for request in wanted]
        wall = _now()
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
                server_start=live.server.start_number,
                prompt={"sha256": prompt.sha256, "tokens": prompt.tokens, "exact": prompt.exact, "nonce": prompt.nonce},
                facts=facts,
            )
        part = PARTS[spec.part]
        sent = [Sent(t, a, p.tokens) for t, a, p in zip(traces, answers, prompts, strict=True)]
        reading = read_run(part, spec, sent, self.bounds, facts)
        details = reading.details | _watched(word.details, answers)
        if part.keeps_text and run != WARM_UP_RUN:
            names = [f"{spec.id}-run{run}-attempt{number}-{nth}" for nth in wanted]
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
        peak = self._memory.peak(live.server.start_number)
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
            await self.drop_server(error.splitlines()[0])
        return error


def again(spec: CellSpec, attempt: Attempt) -> tuple[str | None, str]:
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


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
