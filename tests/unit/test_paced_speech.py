"""What a running paced server says: endpoints, streams, counts, order, and a truth log that agrees with them."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.paced import Pace, PacedProcess, TruthRecord, running
from pytest_llmbench.paced.probe import Reply, send

if TYPE_CHECKING:
    from collections.abc import Iterator

CHAT = "/v1/chat/completions"
FAST = Pace(ttft_ms=1, tok_s=2000)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def ideal() -> Iterator[PacedProcess]:
    with running(FAST, args=["-c", "2048", "-np", "2", "--metrics", "-a", "paced"]) as server:
        yield server


def chat(server: PacedProcess, *, headers: dict[str, str] | None = None, **body: object) -> Reply:
    return send(
        server.address,
        CHAT,
        {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "cache_prompt": False, **body},
        headers=headers,
    )


def stream(server: PacedProcess, **body: object) -> tuple[Reply, TruthRecord]:
    """A streamed chat answer, and the truth of that very request."""
    name = f"request-{next(_numbers)}"
    reply = chat(server, headers={"X-Request-Id": name}, stream=True, stream_options={"include_usage": True}, **body)
    for count in itertools.count(1):
        found = [record for record in server.truth(count) if record.id == name]
        if found:
            return reply, found[0]
    raise AssertionError


def deltas(reply: Reply, key: str = "content") -> list[str]:
    out = []
    for event in reply.events():
        if isinstance(event, dict) and event.get("choices"):
            text = event["choices"][0]["delta"].get(key)
            if text:
                out.append(text)
    return out


def last_with(reply: Reply, key: str) -> Any:
    return [event[key] for event in reply.events() if isinstance(event, dict) and key in event][-1]


def test_the_order_of_a_stream(ideal: PacedProcess) -> None:
    reply, truth = stream(ideal)
    events = reply.events()
    assert reply.status == 200
    assert reply.headers["content-type"] == "text/event-stream"
    assert reply.complete
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": None}
    assert len(deltas(reply)) == 8
    assert events[-3]["choices"] == [{"finish_reason": "length", "index": 0, "delta": {}}]
    assert events[-2]["choices"] == []
    assert events[-1] == "[DONE]"
    assert last_with(reply, "usage")["completion_tokens"] == 8
    assert last_with(reply, "timings")["predicted_n"] == 8
    # The role comes in one HTTP chunk with the first token, finish and usage in another, as in the real server.
    assert len(reply.parts) == 8 + 2
    assert [c.kind for c in truth.chunks] == ["role", *["content"] * 8, "finish", "usage", "done"]
    assert sum(c.tokens for c in truth.chunks) == truth.predicted_n == 8
    assert truth.end == "done"


def test_tokens_leave_on_an_absolute_schedule() -> None:
    with running(Pace(ttft_ms=30, prefill_tok_s=2000, tok_s=400)) as server:
        reply, truth = stream(server, max_tokens=64)
    prompt = last_with(reply, "usage")["prompt_tokens"]
    assert truth.t_slot_ns == truth.t_received_ns
    texts = truth.text_chunks
    first = texts[0].scheduled_ns
    assert first - truth.t_received_ns == pytest.approx(30e6 + prompt / 2000 * 1e9, abs=2)
    assert [c.scheduled_ns - first for c in texts] == pytest.approx([k * 2.5e6 for k in range(64)], abs=2)
    # Never early; how late is the machine's affair, but what was late is not carried on to the next.
    assert all(c.actual_ns >= c.scheduled_ns for c in truth.chunks)
    timings = last_with(reply, "timings")
    assert timings["predicted_ms"] == pytest.approx(63 * 2.5, abs=0.002)
    assert timings["predicted_per_second"] == pytest.approx(400, rel=1e-4)
    assert timings["prompt_ms"] == pytest.approx(30 + prompt / 2, abs=0.002)


def test_what_arrives_is_not_before_the_truth(ideal: PacedProcess) -> None:
    reply, truth = stream(ideal)
    # One machine, one clock: the client's read of the first text cannot come before the server's write of it.
    seen = b""
    for arrived, part in reply.reads:
        seen += part
        if b'"content":"' in seen:
            assert arrived > truth.text_chunks[0].actual_ns
            break
    else:
        pytest.fail("no text came")


def test_without_streaming(ideal: PacedProcess) -> None:
    body = chat(ideal).json()
    streamed, _ = stream(ideal)
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "".join(deltas(streamed))}
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"] == last_with(streamed, "usage")
    assert body["timings"]["predicted_n"] == 8


def test_timings_per_token_and_progress(ideal: PacedProcess) -> None:
    reply, _ = stream(ideal, timings_per_token=True, return_progress=True)
    events = [e for e in reply.events() if isinstance(e, dict)]
    per_token = [e["timings"]["predicted_n"] for e in events if "timings" in e and e["choices"]]
    assert per_token == list(range(1, 9))
    progress = [e["prompt_progress"] for e in events if "prompt_progress" in e]
    total = last_with(reply, "usage")["prompt_tokens"]
    assert [(p["processed"], p["total"]) for p in progress] == [(0, total), (total, total)]


def test_counts_agree_everywhere(ideal: PacedProcess) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say  naïve 😀 hello, please."}]
    counted = send(ideal.address, CHAT + "/input_tokens", {"messages": messages}).json()["input_tokens"]
    prompt = send(ideal.address, "/apply-template", {"messages": messages}).json()["prompt"]
    tokens = send(ideal.address, "/tokenize", {"content": prompt, "add_special": True}).json()["tokens"]
    usage = chat(ideal, messages=messages).json()["usage"]
    by_ids = send(ideal.address, "/completion", {"prompt": tokens, "n_predict": 2, "cache_prompt": False}).json()
    by_text = send(ideal.address, "/completion", {"prompt": prompt, "n_predict": 2, "cache_prompt": False}).json()
    assert counted == len(tokens) == usage["prompt_tokens"] == by_ids["tokens_evaluated"] == by_text["tokens_evaluated"]
    assert send(ideal.address, "/detokenize", {"tokens": tokens[1:]}).json() == {"content": prompt}
    pieces = send(ideal.address, "/tokenize", {"content": "é!", "with_pieces": True}).json()["tokens"]
    assert [p["piece"] for p in pieces] == [[195], [169], "!"]


def test_completion_streams_without_done(ideal: PacedProcess) -> None:
    body = {"prompt": [600, 601, 602], "n_predict": 4, "stream": True, "cache_prompt": False}
    events = send(ideal.address, "/completion", body).events()
    assert [e["stop"] for e in events] == [False] * 4 + [True]
    assert [e["tokens_predicted"] for e in events] == [1, 2, 3, 4, 4]
    assert [len(e["tokens"]) for e in events] == [1, 1, 1, 1, 0]
    assert events[-1]["tokens_evaluated"] == 3
    assert events[-1]["stop_type"] == "limit"
    text = send(ideal.address, "/v1/completions", {"prompt": "Hi", "max_tokens": 3, "stream": True}).events()
    assert text[-1] == "[DONE]"
    assert text[-2]["usage"]["completion_tokens"] == 3


def test_the_cache_is_used_as_asked(ideal: PacedProcess) -> None:
    words = [{"role": "user", "content": "A prompt of some length that is sent again, word for word."}]
    chat(ideal, messages=words)
    cold = chat(ideal, messages=words)
    warm = chat(ideal, messages=words, cache_prompt=True)
    assert cold.json()["timings"]["cache_n"] == 0
    timings, usage = warm.json()["timings"], warm.json()["usage"]
    assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert timings["prompt_n"] == 1


def test_what_describes_the_server(ideal: PacedProcess) -> None:
    props = send(ideal.address, "/props").json()
    assert props["default_generation_settings"]["n_ctx"] == 1024
    assert props["total_slots"] == 2
    assert props["model_alias"] == "paced"
    models = send(ideal.address, "/v1/models").json()
    assert models["data"][0]["id"] == "paced"
    assert models["data"][0]["meta"]["n_ctx"] == 1024
    slots = send(ideal.address, "/slots").json()
    assert [(s["id"], s["n_ctx"], s["is_processing"]) for s in slots] == [(0, 1024, False), (1, 1024, False)]
    chat(ideal)
    metrics = send(ideal.address, "/metrics").body.decode()
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if not line.startswith("#"))
    assert float(values["llamacpp:tokens_predicted_total"]) >= 8
    assert float(values["llamacpp:requests_processing"]) == 0
    assert send(ideal.address, "/health").json() == {"status": "ok"}


def test_refusals(ideal: PacedProcess) -> None:
    long = chat(ideal, messages=[{"role": "user", "content": "word " * 2000}], stream=True)
    error = long.json()["error"]
    assert (long.status, error["type"], error["n_ctx"]) == (400, "exceed_context_size_error", 1024)
    assert error["n_prompt_tokens"] > 2000
    assert send(ideal.address, "/nope").json()["error"]["type"] == "not_found_error"
    assert send(ideal.address, CHAT).status == 404
    for body in (b"{nope", {}, {"messages": "x"}, {"messages": [{"role": "user", "content": 5}]}):
        refused = send(ideal.address, CHAT, body)
        assert (refused.status, refused.json()["error"]["type"]) == (400, "invalid_request_error")
    assert send(ideal.address, "/completion", {}).status == 400
    # After all that it still serves.
    assert chat(ideal).status == 200


def test_keys() -> None:
    with running(FAST, args=["--api-key", "one,two"]) as server:
        assert send(server.address, "/health").status == 200
        refused = send(server.address, "/props")
        assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
        assert send(server.address, "/props", headers={"Authorization": "Bearer two"}).status == 200
        assert send(server.address, "/metrics", headers={"Authorization": "Bearer one"}).status == 501


@pytest.mark.parametrize(
    ("pace", "kinds", "tokens"),
    [
        (Pace(tokens_per_chunk=3), ["role", *["content"] * 3], [3, 3, 2]),
        (Pace(tokens_per_chunk=2, first_chunk_tokens=4), ["role", *["content"] * 3], [4, 2, 2]),
        (Pace(silent_every=3), ["role", *["content"] * 6], [1, 1, 2, 1, 2, 1]),
        (Pace(burst_tokens=4), ["role", *["content"] * 8], [1] * 8),
        (Pace(reasoning_tokens=3), ["role", *["reasoning"] * 3, *["content"] * 5], [1] * 8),
        (Pace(tool_call_from=2), ["role", *["content"] * 2, *["tool"] * 6], [1] * 8),
        (Pace(early_role=True, tokens_per_chunk=8), ["role", "content"], [8]),
        (Pace(answer="😀😀"), ["role", *["content"] * 2], [4, 4]),
    ],
)
def test_how_tokens_become_chunks(pace: Pace, kinds: list[str], tokens: list[int]) -> None:
    with running(Pace(**{**json.loads(pace.to_json()), "ttft_ms": 1, "tok_s": 2000})) as server:
        reply, truth = stream(server)
    assert [c.kind for c in truth.chunks] == [*kinds, "finish", "usage", "done"]
    assert [c.tokens for c in truth.text_chunks] == tokens
    count = len(deltas(reply)) + len(deltas(reply, "reasoning_content")) + len(deltas(reply, "tool_calls"))
    assert count == len(tokens)
    assert last_with(reply, "usage")["completion_tokens"] == 8


def test_a_tool_call_is_whole_json() -> None:
    with running(Pace(ttft_ms=1, tok_s=2000, tool_call_from=0)) as server:
        reply, _ = stream(server, max_tokens=40)
        whole = chat(server, max_tokens=40).json()["choices"][0]
    calls = [e["choices"][0]["delta"]["tool_calls"][0] for e in reply.events()[1:-3]]
    assert (calls[0]["type"], calls[0]["function"]["name"]) == ("function", "look_up")
    assert all("id" not in call for call in calls[1:])
    assert "text" in json.loads("".join(call["function"]["arguments"] for call in calls))
    # Cut off by its limit, so the reason is the limit's.
    assert whole["finish_reason"] == "length"
    assert "text" in json.loads(whole["message"]["tool_calls"][0]["function"]["arguments"])


def test_thinking_can_be_switched_off_unless_told_otherwise() -> None:
    pace = Pace(ttft_ms=1, tok_s=2000, reasoning_tokens=4, requests={"4-": {"honours_thinking_off": False}})
    with running(pace) as server:
        replies = [
            stream(server)[0],
            stream(server, chat_template_kwargs={"enable_thinking": False})[0],
            stream(server, reasoning_effort="none")[0],
            stream(server, reasoning_effort="none")[0],
        ]
    assert [len(deltas(reply, "reasoning_content")) for reply in replies] == [4, 0, 0, 4]


def test_slots_queue_and_a_queued_request_gets_no_byte() -> None:
    with running(Pace(ttft_ms=50, tok_s=200), args=["-np", "2"]) as server:
        threads = [threading.Thread(target=stream, args=(server,), kwargs={"max_tokens": 100}) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        truth = sorted(server.truth(5), key=lambda record: record.number)
    assert [r.t_slot_ns == r.t_received_ns for r in truth] == [True, True, False, False, False]
    for queued in truth[2:]:
        assert queued.t_slot_ns is not None
        assert queued.t_headers_ns is not None
        assert queued.t_headers_ns >= queued.t_slot_ns
        # Its slot is the scheduled end of one that went before, however late that was noticed.
        assert queued.t_slot_ns in {record.chunks[-1].scheduled_ns for record in truth}
        assert queued.text_chunks[0].scheduled_ns - queued.t_slot_ns == pytest.approx(50e6, abs=2)
    most = max(
        sum(r.t_slot_ns <= t < r.chunks[-1].scheduled_ns for r in truth if r.t_slot_ns)
        for t in [r.t_slot_ns or 0 for r in truth]
    )
    assert most == 2


def test_a_connection_serves_several_requests(ideal: PacedProcess) -> None:
    connection = http.client.HTTPConnection(*ideal.address, timeout=30)
    body = json.dumps({"prompt": "Hi", "n_predict": 2, "stream": True})
    for _ in range(3):
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.headers["Keep-Alive"] == "timeout=5, max=100"
        assert answer.read().count(b"data: ") == 3
    # A request body in chunks, as clients without a length send it.
    connection.request(
        "POST",
        "/tokenize",
        iter([b'{"content"', b': "abc"}']),
        encode_chunked=True,
        headers={"Transfer-Encoding": "chunked"},
    )
    assert len(json.loads(connection.getresponse().read())["tokens"]) == 1
    connection.close()


def test_an_error_ends_the_connection(ideal: PacedProcess) -> None:
    connection = http.client.HTTPConnection(*ideal.address, timeout=30)
    connection.request("GET", "/nope")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Connection"]) == (404, "close")
    assert answer.headers["Keep-Alive"] is None
    answer.read()
    connection.close()


def test_a_connection_ends_after_its_share_and_when_idle() -> None:
    with running(Pace(ttft_ms=1, tok_s=2000, keep_alive_max=2, keep_alive_s=0.3)) as server:
        for requests in (2, 1):
            with socket.create_connection(server.address, timeout=30) as one:
                for _ in range(requests):
                    one.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                seen = b""
                while part := one.recv(65536):
                    seen += part
                assert seen.count(b"HTTP/1.1 200 OK") == requests


def test_requests_sent_ahead_are_answered_in_order(ideal: PacedProcess) -> None:
    body = json.dumps({"prompt": "Hi", "n_predict": 3, "stream": True}).encode()
    with socket.create_connection(ideal.address, timeout=30) as one:
        one.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        one.sendall(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        seen = b""
        while part := one.recv(65536):
            seen += part
    assert seen.index(b'"stop":true') < seen.index(b'{"status":"ok"}')
