"""Arrivals as the kernel has them: whoever reads late, the stamp is where the bytes came."""

from __future__ import annotations

import socket
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pytest_llmbench.client.stamp import ask_for_stamps, read

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what arrives on TCP")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        accepted, _ = server.accept()
        with accepted:
            yield client, accepted


def stamping(pair: tuple[socket.socket, socket.socket]) -> tuple[socket.socket, socket.socket]:
    """The same pair, once the kernel has begun: it does so a while after it was asked."""
    client, server = pair
    ask_for_stamps(client)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        server.send(b"x")
        if read(client, 10, 0)[2]:
            return pair
    pytest.fail("no stamp in 10 s")


def test_a_late_reader_sees_when_the_bytes_came(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = stamping(pair)
    before = time.monotonic_ns()
    server.send(b"token")
    sent = time.monotonic_ns()
    time.sleep(0.1)
    data, arrived, by_kernel = read(client, 100, before)
    assert (data, by_kernel) == (b"token", True)
    # On loopback it has arrived when send returns; the two clocks are read one after the other, so a little is lost.
    assert before <= arrived < sent + 50_000_000


def test_of_two_packets_in_one_read_the_last_one_counts(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = stamping(pair)
    server.send(b"one")
    time.sleep(0.02)
    between = time.monotonic_ns()
    time.sleep(0.02)
    server.send(b"two")
    data, arrived, by_kernel = read(client, 100, 0)
    assert (data, by_kernel) == (b"onetwo", True)
    assert arrived > between  # never early


def test_a_stamp_that_cannot_be_is_not_used(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = stamping(pair)
    server.send(b"token")
    time.sleep(0.01)
    after = time.monotonic_ns()  # as if something had been read just now: the wall clock was set meanwhile
    data, arrived, by_kernel = read(client, 100, after)
    assert (data, by_kernel) == (b"token", False)
    assert arrived >= after


def test_unasked_the_reader_stamps(pair: tuple[socket.socket, socket.socket]) -> None:
    client, server = pair
    server.send(b"token")
    before = time.monotonic_ns()
    data, arrived, by_kernel = read(client, 100, 0)
    assert (data, by_kernel) == (b"token", False)
    assert arrived >= before
