"""The measured path on sockets: what servers and networks do to it, and what a trace says then."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from traces import DONE, ROLE, delta, tail

from pytest_llmbench.client import LlmClient, parse
from pytest_llmbench.client.burst import LAG_INTERVAL_NS
from pytest_llmbench.client.exchange import Exchange
from pytest_llmbench.client.http import send_spread_ms
from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Handler = Callable[[bytes, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = [ROLE, delta("one "), delta("two"), delta(finish="stop"), tail(4, 2), DONE]
BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


WHOLE = STREAM + b"".join(map(chunk, EVENTS)) + b"0\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(handler: Handler, **more: Any) -> AsyncIterator[str]:
    """A server that reads one head and hands over; its connections are closed at the end."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handler(await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client went away, as some tests want it
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, **more)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0)


def saying(*parts: bytes, reset: bool = False) -> Handler:
    """Answer with these bytes, then close (or reset)."""

    async def handler(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        if reset:
            one = writer.get_extra_info("socket")
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            writer.transport.abort()

    return handler


@contextlib.asynccontextmanager
async def client_of(url: str, **more: Any) -> AsyncIterator[LlmClient]:
    client = LlmClient(url, **more)
    try:
        yield client
    finally:
        await client.aclose()


async def one_trace(handler: Handler, **more: Any) -> Any:
    async with serving(handler) as url, client_of(url, **more) as client:
        return await client.stream_chat(BODY, "cell/1/1/0")


@pytest.mark.asyncio
async def test_a_trace_holds_what_came_and_when() -> None:
    before = time.monotonic_ns()
    trace = await one_trace(saying(STREAM, *map(chunk, EVENTS), b"0\r\n\r\n"))
    assert (trace.status, trace.transport_error, trace.path) == (200, None, "/v1/chat/completions")
    assert trace.headers == (("content-type", "text/event-stream"), ("transfer-encoding", "chunked"))
    assert [data for _, data in trace.chunks] == EVENTS
    times = [
        before,
        trace.t_call_ns,
        trace.t_send_ns,
        trace.t_headers_ns,
        *(t for t, _ in trace.chunks),
        trace.t_end_ns,
    ]
    assert times == sorted(times)
    assert json.loads(trace.body) == BODY
    answer = parse(trace)
    assert (answer.content, answer.ended, answer.error) == ("one two", True, None)


@pytest.mark.asyncio
async def test_the_request_as_sent() -> None:
    seen: list[bytes] = []

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend([head, await reader.readexactly(len(json.dumps(BODY)))])
        writer.write(WHOLE)

    async with serving(handler) as url, client_of(f"{url}/prefix", headers={"authorization": "Bearer k"}) as client:
        trace = await client.stream_chat(BODY, "cell/1")
    first, *lines = seen[0].decode().lower().split("\r\n")
    assert first == "post /prefix/v1/chat/completions http/1.1"
    assert {"authorization: bearer k", "x-request-id: cell/1", "connection: close", "accept-encoding: identity"} <= {
        *lines
    }
    assert [line for line in lines if line.startswith("content-length")] == [f"content-length: {len(seen[1])}"]
    assert json.loads(seen[1]) == BODY
    assert trace.transport_error is None


@pytest.mark.asyncio
async def test_a_big_prompt_goes_through_a_small_window() -> None:
    text = "wörter " * 150_000
    got: list[int] = []

    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        while size > sum(got):
            got.append(len(await reader.read(20_000)))
        writer.write(WHOLE)

    async with serving(handler, limit=4096) as url, client_of(url) as client:
        traces = await client.burst([{"messages": [{"role": "user", "content": text}]}] * 3, ["a", "b", "c"])
    assert [parse(trace).content for trace in traces] == ["one two"] * 3
    assert all(trace.body.count(b"w\\u00f6rter") == 150_000 for trace in traces)


@pytest.mark.asyncio
async def test_an_answer_before_the_prompt_was_taken() -> None:
    body = {"messages": [{"role": "user", "content": "x" * 8_000_000}]}
    answer = b'{"error":{"message":"too big"}}'

    async def handler(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: %d\r\n\r\n%b" % (len(answer), answer))
        await writer.drain()
        await asyncio.wait_for(reader.read(), 10)  # until the client, which has its answer, closes

    async with serving(handler, limit=4096) as url, client_of(url) as client:
        trace = await client.stream_chat(body, "a")
    assert parse(trace).error == "HTTP 413: too big"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("parts", "reset", "said", "content"),
    [
        ([], False, "RemoteProtocolError: the server closed the connection: no answer", ""),
        ([STREAM[:30]], False, "RemoteProtocolError: the server closed the connection: an incomplete head", ""),
        ([STREAM], False, "RemoteProtocolError: the server closed the connection: incomplete chunked read", ""),
        ([STREAM, chunk(delta("a")), chunk(delta("b"))[:9]], False, "RemoteProtocolError: the server closed", "a"),
        ([STREAM, chunk(delta("a"))], True, "ReadError: ", "a"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nab"], False, "97 bytes of the body missing", ""),
        ([b"nonsense\r\n\r\n"], False, "RemoteProtocolError: b'nonsense' is not a status line", ""),
        ([STREAM, b"zz\r\n"], False, "RemoteProtocolError: b'zz' is not the size of a chunk", ""),
    ],
)
async def test_answers_that_break_off(parts: list[bytes], reset: bool, said: str, content: str) -> None:  # noqa: FBT001
    trace = await one_trace(saying(*parts, reset=reset))
    assert said in (trace.transport_error or "")
    answer = parse(trace)
    assert (answer.content, answer.ended) == (content, False)
    assert answer.error


@pytest.mark.asyncio
async def test_interim_and_close_delimited_answers() -> None:
    plain = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    trace = await one_trace(saying(plain, *EVENTS))
    assert (trace.transport_error, parse(trace).content, parse(trace).ended) == (None, "one two", True)


@pytest.mark.asyncio
async def test_error_statuses_keep_their_body() -> None:
    body = b'{"error":{"code":503,"message":"Loading model"}}'
    trace = await one_trace(saying(b"HTTP/1.1 503 Busy\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)))
    assert (trace.status, trace.transport_error, parse(trace).error) == (503, None, "HTTP 503: Loading model")


@pytest.mark.asyncio
async def test_nobody_listens() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    async with client_of(f"http://127.0.0.1:{port}") as client:
        trace = await client.stream_chat(BODY, "a")
        assert (trace.transport_error or "").startswith(f"ConnectError: 127.0.0.1:{port}: ")
        assert (trace.t_send_ns, trace.status, trace.chunks) == (None, None, ())
        with pytest.raises(httpx.ConnectError):
            await client.http.get("/health")
        with pytest.raises(httpx.TransportError):
            await client.warm_up()


@pytest.mark.asyncio
async def test_tls_is_refused_by_name() -> None:
    async with client_of("https://localhost:1") as client:
        with pytest.raises(InputError, match="is not plain HTTP"):
            await client.stream_chat(BODY, "a")


@pytest.mark.asyncio
async def test_silence_ends_a_request_and_only_that_one() -> None:
    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(delta("a")))
        if b"x-request-id: hung" in head:
            await reader.read()  # until the client gives up
            return
        for _ in range(8):  # longer in all than the silence that is allowed, never silent for so long
            await asyncio.sleep(0.2)
            writer.write(chunk(b": ping\n\n"))
        writer.write(chunk(DONE) + b"0\r\n\r\n")

    async with serving(handler) as url, client_of(url, silence_s=1.5) as client:
        hung, fine = await client.burst([BODY, BODY], ["hung", "fine"])
    assert hung.transport_error == "ReadTimeout: no byte came for 1.5 s (--llmbench-silence-timeout)"
    assert hung.t_end_ns - hung.chunks[-1][0] >= 1.5e9
    assert (fine.transport_error, parse(fine).ended) == (None, True)


@pytest.mark.asyncio
async def test_a_request_that_is_never_taken_ends_too() -> None:
    async def handler(_head: bytes, _reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(30)

    big = {"messages": [{"role": "user", "content": "x" * 20_000_000}]}
    async with serving(handler, limit=4096) as url, client_of(url, silence_s=0.5) as client:
        trace = await client.stream_chat(big, "a")
    assert trace.transport_error == "ReadTimeout: no byte came for 0.5 s (--llmbench-silence-timeout)"


@pytest.mark.asyncio
async def test_a_cancelled_burst_closes_its_connections() -> None:
    gone: list[asyncio.Event] = []
    streaming = asyncio.Semaphore(0)

    async def handler(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gone.append(asyncio.Event())
        mine = gone[-1]
        writer.write(STREAM + chunk(delta("a")))
        streaming.release()
        with contextlib.suppress(ConnectionError):  # a reset is an end too
            await reader.read()
        mine.set()

    async with serving(handler) as url, client_of(url) as client:
        task = asyncio.create_task(client.burst([BODY] * 3, ["a", "b", "c"]))
        for _ in range(3):
            await streaming.acquire()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not [t for t in threading.enumerate() if t.name == "llmbench-burst"]
        async with asyncio.timeout(20):
            for one in gone:
                await one.wait()


@pytest.mark.asyncio
async def test_a_burst_cancelled_while_it_opens_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Exchange] = []
    really_open = Exchange.open

    async def slow_open(self: Exchange) -> None:
        await really_open(self)
        opened.append(self)
        if len(opened) == 2:
            await asyncio.sleep(60)

    monkeypatch.setattr(Exchange, "open", slow_open)
    async with serving(saying(WHOLE)) as url, client_of(url) as client:
        task = asyncio.create_task(client.burst([BODY] * 3, ["a", "b", "c"]))
        while len(opened) < 3:  # noqa: ASYNC110 - nothing to signal
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [one.connection.fileno() for one in opened] == [-1] * 3
    assert not [t for t in threading.enumerate() if t.name == "llmbench-burst"]


@pytest.mark.asyncio
async def test_closing_the_client_ends_what_httpx_reads() -> None:
    async def handler(_head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(delta("a")))
        await reader.read()

    async with serving(handler) as url:
        client = LlmClient(url)
        async with client.http.stream("POST", "/v1/chat/completions", json=BODY) as response:
            parts = response.aiter_raw()
            assert await anext(parts) == delta("a")
            await client.aclose()
            with pytest.raises(httpx.ReadError):
                await anext(parts)


@pytest.mark.asyncio
async def test_httpx_reads_along_as_bytes_come() -> None:
    go_on = asyncio.Event()

    async def handler(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM + chunk(b"first"))
        await asyncio.wait_for(go_on.wait(), 20)
        writer.write(chunk(b"second") + b"0\r\n\r\n")

    async with serving(handler) as url, client_of(url) as client, client.http.stream("GET", "/") as response:
        parts = response.aiter_raw()
        assert await anext(parts) == b"first"  # while the server still waits for us
        go_on.set()
        assert [part async for part in parts] == [b"second"]


@pytest.mark.asyncio
async def test_httpx_raises_what_broke_a_body() -> None:
    async with serving(saying(STREAM, chunk(b"a"))) as url, client_of(url) as client:
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete chunked read"):
            await client.http.get("/")


@pytest.mark.asyncio
async def test_httpx_many_at_once_and_with_a_streamed_body() -> None:
    async def handler(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await reader.readexactly(size)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (size, body))

    async def body(n: int) -> AsyncIterator[bytes]:
        yield b"body "
        yield b"%d" % n

    async with serving(handler) as url, client_of(url) as client:
        answers = await asyncio.gather(*(client.http.post("/", content=body(n)) for n in range(40)))
    assert [answer.content for answer in answers] == [b"body %d" % n for n in range(40)]


@pytest.mark.asyncio
async def test_every_connection_is_open_before_the_first_request_is_sent() -> None:
    """The server answers nobody before it has all requests; it counts connections when the first head arrives."""
    connected: list[int] = []
    heads = asyncio.Semaphore(0)

    async def handler(_head: bytes, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.release()
        async with asyncio.timeout(20):
            while heads._value < 20:  # noqa: ASYNC110 - one loop, nothing to signal
                await asyncio.sleep(0.005)
        writer.write(WHOLE)

    async with serving(handler) as url, client_of(url, connections=20) as client:
        transport = client._transport
        release = transport.release

        async def watched(exchanges: Any, settle_s: float = 0.0) -> None:
            send = exchanges[0].send

            def counted() -> None:
                connected.append(sum(one.connection.fileno() >= 0 for one in exchanges))
                send()

            exchanges[0].send = counted
            await release(exchanges, settle_s)

        transport.release = watched  # type: ignore[method-assign]
        traces = await client.burst([BODY] * 20, [str(n) for n in range(20)])
    assert connected == [20]
    spread = send_spread_ms(traces)
    assert spread is not None
    assert spread == (max(t.t_send_ns or 0 for t in traces) - min(t.t_send_ns or 0 for t in traces)) / 1e6 > 0


@pytest.mark.asyncio
async def test_a_burst_that_cannot_be_is_refused() -> None:
    async with client_of("http://127.0.0.1:1", connections=2) as client:
        with pytest.raises(ValueError, match="3 bodies"):
            await client.burst([BODY] * 3, ["a", "b", "c"])
        with pytest.raises(ValueError, match="1 ids"):
            await client.burst([BODY] * 2, ["a"])


def test_the_spread_of_nothing_is_unknown() -> None:
    assert send_spread_ms([]) is None


@pytest.mark.asyncio
async def test_a_reader_that_is_late_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    receive = Exchange.receive

    def late(self: Exchange) -> None:
        if not self.answer.body:
            time.sleep(0.3)
        receive(self)

    monkeypatch.setattr(Exchange, "receive", late)
    parts = [STREAM, *map(chunk, EVENTS), b"0\r\n\r\n"]
    async with serving(saying(*parts)) as url, client_of(url) as client:
        trace = await client.stream_chat(BODY, "a")
        assert parse(trace).ended
        assert client.lag_max_ms >= 300 - LAG_INTERVAL_NS / 1e6


@pytest.mark.asyncio
async def test_counters_for_a_progress_line() -> None:
    async with serving(saying(STREAM, *map(chunk, EVENTS), b"0\r\n\r\n")) as url, client_of(url) as client:
        trace = await client.stream_chat(BODY, "a")
        assert parse(trace).ended
        assert client.chunks_received >= len(trace.chunks)
        assert client.bytes_received > sum(len(data) for _, data in trace.chunks)
