"""The gate of one run: what its figures are compared with, what must be measured again, and what is remembered."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_llmbench import stats, verdict
from pytest_llmbench.control_gate import ControlGate
from pytest_llmbench.errors import InputError, LlmbenchError, counted
from pytest_llmbench.explaining import Explanation
from pytest_llmbench.gate.rule import RULE, decide
from pytest_llmbench.history import canaries, keys
from pytest_llmbench.marks import effect as effects
from pytest_llmbench.marks import file as marks_file
from pytest_llmbench.marks import propose
from pytest_llmbench.marks.evidence import FigureHistory
from pytest_llmbench.outcomes import JudgedCell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.control_gate import Level
    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.gate.decision import Decision
    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.history.file import BaselineFile
    from pytest_llmbench.history.store import Store
    from pytest_llmbench.marks.effect import Effect
    from pytest_llmbench.marks.file import Marks
    from pytest_llmbench.marks.propose import Proposal
    from pytest_llmbench.records import Baseline, CellResult, ControlSeen, Verdict
    from pytest_llmbench.wishes import Gating

T = TypeVar("T")

# As many sessions as tell how far the machine moves; more would ask about another season.
MACHINE_SESSIONS = 30
# Enough for ten usable sessions among disturbed ones.
OUTCOMES = 50


class Gate:
    """Judges the cells of one run by earlier sessions, and remembers the run when it is over.

    storage: the folder of the runs. Opened once the identity of card and machine is known; before that, and for a probe, it
    judges by thresholds alone. troubles: what the history could not tell once something was measured, in words. not_counted:
    once remembered, why the session is in no baseline.
    """

    def __init__(self, gating: Gating, storage: Path, card_id: str, *, canary: bool = False) -> None:
        self._gating, self._storage, self._card_id, self._canary = gating, storage, card_id, canary
        self._store: Store | None = None
        self._file: BaselineFile | None = None
        self._machine: Machine | None = None
        self._identity: Mapping[str, Any] | None = None
        self._rule = RULE
        # A mark would excuse what a canary is to be caught by.
        given = gating.marks if not canary else None
        self._marks: Marks = marks_file.read(given) if given is not None else marks_file.Marks()
        self.baselines: dict[tuple[str, str], Baseline] = {}
        self._after: dict[tuple[str, str], Baseline] | None = None
        self.explanation = Explanation(self._told, self.baselines)
        self.effects: dict[str, Effect] = {}
        self.troubles: list[str] = []
        self.not_counted: str | None = None
        self.control: ControlGate | None = None
        self.accepted: list[str] = []
        self.no_control: str | None = None
        self._level: dict[tuple[str, str], Baseline] = {}

    @property
    def most_again(self) -> int:
        """Fresh servers that one suspect cell may cost."""
        return RULE.early_remeasures if self._gating.remeasure is None else self._gating.remeasure

    @property
    def machine_key(self) -> str | None:
        return keys.machine_key(self._identity) if self._identity is not None else None

    @property
    def machine_name(self) -> str | None:
        return keys.machine_label(self._identity["machine"]) if self._identity is not None else None

    def open(self, identity: Mapping[str, Any], environment: Mapping[str, Any], figures: int) -> None:
        """Read what the figures of this identity are compared with. Raises InputError where it cannot be read.

        figures: how many this session judges; they share the budget of false alarms.
        """
        from pytest_llmbench.history.file import BaselineFile  # noqa: PLC0415
        from pytest_llmbench.history.store import Store  # noqa: PLC0415 - a database package behind it

        self._identity = identity
        self._rule = replace(RULE, figures=max(1, figures))
        if self._gating.history is not None:
            self._store = Store.open(self._storage, self._gating.history)
            self._machine = self._store.machine_state(identity, MACHINE_SESSIONS)
        if self._gating.baseline_file is not None:
            self._file = BaselineFile.load(self._gating.baseline_file)
            self._file.refuse_other(identity, self._gating.baseline_file)
        source = self._file or self._store
        self.baselines = source.baselines_of(identity) if source is not None else {}
        self.explanation = Explanation(
            self._told,
            self.baselines,
            store=self._store,
            file=self._file,
            identity=identity,
            environment=environment,
        )
        if self._canary and not self._judges:
            most = max((len(one.values) for one in self.baselines.values()), default=0)
            raise InputError(
                "--llmbench-canary",
                None,
                f"no figure of {self._card_id} is judged here yet: its baselines have {counted(most, 'session')}, "
                f"{self._rule.least_sessions} are needed",
                "measure the card as it is first, sessions at least half an hour apart",
            )

    @property
    def _judges(self) -> bool:
        return any(len(one.values) >= self._rule.least_sessions for one in self.baselines.values())

    def last_canary(self) -> str | None:
        """When a planted slowdown was last caught here, in one line; None where nothing is judged yet, and in a canary itself."""
        if self._store is None or self._canary or not self._judges or self.machine_key is None:
            return None
        try:
            return canaries.line(self._store.canaries(self._card_id, self.machine_key))
        except LlmbenchError as exc:
            return f"canary: not known: {exc}".partition("\n")[0]

    def use_control(
        self,
        key: str,
        identity: Mapping[str, Any],
        figures: Mapping[str, Sequence[FigureKind]],
        *,
        same: bool,
    ) -> bool:
        """Read what the control is worth for these figures of each cell; whether it is to run in this session.

        identity: the control's own. Without a history there is nothing to judge it by.
        """
        if self._store is None or self._identity is None:
            self.no_control = "no control: it needs a history, by which it is judged"
            return False
        if self._file is not None:
            self.no_control = "no control: the baselines are those of a file, which holds no control"
            return False
        found = ControlGate(self._store, self._identity, self.baselines, figures, key=key, same=same)
        if found.role == "rests":
            self.no_control = found.why
            return False
        self.control, self._level = found, self._store.baselines_of(identity)
        return True

    def control_seen(self, result: CellResult) -> dict[str, ControlSeen]:
        """What the control gave beside each figure of a cell."""
        if self.control is None:
            return {}
        found = ((one.name, self.control.seen(result, one.name)) for one in result.summaries)
        return {name: seen for name, seen in found if seen is not None}

    def control_level(self, turns: CellResult) -> Level | None:
        """What the control's own level says of the machine; None while it is on trial."""
        if self.control is None or self.control.role != "judges":
            return None
        return self.control.level(turns, self._level, self._rule)

    def terms(self) -> dict[str, Any]:
        """For the contract: the rule, and what every figure is to be compared with, fixed before the first request."""
        return {
            "rule": asdict(self._rule),
            "most_fresh_servers": self.most_again,
            "require_baseline": self._gating.require_baseline,
            "strict": self._gating.strict,
            "accept": self._gating.accept,
            "machine": asdict(self._machine) if self._machine is not None else None,
            "control": None if self.control is None else {"role": self.control.role, "why": self.control.why},
            "baselines": {
                f"{cell} {figure}": asdict(baseline) for (cell, figure), baseline in sorted(self.baselines.items())
            },
        }

    # ---- a cell ----

    def decisions(self, result: CellResult, kinds: Sequence[FigureKind]) -> dict[str, Decision]:
        """The rule's word for each judged figure of a cell; none where nothing is remembered, or it starts anew."""
        if self._identity is None or (self._store is None and self._file is None) or self._gating.accept is not None:
            return {}
        gated = {kind.name for kind in kinds if kind.gated and kind.direction != "none"}
        made = max((attempt.again for attempt in result.attempts), default=0)
        return {
            summary.name: self._decide(result, summary.name, summary.median, summary.direction, made)
            for summary in result.summaries
            if summary.name in gated and summary.median is not None
        }

    def _decide(self, result: CellResult, figure: str, value: float, direction: Any, made: int) -> Decision:
        baseline = self.baselines.get((result.spec.id, figure))
        again = stats.again_medians(result.attempts, figure)
        left = max(0, self.most_again - made)
        found = self._with_control(result, figure, value, again, baseline, direction, left)
        if found.kind == "measure again" and found.side == "better" and not self._is_worth_it(found):
            return self._with_control(result, figure, value, again, baseline, direction, 0)
        return found

    def _with_control(
        self,
        result: CellResult,
        figure: str,
        value: float,
        again: Sequence[float],
        baseline: Baseline | None,
        direction: Any,
        left: int,
    ) -> Decision:
        raw = decide(value, again, baseline, direction, self._rule, left, machine=self._machine)
        if self.control is None:
            return raw
        return self.control.decide(result, figure, value, raw, self._rule, left, self._machine)

    def _is_worth_it(self, found: Decision) -> bool:
        """Whether good news is far enough off to start servers for: as far as a dip. Else it would cost minutes a session."""
        if found.again:
            return True
        assert found.reference is not None
        assert found.sigma is not None
        far = max(self._rule.dip_floor, self._rule.dip_sigmas * found.sigma * math.sqrt(1 + 1.1 / found.k))
        return abs(math.log(found.value / found.reference)) > far

    def suspects(self, result: CellResult, kinds: Sequence[FigureKind]) -> list[str]:
        """Figures that one more fresh server must decide, in words."""
        found = []
        for name, one in self.decisions(result, kinds).items():
            if one.kind == "measure again":
                assert one.reference is not None
                unit = result.summary(name).unit
                found.append(f"{name} {verdict.shown(one.value, unit)}, was {verdict.shown(one.reference, unit)}")
        return found

    def judge(
        self,
        result: CellResult,
        kinds: Sequence[FigureKind],
        thresholds: Mapping[str, verdict.Threshold],
        references: Mapping[str, verdict.Reference] | None,
        seen: Callable[[], Mapping[str, Any]] | None = None,
    ) -> tuple[Verdict, ...]:
        """The verdicts of a cell's figures.

        seen: the cell as a report document has it, for what explains a regression.
        """
        cell = result.spec.id
        judged = verdict.judge(
            result,
            kinds,
            thresholds,
            references,
            gate=verdict.Gated(
                decisions=self.decisions(result, kinds),
                baselines={figure: one for (of, figure), one in self.baselines.items() if of == cell},
                require=self._gating.require_baseline,
                strict=self._gating.strict,
                accept=self._gating.accept,
            ),
        )
        if seen is not None:
            judged = self.explanation.broken_down(judged, seen)
        self.effects[cell] = effects.effect(
            self._marks.marks,
            card=self._card_id,
            cell=cell,
            machine_key=self.machine_key or "",
            status=result.status,
            verdicts=judged,
            today=_today(),
        )
        return judged

    def _told(self, ask: Callable[[], T], otherwise: T) -> T:
        """What the history says, or something else where it cannot: nothing that was measured may be lost for it."""
        try:
            return ask()
        except LlmbenchError as exc:
            said = f"the history could not be read: {exc}"
            if said not in self.troubles:
                self.troubles.append(said)
            return otherwise

    # ---- the whole run ----

    def remember_control(self, document: Mapping[str, Any], folder: Path) -> list[str]:
        """Keep the control's own session: its level has a baseline like any figure; what could not be done, in words."""
        if self._store is None or self.control is None or self._canary:
            return []
        try:
            self._store.record(document, folder)
        except LlmbenchError as exc:
            return [f"the control is not remembered: {exc}"]
        return []

    def remember(self, document: Mapping[str, Any], folder: Path, *, interrupted: bool = False) -> list[str]:
        """Keep the run in the history, start new baselines where that was asked for; what could not be done, in words.

        interrupted: nothing is accepted, for the session that goes on with it is asked again. What was taken over from an earlier
        session is not accepted either: it enters no baseline, and the new one would stay without it.

        A history that fails takes nothing away: the documents are written, and it can be rebuilt from them.
        """
        if self._store is None or document["probe"]:
            return []
        said: list[str] = []
        try:
            if not self._store.record(document, folder) and self._canary:
                return ["this canary is not remembered: its cells were not all judged, so nothing is known"]
            if self._gating.accept is not None:
                said += self._accepted(document, interrupted=interrupted)
                cells = self.accepted
                if cells:
                    self._store.accept(self._card_id, cells, why=self._gating.accept, since=document["session"])
            if self._file is None and self._identity is not None:
                # This session counts: what is missing is said after it.
                self._after = self._store.baselines_of(self._identity)
                self.not_counted = self._store.not_counted(document) if not self._canary else None
        except LlmbenchError as exc:
            return [f"not remembered: {exc}"]
        return said

    def _accepted(self, document: Mapping[str, Any], *, interrupted: bool) -> list[str]:
        """Choose the cells that are accepted; what is not, in words."""
        if interrupted:
            return ["nothing was accepted: the session was interrupted"]
        own = [document["session"]]
        measured = [cell for cell in document["cells"] if cell["status"] == "measured"]
        self.accepted = [cell["id"] for cell in measured if list(cell["sessions"]) == own]
        others = [cell["id"] for cell in measured if cell["id"] not in self.accepted]
        remedy = f"llmbench baseline accept {self._card_id}"
        return [f"not accepted: {', '.join(others)}: measured by an earlier session ({remedy})"] if others else []

    def judged(
        self, results: Mapping[str, CellResult], verdicts: Mapping[str, Sequence[Verdict]], kinds: Any
    ) -> Iterator[JudgedCell]:
        """Every cell with all that was decided about it, and what its history proposes."""
        for cell, result in results.items():
            effect = self.effects.get(cell, effects.Effect())
            histories = self._histories(cell, kinds(result.spec.part))
            trouble = propose.machine_trouble(histories)
            yield JudgedCell(
                result=result,
                verdicts=tuple(verdicts.get(cell, ())),
                covered=effect.covered,
                mark_failures=effect.failures,
                notes=(*effect.notes, *([f"{cell}: {trouble}"] if trouble else ())),
                marks=effect.applied,
                proposals=self._proposals(cell, histories),
                baselines={
                    figure: one
                    for (of, figure), one in (self.baselines if self._after is None else self._after).items()
                    if of == cell
                },
            )

    def _histories(self, cell: str, kinds: Sequence[FigureKind]) -> list[FigureHistory]:
        store, identity = self._store, self._identity
        if store is None or identity is None or cell not in identity["card"]["cells"]:
            return []
        return self._told(lambda: _histories(store, identity, cell, kinds), [])

    def _proposals(self, cell: str, histories: Sequence[FigureHistory]) -> tuple[Proposal, ...]:
        marked = marks_file.marked(
            self._marks, card=self._card_id, cell=cell, machine_key=self.machine_key or "", today=_today()
        )
        return propose.propose(histories, marked)

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def _histories(
    store: Store, identity: Mapping[str, Any], cell: str, kinds: Sequence[FigureKind]
) -> list[FigureHistory]:
    key, machine = keys.cell_key(identity, cell), keys.machine_key(identity)
    accepted = {one.figure: one.accepted_when for one in store.baselines_by_key([key], machine)}
    return [
        FigureHistory(
            kind.name, kind.direction, store.outcomes(key, machine, kind.name, OUTCOMES), accepted.get(kind.name)
        )
        for kind in kinds
        if kind.gated and kind.direction != "none"
    ]


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()
