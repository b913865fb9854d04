"""What the call asks for: cards, and wishes out of settings. Heavy rooms load when used."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.marking import Marking
    from pytest_llmbench.options import Settings
    from pytest_llmbench.plan_changes import PlanChanges
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.resume import Continue
    from pytest_llmbench.slowdown import Slowdown
    from pytest_llmbench.wishes import Against, ControlWish, Gating


NO_CONTROL = "the old card, in turns with the new one, is what tells the machine from the setup"


@dataclass(frozen=True)
class LoadedCard:
    """A card with where it came from, the cells of its plan, and the control that runs beside it."""

    path: Path
    card: SetupCard
    cells: tuple[CellSpec, ...]
    control: ControlWish | None = None


@dataclass(frozen=True)
class LoadedAgainst:
    """The old card of a direct comparison. new: the new one with the cells that both have; only_new, only_old: the others.

    differs: what the two cards differ in, of what may differ. leaves_out_control: the new card names one.
    """

    new: LoadedCard
    old: SetupCard
    only_new: tuple[str, ...]
    only_old: tuple[str, ...]
    differs: tuple[str, ...]
    path: str
    leaves_out_control: bool

    @property
    def header(self) -> list[str]:
        """What a person must know before it starts."""
        lines = [f"against {self.old.id} ({self.path}); differs (old -> new): {'; '.join(self.differs) or 'nothing'}"]
        for which, cells in (("new", self.only_new), ("old", self.only_old)):
            if cells:
                lines.append(f"not measured, for only the {which} card has it: {', '.join(cells)}")
        if self.leaves_out_control:
            lines.append(f"the card's control takes no turns in this session: {NO_CONTROL}")
        return lines


def load_cards(settings: Settings) -> tuple[LoadedCard, ...]:
    """Read every card. Raises CardError, InputError."""
    from pytest_llmbench import plan  # noqa: PLC0415
    from pytest_llmbench.card import SetupCard  # noqa: PLC0415
    from pytest_llmbench.plan_changes import changed  # noqa: PLC0415

    wished = changes(settings)
    cards = [changed(SetupCard.load(path), wished) for path in settings.setups]
    loaded = [
        LoadedCard(path, card, plan.cells(card), _control(settings, path, card))
        for path, card in zip(settings.setups, cards, strict=True)
    ]
    ids = [card.id for card in cards]
    for one in loaded:
        if ids.count(one.card.id) > 1:
            if [other.path for other in loaded].count(one.path) > 1:
                raise InputError("--setup", str(one.path), "given twice", "name each card once")
            raise InputError(
                "--setup", str(one.path), f"two cards with the id {one.card.id!r}", "give each card its own id"
            )
    return tuple(loaded)


def load_against(settings: Settings, cards: Sequence[LoadedCard]) -> LoadedAgainst | None:
    """Read the old card, and leave of the new one the cells that both have. Raises CardError, InputError."""
    if settings.against is None:
        return None
    from pytest_llmbench.against import cards as against  # noqa: PLC0415
    from pytest_llmbench.card import SetupCard  # noqa: PLC0415
    from pytest_llmbench.plan_changes import changed  # noqa: PLC0415

    _refuse_with_against(settings)
    old = changed(SetupCard.load(settings.against), changes(settings))
    new = cards[0]
    both, only_new, only_old = against.common(new.card, old)
    return LoadedAgainst(
        replace(new, cells=both),
        old,
        only_new,
        only_old,
        against.differences(new.card, old),
        str(settings.against),
        leaves_out_control=new.card.control is not None and not settings.no_control,
    )


def _control(settings: Settings, path: Path, card: SetupCard) -> ControlWish | None:
    """The control that the flag or the card names. Raises CardError, InputError."""
    named = settings.control or (path.parent / card.control.card if card.control is not None else None)
    if named is None or settings.no_control or settings.probe or settings.against:
        return None
    from pytest_llmbench.card import SetupCard  # noqa: PLC0415
    from pytest_llmbench.wishes import ControlWish  # noqa: PLC0415

    control = SetupCard.load(named)
    if control.id == card.id:
        raise InputError("control", control.id, "is the setup's own id", "give the control's card its own id")
    return ControlWish(control, card.control.resident if card.control is not None else True)


def _refuse_with_against(settings: Settings) -> None:
    """Refuse what a direct comparison cannot do, or has no use for. Raises InputError."""
    flag, named = "--llmbench-against", str(settings.against)
    if len(settings.setups) > 1:
        raise InputError(flag, named, "goes with one --setup card: the new one", "compare one pair of cards at a time")
    if settings.model is not None:
        reason = "--llmbench-model does not say which of the two cards' files it replaces"
        raise InputError(flag, named, reason, "write the path into the cards")
    if settings.control is not None:
        reason = f"--llmbench-control has no use: {NO_CONTROL}"
        raise InputError(flag, named, reason, "leave out --llmbench-control")
    wishes = {
        "--llmbench-probe": settings.probe or None,
        "--llmbench-resume": settings.resume,
        "--llmbench-supplement": settings.supplement,
        "--llmbench-save": settings.save,
        "--llmbench-autosave": settings.autosave or None,
        "--llmbench-compare": settings.compare,
        "--llmbench-accept": settings.accept,
        "--llmbench-baseline": settings.baseline,
        "--llmbench-require-baseline": settings.require_baseline or None,
        "--llmbench-remeasure": settings.remeasure,
    }
    for other, value in wishes.items():
        if value is not None:
            raise InputError(
                flag, named, f"a direct comparison asks no earlier session: {other} has no use", f"leave out {other}"
            )


def marking(settings: Settings, cards: Sequence[LoadedCard]) -> Marking:
    """What the reviewed marks say of these cards' items. Raises MarksError."""
    from pytest_llmbench.marking import Marking  # noqa: PLC0415

    return Marking(settings.marks, {loaded.card.id: loaded.cells for loaded in cards})


def marker_names() -> Mapping[str, str]:
    """The markers of accepted marks, and what they mean; known once a card is read."""
    from pytest_llmbench.marking import MARKERS  # noqa: PLC0415

    return MARKERS


def part_names() -> tuple[str, ...]:
    """The parts that there are; known once a card is read."""
    from pytest_llmbench.card import PARTS  # noqa: PLC0415

    return PARTS


def changes(settings: Settings) -> PlanChanges:
    from pytest_llmbench.plan_changes import PlanChanges  # noqa: PLC0415

    return PlanChanges(settings.levels, settings.depths, settings.sizes, settings.runs, settings.probe)


def continuing(settings: Settings) -> Continue | None:
    """What the session goes on with. Raises InputError for flags that contradict each other."""
    from pytest_llmbench.resume import Continue  # noqa: PLC0415

    if settings.supplement_reason is not None and settings.supplement is None:
        raise InputError("--llmbench-supplement-reason", None, "there is no --llmbench-supplement", "name the run too")
    if settings.supplement is None:
        return None if settings.resume is None else Continue("resume", settings.resume)
    if settings.supplement_reason is None:
        raise InputError(
            "--llmbench-supplement",
            settings.supplement,
            "no reason is stated",
            'add --llmbench-supplement-reason "the machine was updating itself during concurrency"',
        )
    for flag, given in (("--llmbench-resume", settings.resume), ("--llmbench-save", settings.save)):
        if given is not None or (flag == "--llmbench-save" and settings.autosave):
            raise InputError(
                "--llmbench-supplement",
                settings.supplement,
                f"does not go together with {flag}: only a session's own first valid results enter a baseline"
                if flag == "--llmbench-save"
                else f"does not go together with {flag}",
                f"leave out {flag}",
            )
    return Continue("supplement", settings.supplement, settings.supplement_reason, settings.parts)


def canary(settings: Settings) -> Slowdown | None:
    """The slowdown to plant. Raises InputError for one that cannot be, and for what a canary is no use to."""
    if settings.canary is None:
        return None
    from pytest_llmbench.slowdown import FLAG, Slowdown  # noqa: PLC0415

    wishes = {
        "--llmbench-probe": settings.probe or None,
        "--llmbench-save": settings.save,
        "--llmbench-autosave": settings.autosave or None,
        "--llmbench-compare": settings.compare,
        "--llmbench-resume": settings.resume,
        "--llmbench-supplement": settings.supplement,
        "--llmbench-accept": settings.accept,
        "--llmbench-no-history": settings.no_history or None,
        "--llmbench-against": settings.against,
    }
    for flag, value in wishes.items():
        if value is not None:
            reason = f"a session that is slowed on purpose is judged by the history alone: {flag} has no use for it"
            raise InputError(FLAG, settings.canary, reason, f"leave out {flag}")
    return Slowdown.parse(settings.canary)


def against_wish(settings: Settings, loaded: LoadedAgainst | None) -> Against | None:
    from pytest_llmbench.gate.sequential import Asked  # noqa: PLC0415
    from pytest_llmbench.wishes import Against  # noqa: PLC0415

    if loaded is None:
        return None
    asked = Asked()
    return Against(
        loaded.old,
        asked.margin if settings.margin is None else settings.margin,
        asked.budget if settings.pairs is None else settings.pairs,
        settings.budget_s,
    )


def keeps_history(settings: Settings) -> bool:
    return not settings.no_history and not settings.probe and settings.against is None


def gating(settings: Settings) -> Gating:
    from pytest_llmbench.wishes import Gating  # noqa: PLC0415

    return Gating(
        history=(settings.history or str(settings.storage / "history.sqlite")) if keeps_history(settings) else None,
        baseline_file=settings.baseline,
        remeasure=settings.remeasure,
        require_baseline=settings.require_baseline,
        strict=settings.strict,
        accept=settings.accept,
        # What a mark covers is measured by the history, which is not asked here.
        marks=settings.marks if settings.against is None else None,
    )
