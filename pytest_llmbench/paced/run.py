"""One generating request from its slot to its last byte: a lazy script of steps, played on the absolute schedule."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from pytest_llmbench.paced.answer import Answer, Chunk, make_answer, make_chunks
from pytest_llmbench.paced.schedule import Schedule, make_schedule
from pytest_llmbench.paced.shapes import Speech, error_body, sse, usage
from pytest_llmbench.paced.truth import ChunkKind, TruthChunk, TruthRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_llmbench.paced.ask import Ask
    from pytest_llmbench.paced.pace import Pace
    from pytest_llmbench.paced.wire import Connection, Request

Action = Literal["error", "error_all", "drop", "end", "hang", "exit"]
OVERFLOW = "Context size has been exceeded."


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens at due_ns: bytes (with what they are, for the truth log), or a fault, or the end."""

    due_ns: int
    data: bytes = b""
    events: tuple[tuple[ChunkKind, int], ...] = ()
    action: Action | Literal["done"] | None = None


class Host(Protocol):
    """What a run needs of the server."""

    model: str
    n_ctx: int
    start_factor: float

    def finished(self, run: Run, end: str, at_ns: int) -> None: ...
    def die(self, pace: Pace) -> None: ...
    def error_all(self) -> None: ...


def first_fault(pace: Pace) -> tuple[int, Action] | None:
    """The fault that comes first: after how many tokens, and which."""
    faults: list[tuple[int | None, Action]] = [
        (pace.exit_after_tokens, "exit"),
        (pace.drop_after, "drop"),
        (pace.error_all_after, "error_all"),
        (pace.error_after, "error"),
        (pace.end_after, "end"),
        (pace.hang_after, "hang"),
    ]
    there = [(after, action) for after, action in faults if after is not None]
    return min(there, key=lambda one: one[0]) if there else None


class Run:
    """One generating request. It holds its slot from ``start`` until ``Host.finished`` is told."""

    def __init__(self, host: Host, connection: Connection, request: Request, ask: Ask, pace: Pace, number: int) -> None:
        self.host, self.connection, self.ask, self.pace, self.number = host, connection, ask, pace, number
        self.record = TruthRecord(
            id=request.headers.get("x-request-id"), number=number, path=request.path, stream=ask.stream,
            t_received_ns=request.t_received_ns, prompt_tokens=len(ask.prompt_ids),
        )  # fmt: skip
        self.slot_id = -1
        self.cache_n = 0
        self.schedule: Schedule | None = None
        self.answer: Answer | None = None
        self._script: Iterator[Step] = iter(())
        self._step: Step | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.TimerHandle | None = None
        self._over = False
        connection.on_lost = self._lost

    @property
    def processed(self) -> int:
        return len(self.ask.prompt_ids) - self.cache_n

    def start(self, slot_id: int, slot_ns: int, cache_n: int) -> None:
        """The slot is free: headers leave now, tokens on the schedule."""
        self.slot_id, self.cache_n = slot_id, cache_n
        self.record.t_slot_ns, self.record.cache_n = slot_ns, cache_n
        n_prompt = len(self.ask.prompt_ids)
        if n_prompt >= self.host.n_ctx:
            message = (
                f"request ({n_prompt} tokens) exceeds the available context size ({self.host.n_ctx} tokens),"
                " try increasing it"
            )
            self.refuse(400, message, "exceed_context_size_error", n_prompt_tokens=n_prompt, n_ctx=self.host.n_ctx)
            return
        self.answer = make_answer(self.pace, self.ask, n_ctx=self.host.n_ctx)
        self.schedule = make_schedule(
            self.pace, number=self.number, slot_ns=slot_ns, processed=self.processed, tokens=self.answer.tokens,
            start_factor=self.host.start_factor,
        )  # fmt: skip
        speech = Speech(self.ask, self.host.model, slot_id)
        if self.ask.stream:
            self.record.t_headers_ns = time.monotonic_ns()
            self.connection.start_stream(self.pace.framing)
            self._script = self._stream_script(speech, self.answer, self.schedule)
            if self.pace.ping_every_ms:
                self._arm_ping(1)
        else:
            self._script = self._whole_script(speech, self.answer, self.schedule)
        self._play()

    def fail(self, message: str) -> None:
        """An error from outside ends this request: inside a stream as an event, else as HTTP 500."""
        if self._over:
            return
        body = error_body(500, message, "server_error")
        if not self.ask.stream:
            self.record.t_headers_ns = time.monotonic_ns()
            self.connection.respond(500, body)
        else:
            self._write(Step(time.monotonic_ns(), sse(body), (("error", 0),)))
            self.connection.end_stream()
        self._finish("error")

    def freeze(self) -> None:
        """The server is ending: no more tokens, the connection stays open (as the real one does it)."""
        self._cancel_timers()
        self._script = iter(())

    # ---- what happens when

    def _timings(self, predicted: int) -> dict[str, Any]:
        assert self.schedule is not None
        prompt_n = self.processed + self.pace.prompt_count_error
        timings = self.schedule.timings(cache_n=self.cache_n, prompt_n=prompt_n, predicted_n=predicted)
        return timings | self.pace.timings_extra

    def _counts(self, predicted: int) -> dict[str, Any] | None:
        prompt = len(self.ask.prompt_ids) + self.pace.prompt_count_error
        counts = usage(prompt, predicted, self.cache_n)
        return counts if self.pace.usage else None

    def _progress(self, processed: int, time_ms: int) -> dict[str, Any]:
        return {"total": len(self.ask.prompt_ids), "cache": self.cache_n, "processed": processed, "time_ms": time_ms}

    def _stream_script(self, speech: Speech, answer: Answer, schedule: Schedule) -> Iterator[Step]:
        pace, per_token = self.pace, self.ask.timings_per_token and self.pace.timings_per_token
        early = self.ask.is_chat and (pace.early_role or self.ask.return_progress)
        if self.ask.return_progress:
            for processed, due in ((self.cache_n, schedule.slot_ns), (len(self.ask.prompt_ids), schedule.release(0))):
                progress = self._progress(processed, (due - schedule.slot_ns) // 1_000_000)
                data = speech.role(progress, self._timings(0) if per_token else None)
                yield Step(due, data, (("role", 0),) if data else ())
        elif early:
            yield Step(schedule.slot_ns, speech.role(), (("role", 0),))
        fault = first_fault(pace)
        role_due = self.ask.is_chat and not (pace.early_role and not self.ask.return_progress)
        texts: list[str] = []
        group: list[Step] = []
        for chunk in make_chunks(pace, answer):
            if fault and chunk.last >= fault[0]:
                break
            due = schedule.release(chunk.last)
            data = speech.text(chunk, self._timings(chunk.last + 1) if per_token else None)
            events: tuple[tuple[ChunkKind, int], ...] = ((cast("ChunkKind", chunk.kind), chunk.tokens),)
            if role_due:
                data, events, role_due = speech.role() + data, (("role", 0), *events), False
            texts.append(chunk.text)
            group.append(Step(due, data, events))
            if len(group) >= pace.events_per_write:
                yield _joined(group)
                group = []
        if group:
            yield _joined(group)
        last = schedule.release(answer.tokens - 1)
        if fault and fault[0] <= answer.tokens:
            yield Step(schedule.release(max(0, fault[0] - 1)), action=fault[1])
            return
        timings = self._timings(answer.tokens) if pace.timings else None
        ends = speech.end(
            answer, finish=pace.finish, counts=self._counts(answer.tokens), timings=timings, whole_text="".join(texts)
        )
        if ends:
            kinds = tuple((cast("ChunkKind", kind), 0) for kind, _ in ends)
            yield Step(last, b"".join(data for _, data in ends), kinds)
        if pace.done and self.ask.endpoint != "completion":
            yield Step(last, b"data: [DONE]\n\n", (("done", 0),))
        yield Step(last, action="done")

    def _whole_script(self, speech: Speech, answer: Answer, schedule: Schedule) -> Iterator[Step]:
        fault = first_fault(self.pace)
        if fault and fault[0] <= answer.tokens:
            yield Step(schedule.release(max(0, fault[0] - 1)), action=fault[1])
            return
        chunks: list[Chunk] = list(make_chunks(self.pace, answer))
        timings = self._timings(answer.tokens) if self.pace.timings else None
        body = speech.whole(answer, chunks, self._counts(answer.tokens), timings)
        due = schedule.release(answer.tokens - 1)
        yield Step(due)
        self.record.t_headers_ns = time.monotonic_ns()
        self.record.chunks.append(TruthChunk("body", answer.tokens, due, self.record.t_headers_ns))
        self.connection.respond(200, body)
        self._finish("done", due)

    # ---- playing

    def _play(self) -> None:
        """Do what is due, then wait for the next step; lateness of one step never moves another."""
        self._timer = None
        while not self._over:
            if self._step is None:
                self._step = next(self._script, None)
                if self._step is None:
                    return
            step = self._step
            if step.due_ns > time.monotonic_ns():
                self._timer = asyncio.get_running_loop().call_at(step.due_ns / 1e9, self._play)
                return
            self._step = None
            if step.action is not None:
                self._act(step.action, step.due_ns)
                return
            if step.data:
                self._write(step)

    def _write(self, step: Step) -> None:
        data = self.connection.framed(step.data)
        now = time.monotonic_ns()
        self.connection.write(data, pieces=self.pace.split_bytes, gap_s=self.pace.split_gap_ms / 1e3)
        for kind, tokens in step.events:
            self.record.chunks.append(TruthChunk(kind, tokens, step.due_ns, now))
            self.record.predicted_n += tokens

    def _act(self, action: Action | Literal["done"], due_ns: int) -> None:
        if action == "done":
            # Our own last bytes first: ending hands the slot on, and the next request's start takes time.
            self.connection.end_stream()
            self._finish("done", due_ns)
        elif action == "error":
            self.fail(OVERFLOW)
        elif action == "error_all":
            self.host.error_all()
        elif action == "drop":
            self._finish("drop")
            self.connection.drop()
        elif action == "end":
            if self.ask.stream:
                self.connection.end_stream()
            else:
                self.connection.respond(200, b"")
            self._finish("end")
        elif action == "hang":
            self.record.end = "hang"  # the slot stays taken until the client goes
        else:
            self._finish("exit")
            self.host.die(self.pace)

    def _arm_ping(self, count: int) -> None:
        assert self.record.t_slot_ns is not None
        due = self.record.t_slot_ns + round(count * self.pace.ping_every_ms * 1e6)
        self._ping = asyncio.get_running_loop().call_at(due / 1e9, self._send_ping, count, due)

    def _send_ping(self, count: int, due: int) -> None:
        self._write(Step(due, b":\n\n", (("comment", 0),)))
        self._arm_ping(count + 1)

    def refuse(self, status: int, message: str, kind: str, **more: Any) -> None:
        self.record.t_headers_ns = time.monotonic_ns()
        self.connection.respond(status, error_body(status, message, kind, **more))
        self._finish("refused")

    def _lost(self) -> None:
        if not self._over:
            self._finish("hang" if self.record.end == "hang" else "cancelled")

    def _finish(self, end: str, at_ns: int | None = None) -> None:
        self._over = True
        self._cancel_timers()
        self.record.end = end
        self.record.t_end_ns = time.monotonic_ns()
        if self.answer is not None and end == "done":
            self.record.predicted_n = self.answer.tokens
        self.host.finished(self, end, at_ns if at_ns is not None else self.record.t_end_ns)

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._ping):
            if timer is not None:
                timer.cancel()
        self._timer = self._ping = None


def _joined(group: list[Step]) -> Step:
    """Several events in one write, at the last one's time."""
    if len(group) == 1:
        return group[0]
    return Step(group[-1].due_ns, b"".join(s.data for s in group), tuple(e for s in group for e in s.events))
