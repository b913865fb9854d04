"""HTTP/1.1 answers taken apart: timed reads in, head and timed body out, wherever the reads were cut. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

MAX_HEAD = 256 * 1024
Read = tuple[int, bytes]


class FramingError(Exception):
    """The bytes are not an HTTP/1.1 answer; the text says where."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and header fields (names and values as sent, latin-1)."""

    status: int
    reason: bytes
    headers: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """The value of the last field of that lower-case name."""
        return next((value for key, value in reversed(self.headers) if key.lower() == name), None)


@dataclass(slots=True)
class Answer:
    """An answer as far as it has come.

    body: (arrival, body bytes of one read), framing removed; a read without body bytes gives none. t_head_ns: arrival
    of the head's last byte. complete: the end that the framing promises has come.
    """

    method: str
    head: Head | None = None
    t_head_ns: int | None = None
    body: list[Read] = field(default_factory=list)
    complete: bool = False
    _rest: bytes = b""
    _left: int | None = 0  # of the current chunk or of the whole body; None: until the connection ends
    _state: Literal["head", "size", "data", "data end", "trailer", "plain"] = "head"

    def feed(self, arrived: int, data: bytes) -> None:
        """Take one read. Raises FramingError on what is no HTTP/1.1 answer; what follows the end is left alone."""
        if self._state == "size" and not self._rest:
            # Nearly every read of a stream is one whole chunk, and this runs while the clock counts.
            line = data.find(b"\r\n", 0, 20)
            try:
                size = int(data[:line], 16) if line > 0 else 0
            except ValueError:
                size = 0
            if size > 0 and len(data) == line + size + 4 and data[-2:] == b"\r\n":
                self.body.append((arrived, data[line + 2 : -2]))
                return
        if self.complete:
            return
        parts = self._take(arrived, self._rest + data if self._rest else data)
        if parts:
            self.body.append((arrived, parts[0] if len(parts) == 1 else b"".join(parts)))

    def connection_ended(self) -> None:
        """The server closed: that is the end of a body that has no other one."""
        if self._state == "plain" and self._left is None:
            self.complete = True

    def missing(self) -> str:
        """What has not come, for a message."""
        if self._state == "head":
            return "no answer" if not self._rest else "an incomplete head"
        if self._state == "plain":
            return f"{self._left} bytes of the body missing"
        return "incomplete chunked read"

    def _take(self, arrived: int, data: bytes) -> list[bytes]:
        """Use up ``data``; what cannot be used yet waits in ``_rest``. Returns the body parts in it."""
        parts: list[bytes] = []
        at, self._rest = 0, b""
        while not self.complete:
            if self._state in ("data", "plain"):
                part = data[at:] if self._left is None else data[at : at + self._left]
                if part:
                    parts.append(part)
                    at += len(part)
                if self._left is None or self._body_goes_on(len(part)):
                    return parts
                continue
            end, width = (data.find(b"\r\n\r\n", at), 4) if self._state == "head" else (data.find(b"\r\n", at), 2)
            if end < 0:
                self._rest = data[at:]
                if len(self._rest) > MAX_HEAD:
                    raise FramingError(f"{len(self._rest)} bytes without the end of the {self._state}")
                return parts
            self._line(arrived, data[at:end])
            at = end + width
        return parts

    def _body_goes_on(self, taken: int) -> bool:
        """Count body bytes; true when more of the same must come."""
        assert self._left is not None
        self._left -= taken
        if self._left:
            return True
        if self._state == "plain":
            self.complete = True
        else:
            self._state = "data end"
        return False

    def _line(self, arrived: int, line: bytes) -> None:
        if self._state == "head":
            self._take_head(arrived, line)
        elif self._state == "size":
            self._take_size(line)
        elif self._state == "data end":
            if line:
                raise FramingError(f"{line[:40]!r} after a chunk's data")
            self._state = "size"
        elif not line:  # the empty line after the trailer
            self.complete = True

    def _take_size(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise FramingError(f"{line[:40]!r} is not the size of a chunk")
        self._left = size
        self._state = "data" if size else "trailer"

    def _take_head(self, arrived: int, raw: bytes) -> None:
        head = parse_head(raw)
        if 100 <= head.status < 200 and head.status != 101:
            return  # interim: the real one follows
        self.head, self.t_head_ns = head, arrived
        if self.method == "HEAD" or head.status in (101, 204, 304):
            self.complete = True
            return
        coding, length = head.get(b"transfer-encoding"), head.get(b"content-length")
        if coding is not None and coding.lower().rpartition(b",")[2].strip() == b"chunked":
            self._state = "size"
            return
        self._state = "plain"
        if coding is not None or length is None:
            self._left = None
            return
        if not length.isdigit():
            raise FramingError(f"content-length {length[:40]!r} is not a number")
        self._left = int(length)
        self.complete = self._left == 0


def parse_head(raw: bytes) -> Head:
    """Status line and fields, without the empty line. Raises FramingError."""
    first, *lines = raw.split(b"\r\n")
    words = first.split(b" ", 2)
    if not first.startswith(b"HTTP/1.") or len(words) < 2 or not words[1].isdigit() or len(words[1]) != 3:
        raise FramingError(f"{first[:60]!r} is not a status line of HTTP/1.1")
    fields = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise FramingError(f"{line[:60]!r} is not a header field")
        fields.append((name, value.strip()))
    return Head(int(words[1]), words[2] if len(words) > 2 else b"", tuple(fields))
