"""One request on one connection of its own, on a bare asyncio protocol: what happens while the clock counts.

A read is stamped first and looked at afterwards; HTTP framing is undone when the answer has ended, or when somebody
asks. No connection is used twice: llama-server closes idle ones after five seconds, and a request on a connection that
is just being closed would fail, or be sent again behind the clock's back.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from pytest_llmbench.client.framing import Answer, FramingError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

_clock = time.monotonic_ns
_END = b"\r\n\r\n"  # a chunked answer ends with these four bytes, and hardly any other read does


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. tls: None for plain HTTP."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None


@dataclass(slots=True)
class Tally:
    """What has arrived on all exchanges of a client, for a progress line. Body reads; bytes with HTTP framing."""

    reads: int = 0
    bytes: int = 0


class Exchange(asyncio.Protocol):
    """Opened, then sent, then finished; each once.

    payload: head and body, encoded beforehand. connect_s, silence_s: the longest waits for the connection and for
    the next byte (None = no limit); the latter also ends a request that the server does not read. t_send_ns: just before the first byte was handed to the socket; t_end_ns:
    the arrival of the last byte, or when it broke off. error: what broke it off.
    """

    def __init__(
        self,
        address: Address,
        method: str,
        payload: bytes,
        *,
        connect_s: float | None,
        silence_s: float | None,
        tally: Tally | None = None,
    ) -> None:
        self.answer = Answer(method)
        self.reads: list[tuple[int, bytes]] = []
        self.t_send_ns: int | None = None
        self.t_end_ns: int | None = None
        self.error: httpx.TransportError | None = None
        self.on_end: Callable[[Exchange], None] | None = None
        self._address, self._payload = address, payload
        self._connect_s, self._silence_s = connect_s, silence_s
        self._tally = tally or Tally()
        self._looked_at = 0
        self._cheap = False  # the answer is chunked: only its last four bytes need a look
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._reader: asyncio.Event | None = None  # somebody reads along

    # ---- the caller's side

    async def open(self) -> None:
        """Connect. A failure is in ``error``, never raised."""
        loop, address, timeout_s = asyncio.get_running_loop(), self._address, self._connect_s
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: self, address.host, address.port, ssl=address.tls)
        except TimeoutError:
            self._break_off(httpx.ConnectTimeout(f"{address.host}:{address.port} did not answer in {timeout_s:g} s"))
        except OSError as exc:
            self._break_off(httpx.ConnectError(f"{address.host}:{address.port}: {exc}"))

    def send(self) -> None:
        """Hand the request to the socket now. Nothing happens on a connection that is already broken."""
        if self.t_end_ns is not None:
            return
        assert self._transport is not None, "open it first"
        write, payload = self._transport.write, self._payload
        self.t_send_ns = _clock()
        write(payload)

    def watch_silence(self) -> None:
        """Begin to wait for bytes; apart from ``send``, so that nothing stands between two requests of a burst."""
        if self._silence_s is not None and self.t_end_ns is None:
            self._timer = asyncio.get_running_loop().call_later(self._silence_s, self._check_silence, self._silence_s)

    async def finished(self) -> None:
        """Wait for the end, whatever it is; a cancelled wait closes the connection at once."""
        try:
            await self._ended.wait()
        except asyncio.CancelledError:
            self.abort()
            raise

    async def more(self, seen: int) -> None:
        """Wait until ``answer`` holds a head and more than ``seen`` body parts, or the end."""
        self._reader = self._reader or asyncio.Event()
        self._look()
        while self.t_end_ns is None and (self.answer.head is None or len(self.answer.body) <= seen):
            self._reader.clear()
            await self._reader.wait()

    def abort(self) -> None:
        """Close the connection now, whatever is on its way."""
        if self.t_end_ns is None:
            self._break_off(httpx.ReadError("given up"))

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        arrived = _clock()
        self.reads.append((arrived, data))
        if self._cheap:
            self._tally.reads += 1
            self._tally.bytes += len(data)
            if self._reader is None and data[-4:] != _END and len(data) >= 4:
                return
        self._look()
        if self._reader is not None:
            self._reader.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.t_end_ns is not None:
            return
        self._look()
        self.answer.connection_ended()
        if self.answer.complete:
            self._end(_clock())
        elif self.t_send_ns is None:
            self._break_off(httpx.ConnectError("the server closed the connection before the request was sent"))
        elif exc is not None:
            self._break_off(httpx.ReadError(f"{exc} ({self.answer.missing()})"))
        else:
            self._break_off(httpx.RemoteProtocolError(f"the server closed the connection: {self.answer.missing()}"))

    # ---- inside

    def _look(self) -> None:
        """Undo the framing of what has come, and see whether that is all."""
        new, self._looked_at = self.reads[self._looked_at :], len(self.reads)
        try:
            self.answer.feed(new)
        except FramingError as exc:
            self._break_off(httpx.RemoteProtocolError(str(exc)))
            return
        self._cheap = self.answer.chunked
        if self.answer.complete and self.t_end_ns is None:
            self._end(self.reads[-1][0])

    def _break_off(self, error: httpx.TransportError) -> None:
        if self.t_end_ns is None:
            self.error = error
            self._end(_clock())

    def _end(self, at_ns: int) -> None:
        self.t_end_ns = at_ns
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()
        self._ended.set()
        if self.on_end is not None:
            self.on_end(self)
        if self._reader is not None:
            self._reader.set()

    def _check_silence(self, silence_s: float) -> None:
        last_ns = self.reads[-1][0] if self.reads else self.t_send_ns
        assert last_ns is not None
        left_s = silence_s - (_clock() - last_ns) / 1e9
        if left_s <= 0:
            self._break_off(httpx.ReadTimeout(f"no byte for {silence_s:g} s"))
        else:
            self._timer = asyncio.get_running_loop().call_later(left_s, self._check_silence, silence_s)
