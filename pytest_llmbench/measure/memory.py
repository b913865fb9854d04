"""Who knows how much memory a server start took: the seam for the watch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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


class UnwatchedMemory:
    """Nobody looks, and the record says so."""

    async def settle(self) -> str | None:
        return None

    def peak(self, start: int) -> PeakMemory:  # noqa: ARG002 - the protocol's
        return PeakMemory(None, reason="the memory was not watched")
