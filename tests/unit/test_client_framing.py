"""HTTP/1.1 answers, cut at any byte, give the same head and the same body; what is no HTTP says so."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.client.framing import Answer, FramingError, Read

if TYPE_CHECKING:
    from collections.abc import Iterable

EVENTS = [
    b'data: {"a":1}\n\n',
    b": ping\n\n",
    "data: Grüße 🦙\n\n".encode(),
    b"data: 0\r\n\r\n0\r\n\r\n",
    b"data: [DONE]\n\n",
]
BODY = b"".join(EVENTS)


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Type: text/event-stream\r\n"
ANSWERS = {
    "chunked": HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS),
    "several events a chunk": HEAD + b"transfer-encoding: Chunked\r\n\r\n" + chunked(BODY[:20], BODY[20:]),
    "extensions and trailers": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n"
    + b"%X;name=value\r\n%b\r\n0\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n" % (len(BODY), BODY),
    "length": HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    "until the connection ends": HEAD + b"\r\n" + BODY,
    "after an interim head": b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    + HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*EVENTS),
}  # fmt: skip


def take(reads: Iterable[Read], method: str = "POST") -> Answer:
    answer = Answer(method)
    for arrived, data in reads:
        answer.feed(arrived, data)
    return answer


def timed(raw: bytes, cuts: Iterable[int]) -> list[Read]:
    """The n-th read arrives at n."""
    ends = [*sorted(set(cuts)), len(raw)]
    return [(n, raw[a:b]) for n, (a, b) in enumerate(zip([0, *ends[:-1]], ends, strict=True))]


def check(answer: Answer, name: str) -> None:
    assert answer.head is not None
    assert answer.head.status == 200
    assert answer.head.headers[:2] == ((b"Server", b"x"), (b"Content-Type", b"text/event-stream"))
    assert b"".join(data for _, data in answer.body) == BODY
    assert answer.complete is (name != "until the connection ends")
    answer.connection_ended()
    assert answer.complete


@pytest.mark.parametrize("name", ANSWERS)
def test_one_cut_at_every_byte(name: str) -> None:
    raw = ANSWERS[name]
    for cut in range(1, len(raw)):
        check(take(timed(raw, [cut])), name)


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("seed", range(10))
def test_many_cuts(name: str, seed: int) -> None:
    raw = ANSWERS[name]
    chance = random.Random(seed)
    check(take(timed(raw, chance.sample(range(1, len(raw)), chance.randint(2, len(raw) - 1)))), name)


@pytest.mark.parametrize("name", ANSWERS)
def test_every_byte_alone_keeps_its_own_arrival(name: str) -> None:
    raw = ANSWERS[name]
    answer = take(timed(raw, range(1, len(raw))))
    check(answer, name)
    # A body byte stands in exactly the read that brought it.
    assert all(raw[n : n + 1] == data for n, data in answer.body)
    assert answer.t_head_ns is not None
    assert raw[: answer.t_head_ns + 1].endswith(b"\r\n\r\n")
    assert answer.t_head_ns < answer.body[0][0]


def test_body_bytes_behind_the_head_in_one_read() -> None:
    answer = take([(7, ANSWERS["chunked"])])
    assert (answer.t_head_ns, answer.body) == (7, [(7, BODY)])


def test_nothing_after_the_end_is_taken() -> None:
    answer = take([(1, ANSWERS["length"] + b"more"), (2, b"5\r\nhello\r\n")])
    assert answer.body == [(1, BODY)]


@pytest.mark.parametrize(
    ("method", "head"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 \r\nContent-Length: 40\r\n\r\n"),
        ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    ],
)
def test_answers_without_a_body(method: str, head: bytes) -> None:
    assert take([(1, head)], method).complete


@pytest.mark.parametrize(
    ("raw", "missing"),
    [
        (b"", "no answer"),
        (b"HTTP/1.1 20", "an incomplete head"),
        (HEAD + b"Content-Length: 10\r\n\r\nabc", "7 bytes of the body missing"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", "incomplete chunked read"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "incomplete chunked read"),
    ],
)
def test_what_is_missing(raw: bytes, missing: str) -> None:
    answer = take([(1, raw)])
    answer.connection_ended()
    assert not answer.complete
    assert answer.missing() == missing


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", "not a status line"),
        (b"HTTP/1.1 abc\r\n\r\n", "not a status line"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "not a header field"),
        (HEAD + b"Content-Length: x\r\n\r\n", "is not a number"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "not the size of a chunk"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n-2\r\n", "not the size of a chunk"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabXX\r\n", "after a chunk's data"),
        (b"x" * 300_000, "without the end of the head"),
    ],
)
def test_what_is_no_http(raw: bytes, said: str) -> None:
    with pytest.raises(FramingError, match=said):
        take([(1, raw)])
