"""What the control says of a run's figures: whether it runs at all, what it is worth, and the verdicts with it.

The mathematics is ``gate.control`` and ``gate.combined``; here are the sessions, and the order of what is asked.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from pytest_llmbench import canonical, stats
from pytest_llmbench.gate import combined, control
from pytest_llmbench.gate.messages import percent
from pytest_llmbench.gate.rule import WITH_CONTROL, decide
from pytest_llmbench.gate.spread import LEAST_FIGURES
from pytest_llmbench.history import keys
from pytest_llmbench.records import ControlSeen

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pytest_llmbench.figure_kinds import FigureKind
    from pytest_llmbench.gate.control import ControlFit
    from pytest_llmbench.gate.decision import Decision
    from pytest_llmbench.gate.lines import Rule
    from pytest_llmbench.gate.machine import Machine
    from pytest_llmbench.history.store import Store
    from pytest_llmbench.records import Baseline, CellResult

BESIDE: Mapping[str, str] = {
    "decode_tok_s": "decode_tok_s",
    "total_tok_s": "decode_tok_s",
    "request_tok_s": "decode_tok_s",
    "prefill_tok_s": "prefill_tok_s",
    "ttft_ms": "ttft_ms",
}
"""Which figure of the control stands beside which of a setup; of others it knows nothing."""
WINDOW = 200
"""Sessions that are looked at for pairs."""
RETRY_EVERY = 20
"""A control that does not pay is tried once more in every such session."""
GROUP = 3
"""Turns of the control that stand for one value of its own level."""
UNCHANGED = {
    "ok": "unchanged",
    "noisy": "too noisy to say",
    "regressed": "slower",
    "improved": "faster",
    "measure again": "perhaps changed",
    "inconclusive": "perhaps changed",
}

Role = Literal["judges", "trial", "rests"]


@dataclass(frozen=True, slots=True)
class Level:
    """The control's own level in this session. figures: what the rule says of each; fell, rose: whether one of them moved."""

    figures: Mapping[str, Decision]

    @property
    def final(self) -> combined.Final | None:
        """The session's own verdict on the machine, once; None where the control says nothing of it."""
        finals = [combined.of_control(_kind(one)) for one in self.figures.values()]
        moved = [one for one in finals if one.kind == "machine changed"]
        return next((one for one in moved if one.failed), moved[0] if moved else None)


def _kind(decision: Decision) -> combined.Kind:
    return next(kind for kind in combined.KINDS if kind == decision.kind)


def _shown(judged: combined.Judged[Decision], fit: ControlFit, seen: ControlSeen) -> Decision:
    """One decision with the final kind: the numbers of the one that decided, and what was measured as it was."""
    final, raw, adjusted, level = judged.final, judged.raw, judged.adjusted, judged.control
    assert level is not None
    deciding = raw if adjusted is None or final.kind != adjusted.kind else adjusted
    used = deciding is adjusted
    said = final.why
    if used and deciding.side is not None and raw.change is not None:
        without = f"without the machine; as it was measured: {percent(raw.change, sign=True)}"
        said = f"{said}; {without}" if said else without
    return replace(
        deciding,
        kind=final.kind,
        value=raw.value,
        again=raw.again,
        fails=final.failed,
        control=replace(
            seen,
            used=used,
            why=fit.why,
            change=level.change,
            word=level.kind,
            resolves_without=raw.resolves,
            said=said,
        ),
    )


class ControlGate:
    """The control of one run, as its history knows it.

    key: which control on which build (``key_of``); figures: the judged ones of each cell. role: it judges, is on trial, or
    rests; why: in words.
    """

    def __init__(
        self,
        store: Store,
        identity: Mapping[str, Any],
        baselines: Mapping[tuple[str, str], Baseline],
        figures: Mapping[str, Sequence[FigureKind]],
        *,
        key: str,
        same: bool,
        terms: control.Terms | None = None,
    ) -> None:
        self.key, self.same, self._terms = key, same, terms or control.Terms()
        self._baselines = baselines
        self.fits: dict[tuple[str, str], ControlFit] = {}
        self._pairs: dict[tuple[str, str], list[control.Pair]] = {}
        self._asked = [(cell, kind) for cell, kinds in figures.items() for kind in kinds if kind.name in BESIDE]
        self._without = 0
        self._read(store, identity)
        self.role, self.why = self._role()

    def _read(self, store: Store, identity: Mapping[str, Any]) -> None:
        machine = keys.machine_key(identity)
        rested = []
        for cell, kind in self._asked:
            baseline = self._baselines.get((cell, kind.name))
            found = store.outcomes(keys.cell_key(identity, cell), machine, kind.name, WINDOW)
            since = baseline.since if baseline is not None else ""
            # A baseline that was complete long ago is older than the latest sessions.
            first = store.first_with_control(
                keys.cell_key(identity, cell), machine, kind.name, self.key, since=since, limit=self._terms.most
            )
            latest = {one.session for one in found}
            found = (*(one for one in first if one.session not in latest), *found)
            usable = [one for one in found if one.usable and one.started >= since and one.value and one.value > 0]
            rested.append(next((n for n, one in enumerate(reversed(usable)) if one.control), len(usable)))
            # A session in which the figure itself moved says nothing of the machine.
            pairs = [
                control.Pair(one.value, one.control, one.session)
                for one in usable
                if one.value and one.control and one.control_key == self.key
                if one.verdict not in {"regressed", "improved"}
            ]
            if pairs:
                self._pairs[cell, kind.name] = pairs
                self.fits[cell, kind.name] = control.fit(pairs, kind.direction, same=self.same, terms=self._terms)
        self._without = min(rested, default=0)

    @property
    def least(self) -> int:
        """Sessions with both that a trial takes."""
        return self._terms.least_same if self.same else self._terms.least_other

    def _role(self) -> tuple[Role, str]:
        if not self._asked:
            return "rests", "no control: no figure of this session has one of the control's beside it"
        known = [fit for fit in self.fits.values() if fit.sessions >= self.least]
        paying = [fit for fit in known if fit.pays]
        if paying:
            return "judges", f"control: it pays for {len(paying)} of {len(self._asked)} figures"
        young = [fit.sessions for fit in self.fits.values() if fit.sessions < self.least]
        if young or not known:
            seen = max(young, default=0)
            return "trial", f"control on trial: {seen} of {self.least} sessions with it; it changes no verdict yet"
        best = min(known, key=lambda fit: (fit.residual_sd or 1.0) / (fit.raw_sd or 1.0))
        if self._without + 1 >= RETRY_EVERY:
            return "trial", f"{best.why}; tried once more"
        left = RETRY_EVERY - self._without - 1
        return "rests", f"{best.why}; it rests for {left} more session{'' if left == 1 else 's'}"

    # ---- a figure ----

    def seen(self, result: CellResult, figure: str) -> ControlSeen | None:
        """What the control gave beside a figure, before anything is judged; None where it has no figure for it."""
        other = BESIDE.get(figure)
        if other is None or result.spec.part == "long_answer":
            return None
        median = stats.control_median(result.attempts, figure, other)
        again = stats.control_again(result.attempts, figure, other)
        fit = self.fits.get((result.spec.id, figure))
        one = ControlSeen(other, median, self.key, tuple(value for value in again if value is not None))
        if fit is None:
            return replace(one, why=f"no control: 0 sessions with it, {self.least} are needed to judge it")
        return replace(one, why=fit.why, beta=fit.beta, raw=fit.raw_sd, residual=fit.residual_sd, sessions=fit.sessions)

    def decide(
        self,
        result: CellResult,
        figure: str,
        value: float,
        raw: Decision,
        rule: Rule,
        left: int,
        machine: Machine | None,
    ) -> Decision:
        """The decision with the control in it; ``raw`` with the reason where the control says nothing."""
        seen = self.seen(result, figure)
        if seen is None:
            return raw
        fit = self.fits.get((result.spec.id, figure))
        known = self._baselines.get((result.spec.id, figure))
        again = stats.control_again(result.attempts, figure, seen.figure)
        if fit is None or known is None or fit.sessions < self.least:  # on trial: it changes nothing
            return replace(raw, control=seen)
        pairs = [control.Pair(a, c) for a, c in zip(raw.again, again, strict=True) if c is not None]
        if seen.median is None or len(pairs) < len(raw.again):
            why = "no control: it has no number beside this figure today"
            return replace(raw, control=replace(seen, why=why))
        mine = self._with_control(result.spec.id, figure, known, rule)
        both = self._pairs[result.spec.id, figure]
        of = {one.session: one.control for one in both}
        level = replace(mine, values=tuple(of[session] for session in mine.sessions), sigma0=None)
        without = control.baseline_without_machine(mine, fit, self._sigma0(figure), both) if fit.pays else None
        if without is not None and len(without.values) < rule.least_sessions:
            without = None
        floors = replace(
            rule,
            suspect_floor=WITH_CONTROL.suspect_floor,
            clear_floor=WITH_CONTROL.clear_floor,
            regressed_floor=WITH_CONTROL.regressed_floor,
        )

        def one(value: float, again: Sequence[float], baseline: Baseline | None) -> Decision:
            if without is not None and baseline is without:
                return decide(value, again, baseline, raw.direction, floors, left)
            return decide(value, again, baseline, raw.direction, rule, left, machine=machine)

        judged: combined.Judged[Decision] = combined.judge(
            control.Pair(value, seen.median), pairs, fit, known, without, level, one
        )
        return _shown(judged, fit, seen)

    def _with_control(self, cell: str, figure: str, baseline: Baseline, rule: Rule) -> Baseline:
        """The baseline's sessions that have a control; where it is older than the control, the first sessions with both."""
        of = [one.session for one in self._pairs[cell, figure]]
        kept = tuple(session for session in baseline.sessions if session in of)
        if len(kept) < rule.least_sessions:
            kept = tuple(of[: rule.full_sessions])
        return replace(baseline, sessions=kept, values=tuple(1.0 for _ in kept))

    def _sigma0(self, figure: str) -> float | None:
        """The typical residual of figures of this name; None under three of them."""
        known = [fit.residual_sd for (_, name), fit in self.fits.items() if name == figure and fit.residual_sd]
        return statistics.median(known) if len(known) >= LEAST_FIGURES else None

    # ---- the control itself ----

    def level(self, turns: CellResult, baselines: Mapping[tuple[str, str], Baseline], rule: Rule) -> Level:
        """Judge the control's own session by its own baselines, by the same rule.

        A fresh server does not refresh a machine; so what stands for the fresh starts of a suspect is its later turns, in
        groups of ``GROUP``, which are spread over the session. A short session leaves a suspect inconclusive.
        """
        found: dict[str, Decision] = {}
        for summary in turns.summaries:
            baseline = baselines.get((turns.spec.id, summary.name))
            if summary.median is None or summary.name not in BESIDE:
                continue
            later = [seen for a in turns.attempts if a.again and (seen := stats.first_valid([a], summary.name))]
            values = [seen.value for seen in later if seen.value is not None]
            groups = [statistics.median(values[n : n + GROUP]) for n in range(0, len(values) - GROUP + 1, GROUP)]
            again = groups[-rule.early_remeasures :]
            found[summary.name] = decide(summary.median, again, baseline, summary.direction, rule, 0)
        return Level(found)


def key_of(identity: Mapping[str, Any], engine: Mapping[str, Any]) -> str:
    """Which control it is: its card with the turn, and its engine's build; figures beside another one are no pairs."""
    build = {name: engine.get(name) for name in ("kind", "version", "sha256", "libraries_sha256")}
    return canonical.sha256({"card": identity["card"], "engine": build})


def is_same(setup: Mapping[str, Any], control_: Mapping[str, Any]) -> bool:
    """Whether a control is the setup's own model on the same kind of engine: what the machine does, it does to both alike.

    The builds may differ: a new build is what is tested.
    """
    return all(setup["card"].get(name) == control_["card"].get(name) for name in ("model", "engine_kind"))


def machine_words(seen: ControlSeen | None) -> str:
    """``control unchanged (+0.2 %)``; empty where it says nothing."""
    if seen is None or seen.word not in UNCHANGED or seen.change is None:
        return ""
    return f"control {UNCHANGED[seen.word]} ({percent(seen.change, sign=True)})"
