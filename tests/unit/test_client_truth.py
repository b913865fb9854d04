"""The client beside the paced server's truth log: the right counts in the right order, whatever way tokens travel.

No bound here is one that a busy machine breaks: what arrives cannot arrive before it left, and figures must be those of
the true send times within what this machine's lateness explains.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.paced import Pace, PacedProcess, TruthRecord, running

if TYPE_CHECKING:
    from pytest_llmbench.records import Answer, RequestTrace

FAST: dict[str, Any] = {"ttft_ms": 5, "tok_s": 500}


@dataclass(frozen=True)
class Seen:
    """One request from both sides."""

    trace: RequestTrace
    answer: Answer
    truth: TruthRecord


def body(n: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"Request {n}: say something."}],
        "max_tokens": 24,
        "stream": True,
        "stream_options": {"include_usage": True},
        "timings_per_token": True,
        "cache_prompt": False,
        **more,
    }


async def burst(server: PacedProcess, count: int, *, silence_s: float = 60.0, **more: Any) -> list[Seen]:
    ids = [f"request/{n}" for n in range(count)]
    client = LlmClient(server.base_url, connections=count, silence_s=silence_s)
    try:
        traces = await client.burst([body(n, **more) for n in range(count)], ids)
    finally:
        await client.aclose()
    assert [trace.request_id for trace in traces] == ids
    truth = {record.id: record for record in server.truth(count)}
    return [Seen(trace, parse(trace), truth[trace.request_id]) for trace in traces]


def one(args: tuple[str, ...] = (), silence_s: float = 60.0, body: dict[str, Any] | None = None, **knobs: Any) -> Seen:
    with running(Pace(**{**FAST, **knobs}), args=args) as server:
        (seen,) = asyncio.run(burst(server, 1, silence_s=silence_s, **(body or {})))
    return seen


def check(seen: Seen) -> None:
    """Counts, order, and times that agree with the truth log."""
    trace, answer, truth = seen.trace, seen.answer, seen.truth
    assert (trace.status, answer.error, answer.ended, truth.end) == (200, None, True, "done")
    assert answer.completion_tokens == truth.predicted_n == 24
    assert trace.t_send_ns is not None
    assert trace.t_send_ns <= truth.t_received_ns
    texts = truth.text_chunks
    assert len(answer.events) == len(texts)
    # One machine, one clock: nothing arrives before it left, and nothing later than the end of its stream.
    for event, left in zip(answer.events, texts, strict=True):
        assert left.actual_ns <= event.t_ns <= trace.t_end_ns
    arrivals = [event.t_ns for event in answer.events]
    assert arrivals == sorted(arrivals)
    # TTFT and decode by their definitions, on the true times plus how late each end of the span arrived.
    late_first, late_last = (a - t.actual_ns for a, t in ((arrivals[0], texts[0]), (arrivals[-1], texts[-1])))
    true_ms = (texts[0].actual_ns - trace.t_send_ns + late_first) / 1e6
    assert fig.ttft_ms(answer, trace.t_send_ns) == pytest.approx(true_ms, abs=1e-6)
    rate, _ = fig.decode_tok_s(answer)
    if arrivals[0] == arrivals[-1]:  # a server without time sends a whole answer at once: no span, no figure
        assert rate is None
        return
    assert truth.decode_tok_s is not None
    true_s = sum(t.tokens for t in texts[1:]) / truth.decode_tok_s
    assert rate == pytest.approx(sum(t.tokens for t in texts[1:]) / (true_s + (late_last - late_first) / 1e9))


@pytest.mark.parametrize(
    "knobs",
    [
        {},
        {"tokens_per_chunk": 3},
        {"tokens_per_chunk": 4, "first_chunk_tokens": 1},
        {"burst_tokens": 4},
        {"burst_tokens": 5, "tokens_per_chunk": 2},
        {"silent_every": 3},
        {"early_role": True},
        {"early_role": True, "ttft_ms": 60, "ping_every_ms": 10},
        {"split_bytes": 7, "split_gap_ms": 0.1},
        {"split_bytes": 1, "split_gap_ms": 0.0, "tokens_per_chunk": 8},
        {"events_per_write": 3},
        {"framing": "close"},
        {"framing": "close", "events_per_write": 2, "split_bytes": 50, "split_gap_ms": 0.1},
    ],
    ids=str,
)
def test_however_tokens_travel(knobs: dict[str, Any]) -> None:
    seen = one(**knobs)
    check(seen)
    # The number of tokens that came with each chunk, as the server counts them.
    counts = [event.predicted_n or 0 for event in seen.answer.events]
    assert [b - a for a, b in zip([0, *counts[:-1]], counts, strict=True)] == [t.tokens for t in seen.truth.text_chunks]


def test_reasoning_is_generated_text() -> None:
    seen = one(reasoning_tokens=10, body={"chat_template_kwargs": {"enable_thinking": True}})
    check(seen)
    assert [bool(event.reasoning) for event in seen.answer.events] == [True] * 10 + [False] * 14
    assert seen.answer.reasoning
    assert seen.answer.content


def test_tool_calls_are_generated_text() -> None:
    seen = one(tool_call_from=6)
    check(seen)
    assert [bool(event.tool_call) for event in seen.answer.events] == [False] * 6 + [True] * 18
    assert seen.answer.tool_calls.startswith('look_up{"text":"')


def test_an_early_role_and_comments_are_no_token() -> None:
    seen = one(early_role=True, ttft_ms=300, ping_every_ms=40)
    check(seen)
    assert b"".join(data for _, data in seen.trace.chunks).startswith(
        b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"role"'
    )
    assert sum(chunk.kind == "comment" for chunk in seen.truth.chunks) >= 1
    ttft = fig.ttft_ms(seen.answer, seen.trace.t_send_ns)
    assert ttft is not None
    assert ttft >= 300
    assert seen.trace.t_headers_ns is not None
    assert seen.trace.t_headers_ns < seen.answer.events[0].t_ns


def test_without_counts_there_is_no_decode_figure() -> None:
    seen = one(usage=False, timings=False, timings_per_token=False)
    assert (len(seen.answer.events), fig.decode_tok_s(seen.answer)) == (24, (None, None))


def test_queued_requests_get_no_byte_until_a_slot_is_free() -> None:
    with running(Pace(**FAST), args=["-np", "2"]) as server:
        seen = asyncio.run(burst(server, 6))
    for each in seen:
        check(each)
        assert each.truth.t_slot_ns is not None
        assert each.trace.t_headers_ns is not None
        assert each.trace.t_headers_ns >= each.truth.t_slot_ns
    slots = sorted(each.truth.t_slot_ns or 0 for each in seen)
    ends = sorted(each.truth.chunks[-1].scheduled_ns for each in seen)
    assert slots[2] >= ends[0]  # the third had to wait for the first end


@pytest.mark.parametrize(
    ("knobs", "events", "said"),
    [
        ({"drop_after": 5}, 5, "ReadError|RemoteProtocolError"),
        ({"drop_after": 0}, 0, "ReadError|RemoteProtocolError"),
        ({"error_after": 5}, 5, "error inside the stream: Context size has been exceeded"),
        ({"error_after": 0}, 0, "error inside the stream"),
        ({"http_error": 500}, 0, "HTTP 500: paced: refused as told"),
        ({"exit_after_tokens": 5, "exit_signal": "SIGKILL"}, 5, "ReadError|RemoteProtocolError"),
    ],
    ids=str,
)
def test_faults(knobs: dict[str, Any], events: int, said: str) -> None:
    seen = one(**knobs)
    assert len(seen.answer.events) == events
    assert any(word in (seen.answer.error or "") for word in said.split("|")), seen.answer.error
    assert not seen.answer.ended


def test_a_clean_end_without_finish_is_no_end() -> None:
    answer = one(end_after=5).answer
    assert (len(answer.events), answer.ended, answer.error, answer.finish_reason) == (5, False, None, None)


def test_a_hang_ends_with_the_silence() -> None:
    seen = one(hang_after=5, silence_s=0.6)
    assert seen.trace.transport_error == "ReadTimeout: no byte came for 0.6 s (--llmbench-silence-timeout)"
    assert (len(seen.answer.events), seen.truth.end) == (5, "hang")


def test_one_fault_among_many_leaves_the_others_whole() -> None:
    with running(Pace(**FAST, requests={"3": {"drop_after": 4}, "5": {"error_after": 2}}), args=["-np", "8"]) as server:
        seen = asyncio.run(burst(server, 8))
    broken = {each.truth.number: each.answer for each in seen if each.answer.error}
    assert {number: len(answer.events) for number, answer in broken.items()} == {3: 4, 5: 2}
    for each in seen:
        if each.truth.number not in broken:
            check(each)


def test_a_client_that_waited_longer_than_connections_live() -> None:
    async def two() -> list[RequestTrace]:
        client = LlmClient(server.base_url)
        try:
            await client.warm_up()
            assert (await client.http.get("/props")).status_code == 200
            first = await client.stream_chat(body(), "first")
            await asyncio.sleep(0.6)  # three times what the server keeps an idle connection
            second = await client.stream_chat(body(), "second")
            assert (await client.http.get("/props")).status_code == 200
        finally:
            await client.aclose()
        return [first, second]

    with running(Pace(**FAST, keep_alive_s=0.2)) as server:
        for trace in asyncio.run(two()):
            answer = parse(trace)
            assert (answer.error, answer.ended, len(answer.events)) == (None, True, 24)
        assert len(server.truth(2)) == 2  # nothing was sent twice


def test_256_at_once() -> None:
    with running(Pace(ttft_ms=50, tok_s=50), args=["-np", "256", "-c", "131072"]) as server:
        seen = asyncio.run(burst(server, 256))
    for each in seen:
        check(each)
    contents = {each.answer.content for each in seen}
    assert len(contents) == 1  # everybody's answer whole and in order
    sent = [each.trace.t_send_ns or 0 for each in seen]
    assert sent == sorted(sent)


def test_arrivals_are_stamped_while_the_event_loop_is_blocked() -> None:
    async def blocked() -> tuple[RequestTrace, int, int]:
        client = LlmClient(server.base_url)
        task = asyncio.create_task(client.stream_chat(body(max_tokens=100), "a"))
        while not client.chunks_received:  # noqa: ASYNC110 - the counter is the signal
            await asyncio.sleep(0.01)
        begin = time.monotonic_ns()
        time.sleep(1.0)  # noqa: ASYNC251 - that is the point
        end = time.monotonic_ns()
        trace = await task
        await client.aclose()
        return trace, begin, end

    with running(Pace(ttft_ms=5, tok_s=50)) as server:
        trace, begin, end = asyncio.run(blocked())
    assert len({t for t, _ in trace.chunks if begin < t < end}) >= 5


def test_any_split_of_a_recorded_answer_gives_the_same_trace() -> None:
    """A real answer's bytes, served again in pieces of any size: the body and what it says stay the same."""
    seen = one(silent_every=4, burst_tokens=3)
    raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    raw += b"".join(b"%x\r\n%b\r\n" % (len(data), data) for _, data in seen.trace.chunks) + b"0\r\n\r\n"

    async def replay(pieces: list[bytes]) -> RequestTrace:
        async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            writer.close()

        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        client = LlmClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            return await client.stream_chat(body(), "replay")
        finally:
            await client.aclose()
            server.close()

    chance = random.Random(3)
    for count in (1, 2, 10, 100, 400):
        cuts = sorted(chance.sample(range(1, len(raw)), count))
        trace = asyncio.run(replay([raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]))
        answer = parse(trace)
        assert b"".join(d for _, d in trace.chunks) == b"".join(d for _, d in seen.trace.chunks)
        assert [(e.content, e.predicted_n) for e in answer.events] == [
            (e.content, e.predicted_n) for e in seen.answer.events
        ]
        assert (answer.error, answer.ended, answer.timings) == (None, True, seen.answer.timings)
