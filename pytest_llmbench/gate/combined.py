"""Did the setup get slower, or the machine? One verdict out of the figure's, the control's, and the figure's without the machine. Pure.

Four decisions by the same rule (``rule.decide``) come together:

- **raw**: the figure against its baseline, as it was measured;
- **control**: the control's own figure against its own baseline: the machine's level;
- **adjusted**: the figure without the machine against the baseline without it, where the control pays (``ControlFit.pays``);
- **one to one**: the figure with the control's whole deviation taken out. It is asked only where the control fell further than
  history knows (the correction is capped there), or fell although it is not used for this figure: a slower machine slows
  both alike, so only what lies beyond that can be the setup's.

The cases, first match wins ("fell" = regressed, "rose" = improved):

| raw | adjusted | control | verdict |
|---|---|---|---|
| no baseline | any | any | no baseline |
| any | measure again | any | measure again (of adjusted; without a control that pays: of raw) |
| fell, or suspect | not fell | measure again | measure again: is it the machine? |
| any | fell | fell beyond its range, one to one not fell | machine changed |
| any | fell | anything else | regressed, whatever the control; with raw ok: the machine hid it |
| fell, no adjusted | - | fell, one to one not fell | machine changed |
| fell, no adjusted | - | anything else | regressed |
| fell, suspect or inconclusive | not fell | fell | machine changed |
| fell | not fell | not fell | inconclusive: neither instrument is sure, and nothing is divided away |
| rose | not rose | rose | machine changed, not failed: it got faster, and the reference is of a slower one |
| anything else | any | any | the verdict of adjusted (without it: of raw); a control that fell is said beside it |

A control that fell is moreover a verdict of its own, once a session: ``of_control``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.gate.control import ControlFit, Pair
    from pytest_llmbench.records import Baseline

Kind = Literal["no baseline", "noisy", "ok", "improved", "regressed", "inconclusive", "measure again"]
FinalKind = Literal[
    "no baseline", "noisy", "ok", "improved", "regressed", "inconclusive", "measure again", "machine changed"
]
KINDS: tuple[Kind, ...] = ("no baseline", "noisy", "ok", "improved", "regressed", "inconclusive", "measure again")


class HasKind(Protocol):
    """A decision of the rule; of it only the kind is read here."""

    @property
    def kind(self) -> str: ...


D = TypeVar("D", bound=HasKind)
D_co = TypeVar("D_co", bound=HasKind, covariant=True)


class Decide(Protocol[D_co]):
    """``rule.decide`` with direction, rule and the re-measures that are left filled in."""

    def __call__(self, value: float, again: Sequence[float], baseline: Baseline | None) -> D_co: ...


@dataclass(frozen=True, slots=True)
class Final:
    """kind: what the figure's verdict is. failed: it fails its test. why: in words, "" where there is nothing to say."""

    kind: FinalKind
    failed: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Judged(Generic[D]):
    """A final verdict with the decisions that it came from; None where it was not asked."""

    final: Final
    raw: D
    adjusted: D | None
    control: D | None
    one_to_one: D | None


def judge(
    session: Pair,
    again: Sequence[Pair],
    fit: ControlFit,
    figure: Baseline | None,
    without_machine: Baseline | None,
    control: Baseline | None,
    decide: Decide[D],
) -> Judged[D]:
    """Judge a session's figure with its control.

    session: the medians of figure and control; again: those on fresh servers. fit: what the control is worth. figure,
    without_machine, control: the baselines of the raw figure, of the adjusted one (``baseline_without_machine``) and of the
    control. For sessions without a control use ``decide`` alone.
    """
    raw = decide(session.value, [p.value for p in again], figure)
    level = decide(session.control, [p.control for p in again], control)
    adjusted = None
    if fit.pays and without_machine is not None:
        adjusted = decide(
            fit.adjust(session.value, session.control),
            [fit.adjust(p.value, p.control) for p in again],
            without_machine,
        )
    one_to_one = None
    capped = any(fit.beyond(p.control) for p in (session, *again))
    if level.kind == "regressed" and (adjusted is None or capped):
        one_to_one = decide(
            fit.one_to_one(session.value, session.control),
            [fit.one_to_one(p.value, p.control) for p in again],
            figure if adjusted is None else without_machine,
        )
    final = combine(
        _kind(raw),
        _kind(adjusted) if adjusted is not None else None,
        _kind(level),
        _kind(one_to_one) if one_to_one is not None else None,
    )
    return Judged(final, raw, adjusted, level, one_to_one)


def combine(raw: Kind, adjusted: Kind | None, control: Kind | None, one_to_one: Kind | None = None) -> Final:
    """The verdict of one figure, as the table at the head of this file has it.

    adjusted: None where no control pays; control: None where there is none; one_to_one: None where it was not asked.
    """
    deciding = raw if adjusted is None else adjusted
    fell = control == "regressed"
    if raw == "no baseline":
        return Final("no baseline", failed=False)
    if deciding == "measure again":
        return Final("measure again", failed=False)
    if (
        adjusted is not None
        and adjusted != "regressed"
        and control == "measure again"
        and raw in {"regressed", "measure again"}
    ):
        return Final("measure again", failed=False, why="the control is suspect too: is it the machine?")
    if deciding == "regressed":
        if fell and one_to_one not in {None, "regressed"}:
            if one_to_one == "measure again":
                return Final("measure again", failed=False, why="the control fell: is there more than that?")
            beyond = "further than history knows" if adjusted is not None else "too"
            return Final("machine changed", failed=True, why=f"the control fell {beyond}, and that may be all of it")
        return Final("regressed", failed=True, why=_beside(raw, adjusted, control))
    if fell and raw in {"regressed", "measure again", "inconclusive"}:
        return Final(
            "machine changed", failed=True, why="the control fell with it, and without the machine it is not worse"
        )
    if raw == "regressed":
        return Final(
            "inconclusive",
            failed=False,
            why="it fell by its own baseline and not by the one without the machine; the control's fall alone is not sure",
        )
    if raw == "improved" and control == "improved" and adjusted is not None and adjusted != "improved":
        return Final("machine changed", failed=False, why="the machine got faster, and the figure with it")
    return Final(deciding, failed=False, why="the control fell: the machine changed" if fell else "")


def of_control(control: Kind) -> Final:
    """The verdict of the control itself, once a session: a machine that changed is no excuse, it fails by its own name."""
    if control == "regressed":
        return Final("machine changed", failed=True, why="the control fell: the machine got slower")
    if control == "improved":
        return Final(
            "machine changed",
            failed=False,
            why="the control rose: the machine got faster; its reference is out of date",
        )
    return Final(control, failed=False)


def _kind(decision: HasKind) -> Kind:
    for kind in KINDS:
        if decision.kind == kind:
            return kind
    raise ValueError(f"{decision.kind!r} is no kind of the rule; one of {', '.join(KINDS)}")


def _beside(raw: Kind, adjusted: Kind | None, control: Kind | None) -> str:
    if control == "regressed":
        return "the control fell too, and that does not explain all of it"
    if adjusted is None or control is None:
        return ""
    if raw != "regressed":
        return "the machine hid it: only without the machine it shows"
    return "not the machine: the control did not fall"
