"""Every fault of the paced server, each in exactly the request that it was asked for."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest
from paced_requests import CHAT, ask, fast, texts, whole

from pytest_llmbench.paced import Pace, running
from pytest_llmbench.paced.probe import Reply, send


def broken_second(knobs: dict[str, Any], **body: Any) -> Reply:
    """Three requests of which the second is broken; the first and the third must be whole."""
    with running(fast(requests={"2": knobs})) as server:
        first, second, third = ask(server), ask(server, **body), ask(server)
    assert whole(first)
    assert whole(third)
    return second


def test_error_in_the_stream() -> None:
    reply = broken_second({"error_after": 3})
    assert (reply.status, texts(reply), reply.complete) == (200, 3, True)
    assert reply.events()[-1]["error"]["message"] == "Context size has been exceeded."


def test_error_before_the_first_token() -> None:
    reply = broken_second({"error_after": 0})
    assert (reply.status, texts(reply), len(reply.events())) == (200, 0, 1)


def test_error_without_streaming() -> None:
    reply = broken_second({"error_after": 3}, stream=False)
    assert (reply.status, reply.json()["error"]["code"]) == (500, 500)


def test_drop() -> None:
    reply = broken_second({"drop_after": 3})
    assert (reply.status, texts(reply), reply.complete) == (200, 3, False)


def test_drop_at_the_end_of_all_tokens() -> None:
    reply = broken_second({"drop_after": 8})
    assert (texts(reply), reply.complete) == (8, False)


def test_a_fault_beyond_the_answer_never_happens() -> None:
    assert whole(broken_second({"drop_after": 9}))


def test_clean_end_without_finish() -> None:
    reply = broken_second({"end_after": 3})
    assert (texts(reply), reply.complete) == (3, True)
    assert all(event["choices"][0]["finish_reason"] is None for event in reply.events())


@pytest.mark.parametrize(
    ("knobs", "missing"),
    [
        ({"usage": False}, "usage"),
        ({"timings": False}, "timings"),
        ({"done": False}, "[DONE]"),
        ({"finish": False}, "finish"),
    ],
)
def test_what_may_be_missing(knobs: dict[str, Any], missing: str) -> None:
    reply = broken_second(knobs)
    events = reply.events()
    there = {key for event in events if isinstance(event, dict) for key in event} | {
        e for e in events if isinstance(e, str)
    }
    if any(e["choices"] and e["choices"][0]["finish_reason"] for e in events if isinstance(e, dict)):
        there.add("finish")
    assert {"usage", "timings", "[DONE]", "finish"} - there == {missing}
    assert (texts(reply), reply.complete) == (8, True)


def test_no_timings_per_token() -> None:
    reply = broken_second({"timings_per_token": False}, timings_per_token=True)
    assert ["timings" in event for event in reply.events() if isinstance(event, dict)].count(True) == 1


def test_counts_that_lie() -> None:
    honest = broken_second({})
    reply = broken_second({"prompt_count_error": 26, "cache_n": 5, "timings_extra": {"draft_n": 4}})
    usage, timings = reply.events()[-2]["usage"], reply.events()[-2]["timings"]
    assert usage["prompt_tokens"] == honest.events()[-2]["usage"]["prompt_tokens"] + 26
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5}
    assert timings["cache_n"] + timings["prompt_n"] == usage["prompt_tokens"]
    assert timings["draft_n"] == 4


def test_early_stop_and_truncation() -> None:
    stopped = broken_second({"stop_after": 4})
    assert (texts(stopped), stopped.events()[-3]["choices"][0]["finish_reason"]) == (3, "stop")
    assert stopped.events()[-2]["usage"]["completion_tokens"] == 4
    assert whole(broken_second({"stop_after": 4}, ignore_eos=True))
    cut = broken_second({"truncate_after": 4})
    assert (texts(cut), cut.events()[-3]["choices"][0]["finish_reason"]) == (4, "length")


def test_an_http_error() -> None:
    reply = broken_second({"http_error": 503})
    assert (reply.status, reply.json()["error"]["code"]) == (503, 503)


def test_a_hanging_stream_holds_its_slot_until_the_client_goes() -> None:
    with running(fast(requests={"1": {"hang_after": 2}}), args=["-np", "1"]) as server:
        with socket.create_connection(server.address, timeout=30) as one:
            body = json.dumps({"prompt": "Hi", "n_predict": 8, "stream": True}).encode()
            one.sendall(b"POST /completion HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            seen = b""
            while seen.count(b"data: ") < 2:
                seen += one.recv(65536)
            one.settimeout(0.2)
            with pytest.raises(TimeoutError):
                one.recv(1)
            assert send(server.address, "/slots").json()[0]["is_processing"] is True
        assert whole(ask(server))
        hung = server.truth(2)[0]
    assert (hung.number, hung.end, len(hung.text_chunks)) == (1, "hang", 2)


def test_a_client_that_goes_frees_its_slot() -> None:
    with running(Pace(ttft_ms=5, tok_s=100), args=["-np", "1"]) as server:
        send(server.address, CHAT, {"messages": [], "max_tokens": 5000, "stream": True}, stop_after_bytes=1000)
        assert whole(ask(server))
        assert [record.end for record in server.truth(2)] == ["cancelled", "done"]


def test_one_error_can_end_all_streams_in_flight() -> None:
    pace = Pace(ttft_ms=200, tok_s=50, requests={"3": {"ttft_ms": 300, "error_all_after": 3}})
    with running(pace, args=["-np", "3"]) as server:
        replies: list[Reply] = []
        threads = [threading.Thread(target=lambda: replies.append(ask(server, max_tokens=500))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [reply.events()[-1].get("error", {}).get("code") for reply in replies] == [500] * 3
        assert send(server.address, "/health").status == 200
        assert [record.end for record in server.truth(3)] == ["error"] * 3


def test_pings_are_comments() -> None:
    with running(Pace(ttft_ms=500, tok_s=2000, ping_every_ms=20)) as server:
        reply = ask(server)
        truth = server.truth(1)[0]
    assert whole(reply)
    comments = [c for c in truth.chunks if c.kind == "comment"]
    assert len(comments) == reply.parts.count(b":\n\n") >= 4
    assert comments[0].actual_ns < truth.text_chunks[0].actual_ns


def test_events_split_across_writes() -> None:
    with running(Pace(ttft_ms=1, tok_s=10, split_bytes=100, split_gap_ms=10)) as server:
        reply = ask(server, max_tokens=3)
    assert (texts(reply), reply.complete, reply.events()[-1]) == (3, True, "[DONE]")
    # Three chunks of some 250 bytes in pieces of 100, so far apart that a reader sees most of them on their own.
    assert len(reply.reads) > len(reply.parts) + 2


def test_events_joined_in_one_write() -> None:
    with running(fast(events_per_write=3)) as server:
        reply, truth = ask(server), server.truth(1)[0]
    assert whole(reply)
    assert [part.count(b'"content":"') for part in reply.parts] == [3, 3, 2, 0, 0]
    starts = [chunk.actual_ns for chunk in truth.text_chunks]
    assert [starts.count(t) for t in sorted(set(starts))] == [3, 3, 2]


def test_a_stream_delimited_by_its_end() -> None:
    reply = broken_second({"framing": "close"})
    assert "transfer-encoding" not in reply.headers
    assert whole(reply)
