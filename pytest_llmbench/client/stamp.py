"""When bytes arrived, as the kernel noted it: a reader that wakes up late does not move that.

Linux stamps every packet on its arrival and hands the stamp of the last byte read over with it (SO_TIMESTAMPNS,
socket(7)). It is wall time; how long the bytes have lain there since is taken off the monotonic clock. Elsewhere an
arrival is the time at which it was read.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import time

_clock = time.monotonic_ns

if sys.platform == "linux":
    _SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module does not name it
    _TIMESPEC = struct.Struct("@ll")
    _SPACE = socket.CMSG_SPACE(_TIMESPEC.size)
    _wall = time.time_ns

    def ask_for_stamps(connection: socket.socket) -> None:
        """Have the kernel stamp what arrives. It does so from a few ms later on; the open connections' rest covers that."""
        with contextlib.suppress(OSError):  # refused: each read is stamped by its reader, and says so
            connection.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def read(connection: socket.socket, size: int, after_ns: int) -> tuple[bytes, int, bool]:
        """(data, arrival of its last byte in monotonic ns, whether that is the kernel's word). Raises OSError.

        after_ns: nothing in it can have come before. A stamp that says so saw the wall clock being set: it is not used.
        """
        data, extra, _, _ = connection.recvmsg(size, _SPACE)
        wall, now = _wall(), _clock()  # in this order: what comes between the two makes a stamp late, never early
        if extra:
            seconds, ns = _TIMESPEC.unpack(extra[0][2])
            arrived = now - (wall - seconds * 1_000_000_000 - ns)
            if after_ns <= arrived <= now:
                return data, arrived, True
        return data, now, False

else:

    def ask_for_stamps(connection: socket.socket) -> None:
        """There are none here."""

    def read(connection: socket.socket, size: int, after_ns: int) -> tuple[bytes, int, bool]:  # noqa: ARG001
        """(data, when it was read in monotonic ns, False). Raises OSError."""
        data = connection.recv(size)
        return data, _clock(), False
