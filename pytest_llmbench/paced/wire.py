"""HTTP/1.1 on a bare asyncio protocol: requests in, whole answers or streams out, as cpp-httplib frames them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, cast

from pytest_llmbench.paced.shapes import dumps

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_HEAD = 64 * 1024
JSON_TYPE = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    """One received request. headers: names in lower case. t_received_ns: its last byte had arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    t_received_ns: int


class App(Protocol):
    """What a connection needs of the server."""

    keep_alive_s: float
    keep_alive_max: int

    def handle(self, connection: Connection, request: Request) -> None: ...


class Connection(asyncio.Protocol):
    """One client connection; one request at a time, what comes meanwhile waits in the buffer."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: tuple[str, str, dict[str, str]] | None = None
        self._busy = False
        self._served = 0
        self._keep = True
        self._chunked = True
        self._pending: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self.on_lost: Callable[[], None] | None = None

    # ---- asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by inheritance
        self._idle_from_now()

    def data_received(self, data: bytes) -> None:
        arrived = time.monotonic_ns()
        self._buffer += data
        if not self._busy:
            self._next(arrived)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._stop_timer()
        if self.on_lost is not None:
            self.on_lost()

    # ---- the server's side

    def respond(self, status: int, body: Any, *, content_type: str = JSON_TYPE, headers: str = "") -> None:
        """A whole answer; a status of 400 and more ends the connection, as the real server does."""
        data = body if isinstance(body, bytes) else dumps(body)
        self._keep = self._keep and status < 400
        head = self._status_line(status) + headers + f"Content-Type: {content_type}\r\nContent-Length: {len(data)}\r\n"
        self.write(head.encode("latin-1") + self._connection_header() + data)
        self._done()

    def start_stream(self, framing: str) -> None:
        self._chunked = framing == "chunked"
        self._keep = self._keep and self._chunked
        head = self._status_line(200) + "X-Accel-Buffering: no\r\nContent-Type: text/event-stream\r\n"
        head += "Transfer-Encoding: chunked\r\n" if self._chunked else ""
        self.write(head.encode("latin-1") + self._connection_header())

    def framed(self, data: bytes) -> bytes:
        """Stream data with its HTTP framing."""
        return b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data

    def write(self, data: bytes, *, pieces: int = 0, gap_s: float = 0.0) -> None:
        """Write now; with ``pieces``, in parts of that many bytes, ``gap_s`` apart where nothing else comes first."""
        if self._pending:
            self._stop_timer()
            for part in self._pending:
                self._put(part)
            self._pending.clear()
        if pieces <= 0 or len(data) <= pieces:
            self._put(data)
            return
        parts = [data[i : i + pieces] for i in range(0, len(data), pieces)]
        self._put(parts[0])
        self._pending = parts[1:]
        self._later(gap_s)

    def end_stream(self) -> None:
        self.write(b"0\r\n\r\n" if self._chunked else b"")
        self._done()

    def drop(self) -> None:
        """Close without an end of the message."""
        if self._transport is not None:
            self._transport.abort()

    # ---- inside

    def _put(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._transport.write(data)

    def _later(self, gap_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(gap_s, self._write_one, gap_s)

    def _write_one(self, gap_s: float) -> None:
        self._timer = None
        if self._pending:
            self._put(self._pending.pop(0))
        if self._pending:
            self._later(gap_s)

    def _status_line(self, status: int) -> str:
        phrase = HTTPStatus(status).phrase
        return f"HTTP/1.1 {status} {phrase}\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\n"

    def _connection_header(self) -> bytes:
        if not self._keep:
            return b"Connection: close\r\n\r\n"
        return f"Keep-Alive: timeout={self._app.keep_alive_s:g}, max={self._app.keep_alive_max}\r\n\r\n".encode()

    def _done(self) -> None:
        self.on_lost = None
        self._busy = False
        self._served += 1
        if self._transport is None:
            return
        if not self._keep or self._served >= self._app.keep_alive_max:
            self._transport.close()
            return
        self._idle_from_now()
        if self._buffer:
            asyncio.get_running_loop().call_soon(self._again)

    def _again(self) -> None:
        if not self._busy and self._transport is not None:
            self._next(time.monotonic_ns())

    def _idle_from_now(self) -> None:
        self._stop_timer()
        if self._app.keep_alive_s > 0:
            self._timer = asyncio.get_running_loop().call_later(self._app.keep_alive_s, self._idle_over)

    def _idle_over(self) -> None:
        self._timer = None
        if not self._busy and self._transport is not None:
            self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, arrived: int) -> None:
        """Take one request from the buffer, if it is all there."""
        if self._head is None and not self._take_head():
            return
        assert self._head is not None
        method, path, headers = self._head
        if "chunked" in headers.get("transfer-encoding", ""):
            body = self._take_chunked()
        else:
            size = int(headers.get("content-length") or 0)
            body = bytes(self._buffer[:size]) if len(self._buffer) >= size else None
            if body is not None:
                del self._buffer[:size]
        if body is None:
            return
        self._head = None
        self._busy = True
        self._stop_timer()
        self._keep = headers.get("connection", "").lower() != "close"
        self._app.handle(self, Request(method, path.partition("?")[0], headers, body, arrived))

    def _take_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self.drop()
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        words = lines[0].split(" ")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        if len(words) != 3 or not headers.get("content-length", "0").isdigit():
            self._busy = True
            self._keep = False
            self.respond(400, b"")
            return False
        self._head = (words[0], words[1], headers)
        if headers.get("expect", "").lower() == "100-continue":
            self._put(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _take_chunked(self) -> bytes | None:
        body, at = bytearray(), 0
        while True:
            line = self._buffer.find(b"\r\n", at)
            if line < 0:
                return None
            size = int(bytes(self._buffer[at:line]).partition(b";")[0], 16)
            at = line + 2
            if len(self._buffer) < at + size + 2:
                return None
            body += self._buffer[at : at + size]
            at += size + 2
            if size == 0:
                del self._buffer[:at]
                return bytes(body)
