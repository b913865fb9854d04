"""A free port that stays ours until the server has it, and who listens on a port."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


@contextmanager
def reserved_port() -> Iterator[int]:
    """A free port of the loopback interface, held while the context is open.

    The holder is bound but does not listen, and lets a reusing socket share the port: llama-server sets SO_REUSEADDR or
    SO_REUSEPORT (by build) and can bind it, while the kernel gives it to nobody who asks for any free port, and a plain
    bind is refused. Where a system does not work this way the server's bind fails and another port is tried.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((LOOPBACK, 0))
        yield holder.getsockname()[1]


def listener_in_tree(root: int, port: int) -> int | None:
    """The pid that listens on the port among a process and its descendants; None where none of them does.

    Raises psutil.AccessDenied where the system does not let us look.
    """
    try:
        leader = psutil.Process(root)
        tree = [leader, *leader.children(recursive=True)]
    except psutil.NoSuchProcess:
        return None
    for process in tree:
        try:
            connections = process.net_connections("tcp")
        except psutil.NoSuchProcess:
            continue
        if any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections):
            return process.pid
    return None


def listener_anywhere(port: int) -> str:
    """Who listens on the port, for a message: ``pid 123 (name)``, or ``an unknown process`` where we may not see it."""
    try:
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:
                return f"pid {one.pid} ({psutil.Process(one.pid).name()})"
    except psutil.Error:
        return "an unknown process"
    return "an unknown process"
