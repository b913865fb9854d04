"""The control in a run: a second, pinned server whose runs take turns with the setup's (docs/control.md).

``gate.control`` says what it is worth; ``control_gate`` judges by it. Here it is run, never at the same time as the setup.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench import plan, stats
from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.measure import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.client import LlmClient
    from pytest_llmbench.records import Attempt, CellSpec
    from pytest_llmbench.watch import GuardWord, Watch

FOLDER = "control"
"""In the setup's folder: the control's own journal, raw records, logs, contract and report."""
FIGURES = ("decode_tok_s", "prefill_tok_s", "ttft_ms")
LEVEL_TURNS = 5
"""Turns that the control promises, and whose median is its own value of the session; all others are made beside them."""
BLOCK_TURNS = 3
"""Turns between two lifetimes of the setup's server, where the control is not resident."""
LOST_AFTER = 2
"""Turns in a row that broke off, with their retries, after which a control is given up."""


def turn_of(card: SetupCard) -> CellSpec:
    """The control's turn: the first cell of its plan that gives all of FIGURES in a run. Raises InputError."""
    for spec in plan.cells(card):
        part = PARTS[spec.part]
        if not part.cold and set(FIGURES) <= {kind.name for kind in part.kinds}:
            return spec
    raise InputError(
        "control",
        card.id,
        f"no cell of this card gives {', '.join(FIGURES)} in one request",
        'put "context" into its plan, with one small depth: {"parts": ["context"], "context": {"depths": [1536], "prompts": ["code"]}}',
    )


def promised(turn: CellSpec, turns: int, *, resident: bool) -> CellSpec:
    """The turn as it is promised for a session of so many turns; one warm-up a server, so that all turns are alike."""
    most = LEVEL_TURNS if resident else BLOCK_TURNS
    return replace(turn, runs=max(1, min(turns, most)), warmups=1)


class Turns(Protocol):
    """The control's run: makes turns on its own server, and keeps them."""

    async def turn(self, spec: CellSpec, run: int, again: int) -> Sequence[Attempt]:
        """Make one turn, with its retries. Raises LlmbenchError where no server can be started."""
        ...

    async def rest(self, reason: str) -> None:
        """Stop its server until the next turn."""
        ...


class Control:
    """Takes the control's turns; a control that is lost is said, and the session goes on without it.

    lost: why it was given up, None while it works. seconds: spent on it.
    """

    def __init__(self, run: Turns, spec: CellSpec, *, resident: bool, note: Callable[[str], None]) -> None:
        self._run, self.spec, self.resident, self._note = run, spec, resident, note
        self.lost: str | None = None
        self.seconds = 0.0
        self.turns = 0
        self._failed = 0
        self._block: dict[str, Any] = {"reason": "no block of the control was measured yet"}

    # ---- runner.Interleave ----

    async def __call__(self) -> dict[str, Any]:
        """One turn's figures, None for each that is not valid, with the reason; or what the last block gave."""
        return await self._turn() if self.resident else self._block

    # ---- servers.Neighbour ----

    async def before_start(self) -> None:
        """Where it may not be resident: a block of turns, and away before the setup's server comes."""
        if self.resident or self.lost is not None:
            return
        found = [await self._turn() for _ in range(BLOCK_TURNS)]
        await self._rest("the setup's server needs the room")
        if self.lost is not None:
            self._block = self._nothing()
            return
        known = {name: [one[name] for one in found if one.get(name) is not None] for name in FIGURES}
        self._block = {
            name: statistics.median(values) if 2 * len(values) > BLOCK_TURNS else None for name, values in known.items()
        }
        self._block["attempts"] = [one["attempt"] for one in found if one.get("attempt")]
        self._block["reason"] = next((one["reason"] for one in found if one.get("reason")), None)

    async def make_room(self) -> None:
        """Away, so that a memory test finds the memory free."""
        await self._rest("a server that tests the memory needs the room")

    # ---- one turn ----

    async def _turn(self) -> dict[str, Any]:
        if self.lost is not None:
            return self._nothing()
        began = time.monotonic()
        self.turns += 1
        try:
            attempts = await self._run.turn(self.spec, self.turns, int(self.turns > self.spec.runs))
        except LlmbenchError as exc:
            await self._lose(str(exc).partition("\n")[0])
            return self._nothing()
        finally:
            self.seconds += time.monotonic() - began
        last = attempts[-1]
        self._failed = self._failed + 1 if last.error is not None else 0
        if self._failed >= LOST_AFTER:
            await self._lose(f"{self._failed} turns in a row broke off: {str(last.error).partition(chr(10))[0]}")
        found = next((a for a in attempts if any(stats.first_valid([a], name) for name in FIGURES)), None)
        if found is None:
            return dict.fromkeys(FIGURES) | {"reason": _why_none(last)}
        values = {name: one.value if (one := stats.first_valid([found], name)) else None for name in FIGURES}
        missing = [name for name, value in values.items() if value is None]
        reason = f"no valid {', '.join(missing)}" if missing else None
        return values | {"attempt": found.request_ids[0], "reason": reason}

    def _nothing(self) -> dict[str, Any]:
        return dict.fromkeys(FIGURES) | {"reason": f"the control was lost: {self.lost}"}

    async def _lose(self, why: str) -> None:
        self.lost = why
        self._note(f"the control is lost, the session goes on without it: {why}")
        await self._rest("the control is lost")

    async def _rest(self, reason: str) -> None:
        began = time.monotonic()
        await self._run.rest(reason)
        self.seconds += time.monotonic() - began


def _why_none(last: Attempt) -> str:
    if last.error is not None:
        return f"the control's turn broke off: {last.error.partition(chr(10))[0]}"
    if last.guard == stats.DISTURBED:
        return f"the control's turn was disturbed: {last.details.get('guard', 'foreign load')}"
    return next((f"invalid: {f.reasons[0]}" for f in last.figures if f.reasons), "the control's turn gave no figure")


class SharedWatch:
    """The setup's watch, for the control's turns too: one helper, and the memory that it follows stays the setup's."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.facts = watch.facts

    def begin(self, label: str) -> None:
        self._watch.begin(f"control: {label}")

    def end(self) -> GuardWord:
        return self._watch.end()

    def set_server(self, pid: int | None) -> None:
        """Not followed."""

    def now(self) -> dict[str, Any]:
        return self._watch.now()

    def quiet(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        """Closed by its owner."""


class Quiet:
    """A Progress that shows what the control does in passing, and leaves lasting lines to the setup."""

    def __init__(self, phase: Callable[[str], None]) -> None:
        self._phase = phase

    def phase(self, text: str) -> None:
        self._phase(f"control: {text}")

    def note(self, text: str) -> None:
        """The setup's own progress says what stays."""

    def run_started(self, spec: CellSpec, run: int, attempt: int, reason: str, client: LlmClient) -> None:  # noqa: ARG002 - a Progress
        self._phase(f"the control's turn {run}" if run else "the control's warm-up")

    def run_finished(self, spec: CellSpec, attempt: Attempt) -> None:
        """Nothing stays of a turn on the screen."""
