"""How much memory a server start took, read from the telemetry: GPU memory where a GPU is watched, else the server's RSS."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench.journal import read_lines
from pytest_llmbench.watch.session import TELEMETRY

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_llmbench.watch import Watch

SETTLE_S = 30.0
SLACK_BYTES = 64 * 2**20
"""A driver's own bookkeeping comes and goes; a model does not fit into it."""


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The most memory in use since the start. mib is None where it is not known, and reason says why; never 0.

    source: whose memory, and how it was read ("GPU-…: NVML, device in use", "server RSS").
    """

    mib: float | None
    source: str | None = None
    reason: str | None = None


class MemoryWatch(Protocol):
    """Asked around every server start of a part that starts its own."""

    async def settle(self) -> str | None:
        """Wait until the device is back to its idle memory; what is still in use after the wait, or None."""
        ...

    def peak(self, start: int) -> PeakMemory:
        """The peak since the server start of this number."""
        ...


class WatchedMemory:
    """A MemoryWatch out of a watch's samples. Idle is what the GPUs held when this was made."""

    def __init__(self, watch: Watch, folder: Path) -> None:
        self._watch, self._telemetry = watch, folder / TELEMETRY
        self._idle = _gpu_bytes(watch.now())
        self._since_ns = time.monotonic_ns()

    async def settle(self) -> str | None:
        """Wait until the GPUs are back at their idle memory, 30 s at most; what is still in use then, or None."""
        deadline = time.monotonic() + SETTLE_S
        while True:
            used = _gpu_bytes(self._watch.now())
            self._since_ns = time.monotonic_ns()
            if used is None or self._idle is None or used <= self._idle + SLACK_BYTES:
                return None
            if time.monotonic() > deadline:
                return f"{used / 2**20:.0f} MiB of GPU memory are in use before the start, {self._idle / 2**20:.0f} when the session began"
            await asyncio.sleep(0.2)

    def peak(self, start: int) -> PeakMemory:  # noqa: ARG002 - the last start is the one since ``settle``
        """The most memory in use since the last ``settle``."""
        if not self._watch.facts.get("watched"):
            return PeakMemory(None, reason=f"the memory was not watched: {self._watch.facts.get('reason')}")
        self._watch.now()  # so that the last moments are in the telemetry too
        samples = [one for one in read_lines(self._telemetry) if one.get("t_ns", 0) >= self._since_ns]
        on_gpus = [found for one in samples if (found := _gpu_bytes(one)) is not None]
        if on_gpus:
            return PeakMemory(max(on_gpus) / 2**20, source="NVML: memory in use on the watched GPUs")
        rss = [one["server_rss_bytes"] for one in samples if one.get("server_rss_bytes") is not None]
        if rss:
            return PeakMemory(max(rss) / 2**20, source="RSS of the server's process tree, mapped model file included")
        return PeakMemory(None, reason="no sample of the watch holds a memory figure")


def _gpu_bytes(sample: dict[str, Any]) -> int | None:
    """Memory in use on all watched GPUs; None where there is none, or one does not say."""
    used = [gpu.get("memory_used_bytes") for gpu in sample.get("gpus") or ()]
    return None if not used or None in used else sum(filter(None, used))
