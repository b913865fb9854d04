"""One request on one connection of its own: what happens while the clock counts.

No connection is used twice: llama-server closes idle ones after five seconds, and a request on a connection that is
just being closed would fail, or be sent again behind the clock's back.
"""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from pytest_llmbench.client.framing import Answer, FramingError
from pytest_llmbench.client.stamp import ask_for_stamps, read

if TYPE_CHECKING:
    from collections.abc import Callable

READ_BYTES = 64 * 1024
_clock = time.monotonic_ns


@dataclass(slots=True)
class Tally:
    """What has arrived on all exchanges of a client, for a progress line. Reads behind the head, and their bytes."""

    reads: int = 0
    bytes: int = 0


class Exchange:
    """Opened, sent, read to its end; each once. ``open`` belongs to an event loop, the rest to ``burst.Burst``.

    payload: head and body, encoded beforehand. connect_s, silence_s: the longest waits for the connection and for the
    next byte (None = no limit); the latter also ends a request that the server does not take.
    t_send_ns: just before the first byte was handed to the socket; t_end_ns: the last byte's arrival, or when it broke
    off. error: what broke it off. kernel_stamps: every arrival so far is the kernel's word (``stamp``). on_change: called
    after each read and at the end, by whoever reads.
    """

    def __init__(
        self,
        address: tuple[str, int],
        method: str,
        payload: bytes,
        *,
        connect_s: float | None,
        silence_s: float | None,
        tally: Tally | None = None,
    ) -> None:
        self.answer = Answer(method)
        self.silence_s = silence_s
        self.t_send_ns: int | None = None
        self.t_last_ns: int | None = None  # the last sign of life: a byte came, or was taken
        self.t_end_ns: int | None = None
        self.error: httpx.TransportError | None = None
        self.kernel_stamps = True
        self.on_change: Callable[[], None] | None = None
        self._address, self._connect_s = address, connect_s
        self._left = memoryview(payload)
        self._tally = tally or Tally()
        self._socket: socket.socket | None = None

    @property
    def connection(self) -> socket.socket:
        assert self._socket is not None, "open it first"
        return self._socket

    @property
    def unsent(self) -> bool:
        """Bytes are left that the socket had no room for."""
        return len(self._left) > 0

    def adopt(self, connection: socket.socket) -> None:
        """Use a non-blocking connection that is there already."""
        ask_for_stamps(connection)
        self._socket = connection

    async def open(self) -> None:
        """Connect. A failure is in ``error``, never raised."""
        host, port = self._address
        try:
            async with asyncio.timeout(self._connect_s):
                self.adopt(await _connect(asyncio.get_running_loop(), host, port))
        except TimeoutError:
            self.break_off(httpx.ConnectTimeout(f"{host}:{port} did not answer in {self._connect_s:g} s"))
        except OSError as exc:
            self.break_off(httpx.ConnectError(f"{host}:{port}: {exc}"))

    def send(self) -> None:
        """Hand the request to the socket now."""
        send, payload = self.connection.send, self._left
        self.t_send_ns = self.t_last_ns = _clock()
        try:
            self._left = payload[send(payload) :]
        except BlockingIOError:
            pass
        except OSError:
            self._left = payload[:0]  # the server has closed; what it said before that is still to be read

    def send_more(self) -> None:
        """Hand over what is left, as far as there is room."""
        try:
            self._left = self._left[self.connection.send(self._left) :]
        except BlockingIOError:
            return
        except OSError:
            self._left = self._left[:0]
        self.t_last_ns = _clock()

    def receive(self) -> None:
        """Take what has arrived: stamped first, looked at afterwards."""
        try:
            data, arrived, by_kernel = read(self.connection, READ_BYTES, self.t_last_ns or 0)
        except BlockingIOError:
            return
        except OSError as exc:
            self.break_off(httpx.ReadError(f"{exc} ({self.answer.missing()})"))
            return
        if not data:
            self._server_closed(arrived)
            return
        if not by_kernel:
            self.kernel_stamps = False
        answer = self.answer
        if answer.head is not None:
            self._tally.reads += 1
            self._tally.bytes += len(data)
        self.t_last_ns = arrived
        try:
            answer.feed(arrived, data)
        except FramingError as exc:
            self.break_off(httpx.RemoteProtocolError(str(exc)))
            return
        if answer.complete:
            self.t_end_ns = arrived
        if self.on_change is not None:
            self.on_change()

    def break_off(self, error: httpx.TransportError) -> None:
        """End it for this reason, unless it has ended."""
        if self.t_end_ns is None:
            self.error = error
            self.t_end_ns = _clock()
            if self.on_change is not None:
                self.on_change()

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._socket is not None:
            self._socket.close()

    def _server_closed(self, at_ns: int) -> None:
        self.answer.connection_ended()
        if not self.answer.complete:
            self.break_off(httpx.RemoteProtocolError(f"the server closed the connection: {self.answer.missing()}"))
            return
        self.t_end_ns = at_ns
        if self.on_change is not None:
            self.on_change()


async def _connect(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """A non-blocking connection to the first of the host's addresses that takes one. Raises OSError of the last."""
    last = OSError("the name has no address")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:  # a name: asked in another thread, which an address does without
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        one = socket.socket(family, kind, protocol)
        try:
            one.setblocking(False)  # noqa: FBT003 - the standard library's signature
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(one, address)
        except OSError as exc:
            one.close()
            last = exc
        except BaseException:
            one.close()
            raise
        else:
            return one
    raise last
