"""Bytes as servers send them, cut in every way, give the same answer."""

# mypy: disable-error-code="comparison-overlap"
# pytest.approx compares with everything.
from __future__ import annotations

import random
from typing import Any

import pytest
from traces import DONE, MS, ROLE, SEND, delta, event, steady, tail, trace

from pytest_llmbench.client.parse import parse
from pytest_llmbench.client.sse import sse_events
from pytest_llmbench.measure import figures as fig


def test_events_carry_the_arrival_of_their_last_data_byte() -> None:
    chunks = [(10, b"data: on"), (20, b"e\n"), (30, b"\ndata: two\n\nda"), (40, b"ta: three\r\n\r\n")]
    assert list(sse_events(chunks)) == [(20, "one"), (30, "two"), (40, "three")]


def test_comments_other_fields_and_empty_events_are_no_events() -> None:
    chunks = [(1, b": ping\n\n"), (2, b"event: x\nid: 3\n\n"), (3, b"data: a\ndata: b\n\n"), (4, b"data:c\n\n")]
    assert list(sse_events(chunks)) == [(3, "a\nb"), (4, "c")]


def test_an_event_without_its_blank_line_counts_and_a_cut_line_does_not() -> None:
    assert list(sse_events([(1, b"data: whole\n")])) == [(1, "whole")]
    assert list(sse_events([(1, b"data: cu")])) == []


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same_answer(seed: int) -> None:
    whole = b"".join(
        [ROLE, delta("Grüße "), b": ping\n\n", delta("🦙 welt", predicted_n=5), delta(finish="stop"), tail(9, 6), DONE]
    )
    cuts = sorted(random.Random(seed).sample(range(1, len(whole)), 12))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    answer = parse(trace((float(k), piece) for k, piece in enumerate(pieces)))
    assert answer.content == "Grüße 🦙 welt"
    assert (answer.prompt_tokens, answer.completion_tokens, answer.finish_reason) == (9, 6, "stop")
    assert answer.ended
    assert answer.error is None


def test_role_only_and_empty_deltas_are_not_tokens() -> None:
    answer = parse(
        trace([(1, ROLE), (2, delta("")), (3, delta(None)), (100, delta("a")), (120, delta("b")), (130, DONE)])
    )
    assert [e.t_ns for e in answer.events] == [SEND + 100 * MS, SEND + 120 * MS]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"reasoning_content": "hm"}, "reasoning"),
        ({"reasoning": "hm"}, "reasoning"),
        ({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{"}}]}, "tool_calls"),
    ],
)
def test_reasoning_and_tool_calls_are_generated_text(fields: dict[str, Any], kind: str) -> None:
    answer = parse(trace([(1, ROLE), (50, delta(None, **fields)), (60, delta("x")), (70, DONE)]))
    assert answer.events[0].t_ns == SEND + 50 * MS
    assert getattr(answer, kind) == ("f{" if kind == "tool_calls" else "hm")


def test_reading_goes_on_past_the_finish_reason() -> None:
    answer = parse(trace([(1, delta("a")), (2, delta(finish="stop")), (3, tail(4, 1, cached=2)), (4, DONE)]))
    assert (answer.finish_reason, answer.prompt_tokens, answer.cached_tokens) == ("stop", 4, 2)


def test_an_error_inside_a_200_stream_is_an_error() -> None:
    answer = parse(trace([(1, delta("a")), (2, event(error={"code": 500, "message": "context full"}))]))
    assert answer.error == "error inside the stream: context full"


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, b'{"error":{"message":"too long","n_prompt_tokens":900,"n_ctx":512}}', "HTTP 400: too long (n_prompt_tokens 900, n_ctx 512)"),
        (500, b"oops", "HTTP 500: 'oops'"),
        (503, b'{"error":"Loading"}', "HTTP 503: Loading"),
        (200, b"hello", "no server-sent event in the answer: 'hello'"),
        (200, b"data: {nope\n\n", "event 1 is not JSON"),
        (200, b"data: 3\n\n", "event 1 is not a JSON object"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_described(status: int, body: bytes, said: str) -> None:
    assert said in (parse(trace([(1, body)], status=status)).error or "")


def test_a_connection_that_broke_is_an_error_even_after_text() -> None:
    answer = parse(trace([(1, delta("a"))], error="RemoteProtocolError: incomplete chunked read"))
    assert answer.error == "RemoteProtocolError: incomplete chunked read"
    assert not answer.ended


@pytest.mark.parametrize(
    "value", ["3", [1], None, {"choices": 4}, {"choices": [5, {"delta": 6}, {"delta": {"tool_calls": 7}}]}]
)
def test_odd_json_never_raises(value: object) -> None:
    parse(trace([(1, event(odd=value, **(value if isinstance(value, dict) else {})))]))


def test_definitions_on_a_steady_stream() -> None:
    one = steady(513, ttft_ms=100, every_ms=20, prompt=400)
    answer = parse(one)
    assert fig.ttft_ms(answer, one.t_send_ns) == pytest.approx(100)
    rate, label = fig.decode_tok_s(answer)
    assert rate == pytest.approx(50)
    assert label is None
    assert fig.prefill_tok_s(answer, one.t_send_ns) == pytest.approx(4000)
    assert fig.words_s(answer) == pytest.approx(50)
    rest = sum(len(f"w{k} ") for k in range(1, 513))
    assert fig.characters_s(answer) == pytest.approx(rest / (512 * 0.02))
    assert list(fig.windows_tok_s(answer)) == pytest.approx([50, 50])
    assert fig.server_decode_tok_s(answer.timings) == pytest.approx(50)
    assert fig.server_prefill_tok_s(answer.timings) == pytest.approx(400 / 0.098)


def test_tokens_are_counted_by_the_server_never_by_chunks() -> None:
    # A draft's burst of four tokens first, then three a chunk: 4 + 3 * 10 tokens in eleven chunks.
    chunks = [(100.0, delta("aaaa", predicted_n=4))]
    chunks += [(100 + 60.0 * k, delta("bbb", predicted_n=4 + 3 * k)) for k in range(1, 11)]
    chunks += [(710, delta(finish="length")), (710, tail(5, 34)), (710, DONE)]
    assert fig.decode_tok_s(parse(trace(chunks)))[0] == pytest.approx(50)


def test_without_per_chunk_counts_the_first_chunk_is_one_token_and_labelled() -> None:
    rate, label = fig.decode_tok_s(parse(steady(101, counted=False)))
    assert rate == pytest.approx(50)
    assert label == fig.FIRST_CHUNK_ASSUMED


def test_without_any_count_there_is_no_figure() -> None:
    answer = parse(trace([(1, delta("a")), (2, delta("b")), (3, delta(finish="stop")), (4, DONE)]))
    assert fig.decode_tok_s(answer) == (None, None)
    assert fig.prefill_tok_s(answer, SEND) is None


def test_the_token_that_ends_the_answer_carries_no_text_and_is_not_counted_in() -> None:
    # 11 tokens with text, then an end-of-sequence token: usage says 12.
    chunks = [(100 + 20.0 * k, delta("x", predicted_n=k + 1)) for k in range(11)]
    chunks += [(320, delta(finish="stop")), (320, tail(5, 12)), (320, DONE)]
    assert fig.decode_tok_s(parse(trace(chunks)))[0] == pytest.approx(50)


@pytest.mark.parametrize(
    ("tokens", "windows"), [(128, 0), (129, 1), (257, 1), (257 + 127, 1), (257 + 128, 2), (513, 2), (1025, 4)]
)
def test_windows(tokens: int, windows: int) -> None:
    rates = fig.windows_tok_s(parse(steady(tokens)))
    assert len(rates) == windows
    assert all(rate == pytest.approx(50) for rate in rates)


def test_windows_show_a_run_that_slows_down() -> None:
    chunks = [(100.0 + 10 * k, delta("x", predicted_n=k + 1)) for k in range(257)]
    chunks += [(2660.0 + 40 * k, delta("x", predicted_n=257 + k)) for k in range(1, 257)]
    assert list(fig.windows_tok_s(parse(trace(chunks)))) == pytest.approx([100, 25])
