"""Slots that queue: a request without a slot gets no byte at all."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.paced.run import Run

# The real server's --slot-prompt-similarity default.
SIMILARITY = 0.1


@dataclass(slots=True)
class Slot:
    """One slot. held: the prompt that its cache still holds; last_used_ns: for least recently used."""

    id: int
    run: Run | None = None
    held: tuple[int, ...] = ()
    last_used_ns: int = -1
    last: Run | None = None


@dataclass(slots=True)
class Slots:
    """All slots and the queue before them, first come first served."""

    slots: list[Slot]
    waiting: deque[Run] = field(default_factory=deque)

    def place(self, run: Run) -> None:
        """Start the request now, or let it wait."""
        free = [slot for slot in self.slots if slot.run is None]
        if self.waiting or not free:
            self.waiting.append(run)
            return
        self._launch(run, free, run.record.t_received_ns)

    def release(self, run: Run, at_ns: int) -> None:
        """The request has ended at ``at_ns``; the next in the queue starts at that very time, not when we noticed."""
        if run in self.waiting:
            self.waiting.remove(run)
            return
        for slot in self.slots:
            if slot.run is run:
                slot.run, slot.last, slot.last_used_ns = None, run, at_ns
                if run.schedule is not None:
                    slot.held = run.ask.prompt_ids
        free = [slot for slot in self.slots if slot.run is None]
        if self.waiting and free:
            following = self.waiting.popleft()
            self._launch(following, free, max(at_ns, following.record.t_received_ns))

    def running(self) -> list[Run]:
        return [slot.run for slot in self.slots if slot.run is not None]

    def _launch(self, run: Run, free: list[Slot], at_ns: int) -> None:
        ids = run.ask.prompt_ids
        # Comparing with what is held is only worth its time where the request may use it.
        use_cache = run.pace.prompt_cache and run.ask.cache_prompt
        shared = {slot.id: common_prefix(slot.held, ids) if use_cache else 0 for slot in free}
        best = max(free, key=lambda slot: shared[slot.id])
        if shared[best.id] <= SIMILARITY * len(ids):
            best = min(free, key=lambda slot: slot.last_used_ns)
        # At least one token is always processed: its logits give the first answer token.
        cached = min(shared[best.id], max(0, len(ids) - 1))
        if run.pace.cache_n is not None:
            cached = min(run.pace.cache_n, len(ids))
        best.run = run
        run.start(best.id, at_ns, cached)


def common_prefix(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """The length of the common prefix, by halving (comparing slices is fast, a loop over 100,000 ids is not)."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
