"""One attempt of a run: the control's turn, the warm-up, the requests, and what is known of them.

Every attempt is kept, with its raw requests, its machine and its reason, whatever became of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench.client import parse
from pytest_llmbench.errors import ServerError
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
    from pytest_llmbench.records import Answer, CellSpec, Prompt, RequestTrace
    from pytest_llmbench.servers import Live, Servers
    from pytest_llmbench.watch import Watch

WARM_UP_RUN = 0


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


class Attempts:
    """Makes attempts on the servers of one setup.

    prompts builds what is sent; body turns a prompt into a request. warm_ups: a part's own. interleave: what takes turns with
    this setup's runs. context_asked: tokens that one request of a cell should be able to use.
    """

    def __init__(
        self,
        *,
        servers: Servers,
        prompts: PromptSource,
        body: Callable[[CellSpec, Prompt], Mapping[str, Any]],
        journal: Journal,
        bounds: Bounds,
        watch: Watch,
        progress: Progress,
        warm_ups: Mapping[str, CellSpec],
        context_asked: Callable[[CellSpec], int | None],
        interleave: Interleave | None = None,
    ) -> None:
        self.servers, self.journal, self.bounds = servers, journal, bounds
        self._prompts, self._body = prompts, body
        self._watch, self._progress = watch, progress
        self._warm_ups, self._context_asked = warm_ups, context_asked
        self._interleave = interleave

    async def make(self, spec: CellSpec, run: int, number: int, reason: str, again: int) -> Attempt:
        """One attempt of a run, written down. Raises ServerError where no server can be started."""
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

    def not_started(self, spec: CellSpec, run: int, number: int, reason: str, again: int, error: str) -> Attempt:
        """An attempt that has no server: it is over before it began."""
        at = time.monotonic_ns()
        return Attempt(
            cell=spec.id,
            run=run,
            number=number,
            reason=reason,
            server_start=self.servers.starts,
            guard="not watched",
            wall=now("milliseconds"),
            t_start_ns=at,
            t_end_ns=at,
            request_ids=(),
            figures=(),
            error=error,
            again=again,
        )

    async def _cold_attempt(self, spec: CellSpec, run: int, number: int, reason: str, again: int) -> Attempt:
        """Start a server for this attempt alone and measure on it; a start that fails is the attempt's failure."""
        wall, t_start = now("milliseconds"), time.monotonic_ns()
        try:
            live = await self.servers.cold(f"{spec.id} starts its own", PARTS[spec.part].changes(spec))
        except ServerError as exc:
            broken = self.not_started(spec, run, number, reason, again, str(exc))
            seconds = round((broken.t_end_ns - t_start) / 1e9, 2)
            return replace(broken, wall=wall, t_start_ns=t_start, details={"failed_after_s": seconds})
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
