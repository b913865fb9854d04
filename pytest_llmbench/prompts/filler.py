"""A service log that never was: as long as needed, the same everywhere, no two lines alike."""

from __future__ import annotations

from hashlib import sha256
from math import gcd
from typing import TYPE_CHECKING

from pytest_llmbench.prompts.nonces import _words

if TYPE_CHECKING:
    from collections.abc import Iterator

_MASK = (1 << 64) - 1
_LEVELS = ("INFO", "INFO", "INFO", "INFO", "DEBUG", "DEBUG", "WARN", "ERROR")
_SERVICES = (
    "gateway",
    "billing",
    "search",
    "mailer",
    "storage",
    "login",
    "report",
    "router",
    "cache",
    "worker",
    "planner",
    "import",
    "export",
    "queue",
    "metrics",
    "backup",
)
# {a} {b} {c}: words; {n}: 0-999; {m}: 10-99. Similar lengths on purpose: the tokens per line vary little.
_MESSAGES = (
    "{a} {b} request took {n} ms, {m} rows of {c} sent to node {k}",
    "cannot open {a} {b} on node {k}: {c} timeout after {n} ms, retry {m}",
    "user {a} {b} changed {c} from {n} to {m} in group {k}",
    "{a} queue holds {n} jobs, oldest is {b} {c} since {m} s, shard {k}",
    "loaded {n} entries of {a} {b} into {c} table {k} in {m} ms",
    "session {a} {b} closed by {c} after {n} calls and {m} errors, zone {k}",
    "disk {k} of {a} {b} at {m} percent, moved {n} files to {c}",
    "plan {a} {b} step {k} finished: {n} items checked, {m} sent to {c}",
)


def _mix(value: int) -> int:
    """64 well-mixed bits of a counter (the finaliser of SplitMix64, Steele et al. 2014)."""
    value = (value * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _body(index: int) -> str:
    """The log line number ``index`` without its time."""
    bits = _mix(index)
    words = _words()
    message = _MESSAGES[bits & 7].format(
        a=words[bits >> 3 & 511],
        b=words[bits >> 12 & 511],
        c=words[bits >> 21 & 511],
        n=(bits >> 30 & 1023) % 1000,
        m=10 + (bits >> 40 & 127) % 90,
        k=(bits >> 47 & 15) % 10,
    )
    return f"{_LEVELS[bits >> 51 & 7]} {_SERVICES[bits >> 54 & 15]} {message}"


def _times() -> Iterator[str]:
    """Rising times of day, one a line, all of one length."""
    ms = 0
    for index in range(1 << 62):
        ms += 120 + _mix(index ^ _MASK) % 1900
        seconds, rest = divmod(ms, 1000)
        yield f"{seconds // 3600 % 24:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{rest:03d}"


def filler_log(lines: int, order: str = "") -> str:
    """``lines`` log lines, each with its line end; about 36 tokens a line, so 1M tokens are about 28,000 lines.

    The same messages make up every log of one length, in a sequence that follows from ``order`` (a nonce): the token
    count stays almost the same, while two prompts share no run of text longer than a message. So a server that reuses
    cached chunks from the middle of a prompt finds none. Pure; nothing is random at run time.
    """
    if lines <= 0:
        return ""
    seed = int.from_bytes(sha256(order.encode("utf-8")).digest()[:8], "big") if order else 0
    # Walking in a stride that is coprime to the length visits every message once.
    stride = 1 + (seed >> 32) % lines
    while gcd(stride, lines) != 1:
        stride += 1
    first = seed % lines
    rows = zip(range(lines), _times(), strict=False)
    return "".join(f"{time} {_body((first + row * stride) % lines)}\n" for row, time in rows)
