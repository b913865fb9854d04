"""What one arriving chunk costs a client, by the way it reads, and what one request costs ours: CPU microseconds, the
least of many rounds.

    python benchmarks/read_cost.py

64 connections hold one chunk each; the time to stamp and keep all of them, divided by 64. ``uvloop`` where installed.
The connections are on loopback, so that the kernel stamps what arrives, as it does for a server on this machine.
The least of many rounds is hardly touched by a busy machine.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import select
import selectors
import socket
import time
from typing import TYPE_CHECKING

import httpx

from pytest_llmbench.client.exchange import Exchange
from pytest_llmbench.client.transport import ExchangeTransport

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS, ROUNDS = 64, 300
DATA = b"x" * 0x120
HEAD = (
    b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nX-Accel-Buffering: no\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
)
CHUNK = b"120\r\n%b\r\n" % DATA


class Pairs:
    """Connected pairs; ``fill`` puts one chunk into each."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS) as server:
            self.pairs = [
                (socket.create_connection(server.getsockname()), server.accept()[0]) for _ in range(CONNECTIONS)
            ]
        for pair in self.pairs:
            for one in pair:
                one.setblocking(False)  # noqa: FBT003 - the standard library's signature
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def readers(self) -> list[socket.socket]:
        return [reader for _, reader in self.pairs]

    def fill(self) -> None:
        for writer, _ in self.pairs:
            writer.send(CHUNK)

    def least_us(self, read_all: Callable[[], None]) -> float:
        times = []
        for _ in range(ROUNDS):
            self.fill()
            began = time.perf_counter()
            read_all()
            times.append(time.perf_counter() - began)
        return min(times) / CONNECTIONS * 1e6

    def close(self) -> None:
        for pair in self.pairs:
            for one in pair:
                one.close()


def floor(pairs: Pairs) -> float:
    by_fd = {one.fileno(): one for one in pairs.readers()}
    kept: list[tuple[int, bytes]] = []
    with select.epoll() as epoll:
        for fd in by_fd:
            epoll.register(fd, select.EPOLLIN)

        def read_all() -> None:
            left = CONNECTIONS
            while left:
                for fd, _ in epoll.poll():
                    now = time.monotonic_ns()
                    kept.append((now, by_fd[fd].recv(65536)))
                    left -= 1

        return pairs.least_us(read_all)


def ours(pairs: Pairs) -> float:
    exchanges = []
    with selectors.DefaultSelector() as selector:
        for one in pairs.readers():
            exchange = Exchange(("", 0), "POST", b"", connect_s=None, silence_s=None)
            exchange.adopt(one)
            exchange.answer.feed(0, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            selector.register(one, selectors.EVENT_READ, exchange)
            exchanges.append(exchange)

        def read_all() -> None:
            left = CONNECTIONS
            while left:
                for key, _ in selector.select():
                    key.data.receive()
                    left -= 1

        return pairs.least_us(read_all)


async def event_loop(pairs: Pairs) -> float:
    class Keeper(asyncio.Protocol):
        left = 0
        over: asyncio.Future[None]
        kept: list[tuple[int, bytes]] = []  # noqa: RUF012 - shared on purpose

        def data_received(self, data: bytes) -> None:
            self.kept.append((time.monotonic_ns(), data))
            Keeper.left -= 1
            if not Keeper.left:
                Keeper.over.set_result(None)

    loop = asyncio.get_running_loop()
    transports = [(await loop.create_connection(Keeper, sock=one))[0] for one in pairs.readers()]
    times = []
    for _ in range(ROUNDS):
        Keeper.left, Keeper.over = CONNECTIONS, loop.create_future()
        pairs.fill()
        began = time.perf_counter()
        await Keeper.over
        times.append(time.perf_counter() - began)
    for transport in transports:
        transport.close()
    return min(times) / CONNECTIONS * 1e6


def of_a_request(pairs: Pairs) -> dict[str, float]:
    """A request of ours: encoded before the release, handed to the socket at it, its answer's head taken apart."""
    request = httpx.Request("POST", "http://127.0.0.1:1/v1/chat/completions", content=b"x" * 2000)
    least: dict[str, float] = {}
    for _ in range(ROUNDS):
        begun = [time.perf_counter()]
        exchanges = [ExchangeTransport().exchange(request) for _ in pairs.pairs]
        begun.append(time.perf_counter())
        for one, (connection, _) in zip(exchanges, pairs.pairs, strict=True):
            one.adopt(connection)
        begun.append(time.perf_counter())
        for one in exchanges:
            one.send()
        begun.append(time.perf_counter())
        for one in exchanges:
            one.answer.feed(0, HEAD)
        begun.append(time.perf_counter())
        for _, reader in pairs.pairs:
            reader.recv(65536)
        for name, at in (("encoded (before the release)", 0), ("handed to the socket", 2), ("its answer's head", 3)):
            least[name] = min(least.get(name, 1e9), (begun[at + 1] - begun[at]) / CONNECTIONS * 1e6)
    return least


def main() -> None:
    ways: dict[str, Callable[[Pairs], float]] = {
        "floor (epoll)": floor,
        "ours (kernel's stamp, HTTP framing undone)": ours,
        "asyncio protocol, standard loop": lambda pairs: asyncio.run(event_loop(pairs)),
    }
    if importlib.util.find_spec("uvloop"):
        uvloop = importlib.import_module("uvloop")
        ways["asyncio protocol, uvloop"] = lambda pairs: float(uvloop.run(event_loop(pairs)))
    for name, way in ways.items():
        pairs = Pairs()
        print(f"{name:48} {way(pairs):6.2f} us a chunk")
        pairs.close()
    pairs = Pairs()
    for name, cost in of_a_request(pairs).items():
        print(f"{name:48} {cost:6.2f} us a request")
    pairs.close()


if __name__ == "__main__":
    main()
