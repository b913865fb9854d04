"""What a failure's message says beside its numbers: what differs from the baseline's sessions, and what of it explains the change."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from pytest_llmbench import verdict
from pytest_llmbench.control_gate import machine_words
from pytest_llmbench.gate import facts
from pytest_llmbench.gate.attribution import ALSO, EXPLAINS, attribute
from pytest_llmbench.history import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_llmbench.history.file import BaselineFile
    from pytest_llmbench.history.store import Store
    from pytest_llmbench.records import Baseline, CellResult, Verdict

T = TypeVar("T")
_MOVED = frozenset({"regressed", "improved", "inconclusive", "machine changed"})


class Told(Protocol):
    """Asks the history, and gives the second value where that fails."""

    def __call__(self, ask: Callable[[], T], otherwise: T) -> T: ...


class Explanation:
    """Explains the verdicts of one run by its history.

    store, file: what it is judged by; neither: nothing is compared. identity, environment: of this run. told asks them.
    """

    def __init__(
        self,
        told: Told,
        baselines: Mapping[tuple[str, str], Baseline],
        *,
        store: Store | None = None,
        file: BaselineFile | None = None,
        identity: Mapping[str, Any] | None = None,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self._told, self._baselines, self._store, self._source = told, baselines, store, file or store
        self._identity, self._environment = identity, environment or {}

    def broken_down(self, judged: Sequence[Verdict], seen: Callable[[], Mapping[str, Any]]) -> tuple[Verdict, ...]:
        """The verdicts, with what explains those that regressed. seen: the cell as a report document has it."""
        if not any(self._is_explained(one) for one in judged) or self._store is None or self._identity is None:
            return tuple(judged)
        document, found = seen(), []
        for one in judged:
            lines: tuple[str, ...] = ()
            if self._is_explained(one) and one.reference and one.value:
                sessions = self._baselines[one.cell, one.figure].sessions
                key, machine = keys.cell_key(self._identity, one.cell), keys.machine_key(self._identity)
                before = self._told(partial(_typical, self._store, key, machine, sessions), None)
                if before:
                    after = facts.of_cell(document, one.cell)
                    lines = attribute(one.figure, one.reference, one.value, before, after).lines
            found.append(replace(one, lines=(*one.lines, *lines)))
        return tuple(found)

    def _is_explained(self, one: Verdict) -> bool:
        """Whether it fell below its baseline: what missed a limit alone has no before."""
        return one.kind == "regressed" and one.interval is not None and (one.cell, one.figure) in self._baselines

    def facts(self, result: CellResult, verdicts: Sequence[Verdict]) -> list[str]:
        """What a failure's message says beside the numbers: the machine, and what changed since the baseline."""
        if any(one.kind == "no baseline" and one.failed for one in verdicts):
            return list(self._why_no_baseline())
        moved = [one for one in verdicts if one.kind in _MOVED and one.interval]
        if not moved:
            return []
        lines = [machine] if (machine := verdict.machine_line(result)) else []
        if words := machine_words(moved[0].control):
            watched = [line.removeprefix("machine: ") for line in lines]
            lines = [f"machine: {', '.join([words, *watched])}"]
        source = self._source
        if source is not None and self._identity is not None:
            identity, figure = self._identity, moved[0].figure
            unknown: tuple[str, ...] = ("not known",)
            changed = self._told(
                lambda: source.changed_since(identity, result.spec.id, figure, self._environment), unknown
            )
            lines += _changed(changed, [line for one in moved for line in one.lines])
        return lines

    def _why_no_baseline(self) -> tuple[str, ...]:
        source, identity = self._source, self._identity
        if identity is None or source is None or self._baselines:
            return ()
        nothing: tuple[str, ...] = ()
        return self._told(lambda: source.other_machines(identity), nothing)


def _changed(changed: Sequence[str], said: Sequence[str]) -> list[str]:
    """What changed since the baseline, without what the figures' own lines say already."""
    other = [one for line in said if line.startswith(ALSO) for one in line.removeprefix(ALSO).split("; ")]
    new = [line for line in changed if not any(_same(line, one) for one in other)]
    if new:
        return [f"{ALSO}{'; '.join(new)}"]
    if other or any(EXPLAINS in line for line in said):
        return []
    return [f"{ALSO}nothing that is recorded"]


def _same(changed: str, also: str) -> bool:
    """Whether two lines name one thing and what it is now: what it was may be said of one session, or of several."""
    if also.startswith("engine: "):  # the same version, another binary
        return changed.startswith(("engine program ", "engine libraries "))
    return (
        changed.split(maxsplit=1)[0] == also.split(maxsplit=1)[0]
        and changed.rpartition(" -> ")[2] == also.rpartition(" -> ")[2]
    )


def _typical(store: Store, key: str, machine: str, sessions: Sequence[str]) -> Any:
    return facts.typical(store.facts_of(key, machine, sessions))
