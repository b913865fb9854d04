"""The fixtures, and what the hooks keep between them: cards, setups, their folder. Heavy rooms load when used."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from pytest_llmbench.errors import InputError, LlmbenchError
from pytest_llmbench.files import new_session, now, relative, write_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from pytest_llmbench.bench import Bench
    from pytest_llmbench.card import SetupCard
    from pytest_llmbench.marking import Marking
    from pytest_llmbench.options import Settings
    from pytest_llmbench.outcomes import JudgedCell
    from pytest_llmbench.outcomes.file import VerdictFile
    from pytest_llmbench.plan_changes import PlanChanges
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.resume import Continue
    from pytest_llmbench.session import SetupRun
    from pytest_llmbench.slowdown import Slowdown
    from pytest_llmbench.terminal import Terminal
    from pytest_llmbench.wishes import Against, ControlWish, Gating

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
CARDS: pytest.StashKey[tuple[LoadedCard, ...]] = pytest.StashKey()
SETUPS: pytest.StashKey[Setups] = pytest.StashKey()
MARKING: pytest.StashKey[Marking] = pytest.StashKey()
TERMINAL: pytest.StashKey[Terminal] = pytest.StashKey()


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

    differs: what the two cards differ in, of what may differ.
    """

    new: LoadedCard
    old: SetupCard
    only_new: tuple[str, ...]
    only_old: tuple[str, ...]
    differs: tuple[str, ...]
    path: str

    @property
    def header(self) -> list[str]:
        """What a person must know before it starts."""
        lines = [f"against {self.old.id} ({self.path}); differs (old -> new): {'; '.join(self.differs) or 'nothing'}"]
        for which, cells in (("new", self.only_new), ("old", self.only_old)):
            if cells:
                lines.append(f"not measured, for only the {which} card has it: {', '.join(cells)}")
        return lines


@dataclass(frozen=True)
class CellParam:
    """What one bench item measures."""

    loaded: LoadedCard
    spec: CellSpec

    def test_id(self, *, many: bool) -> Any:
        """``code`` of ``decode[code]``; with several cards the card's id first; nothing for a part of one cell."""
        own = self.spec.id.partition("[")[2].rstrip("]")
        words = [self.loaded.card.id] if many else []
        words += [own] if own else []
        return "-".join(words) if words else pytest.HIDDEN_PARAM


def load_cards(settings: Settings) -> tuple[LoadedCard, ...]:
    """Read every card. Raises CardError, InputError."""
    from pytest_llmbench import plan  # noqa: PLC0415
    from pytest_llmbench.card import SetupCard  # noqa: PLC0415
    from pytest_llmbench.plan_changes import changed  # noqa: PLC0415

    changes = _changes(settings)
    cards = [changed(SetupCard.load(path), changes) for path in settings.setups]
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
    old = changed(SetupCard.load(settings.against), _changes(settings))
    new = cards[0]
    both, only_new, only_old = against.common(new.card, old)
    return LoadedAgainst(
        replace(new, cells=both), old, only_new, only_old, against.differences(new.card, old), str(settings.against)
    )


def _refuse_with_against(settings: Settings) -> None:
    """Refuse what a direct comparison cannot do, or has no use for. Raises InputError."""
    flag, named = "--llmbench-against", str(settings.against)
    if len(settings.setups) > 1:
        raise InputError(flag, named, "goes with one --setup card: the new one", "compare one pair of cards at a time")
    if settings.model is not None:
        reason = "--llmbench-model does not say which of the two cards' files it replaces"
        raise InputError(flag, named, reason, "write the path into the cards")
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


def part_names() -> tuple[str, ...]:
    """The parts that there are; known once a card is read."""
    from pytest_llmbench.card import PARTS  # noqa: PLC0415

    return PARTS


def _changes(settings: Settings) -> PlanChanges:
    from pytest_llmbench.plan_changes import PlanChanges  # noqa: PLC0415

    return PlanChanges(settings.levels, settings.depths, settings.sizes, settings.runs, settings.probe)


def _continue(settings: Settings) -> Continue | None:
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


def _refuse_judged_probe(settings: Settings) -> None:
    wishes = {
        "--llmbench-save": settings.save,
        "--llmbench-autosave": settings.autosave or None,
        "--llmbench-compare": settings.compare,
        "--llmbench-resume": settings.resume,
        "--llmbench-supplement": settings.supplement,
        "--llmbench-accept": settings.accept,
        "--llmbench-require-baseline": settings.require_baseline or None,
    }
    for flag, value in wishes.items():
        if settings.probe and value is not None:
            raise InputError(
                "--llmbench-probe",
                None,
                f"a probe is never a measurement: {flag} has no use for it",
                f"leave out {flag}",
            )


def _canary(settings: Settings) -> Slowdown | None:
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


def check_settings(settings: Settings, cards: Sequence[LoadedCard], against: LoadedAgainst | None = None) -> None:
    """What can be refused before anything is collected. Raises InputError."""
    from pytest_llmbench import resume  # noqa: PLC0415
    from pytest_llmbench.card import FIGURES, PARTS  # noqa: PLC0415
    from pytest_llmbench.history import saved  # noqa: PLC0415
    from pytest_llmbench.plan_changes import refuse_without_effect  # noqa: PLC0415

    planned = list(dict.fromkeys(part for loaded in cards for part in loaded.card.plan.parts))
    for part in settings.parts or ():
        if part not in PARTS:
            raise InputError("--llmbench-parts", part, "no such part", f"parts are {', '.join(PARTS)}")
        if not any(part in loaded.card.plan.parts for loaded in cards):
            raise InputError(
                "--llmbench-parts",
                part,
                f"not in the card's plan ({', '.join(planned)})",
                'add it to "plan": {"parts": …}',
            )
    measured = [part for part in planned if settings.parts is None or part in settings.parts]
    where = "--llmbench-parts" if settings.parts else "the card" if len(cards) == 1 else "every card"
    refuse_without_effect(_changes(settings), measured, where)
    figures = sorted({name for names in FIGURES.values() for name in names})
    for figure in settings.tolerances:
        if figure not in figures:
            raise InputError("--llmbench-compare-fail", figure, "no such figure", f"figures are {', '.join(figures)}")
    _check_writable("--llmbench-storage", settings.storage)
    if settings.json is not None:
        if settings.json.is_dir():
            raise InputError("--llmbench-json", str(settings.json), "is a folder", "name a file")
        _check_writable("--llmbench-json", settings.json.parent)
    every = [*(loaded.card for loaded in cards), *([against.old] if against else [])]
    known = {token.strip("<>") for one in every for _, token in one.placeholders}
    for name in settings.variables:
        if name not in known:
            there = ", ".join(sorted(known)) or "none"
            raise InputError(
                "--llmbench-var", name, f"no card has this placeholder (there: {there})", "correct the name"
            )
    if settings.model is not None and len(cards) > 1:
        raise InputError(
            "--llmbench-model", str(settings.model), "one file for several cards", "measure one card at a time"
        )
    if settings.model is not None and not settings.model.is_file():
        reason = "is a folder" if settings.model.is_dir() else "there is no such file"
        raise InputError("--llmbench-model", str(settings.model), reason, "name the model's .gguf file")
    _refuse_judged_probe(settings)
    _canary(settings)
    wish = _continue(settings)
    if wish is not None:
        for loaded in cards:
            resume.find(settings.storage, loaded.card.id, wish)
    if settings.compare is not None:
        for loaded in cards:
            saved.load(settings.storage, settings.compare, loaded.card.id)
    _check_gate(settings)
    for control in filter(None, (loaded.control for loaded in cards)):
        from pytest_llmbench.control import turn_of  # noqa: PLC0415

        turn_of(control.card)


def _check_gate(settings: Settings) -> None:
    """Refuse what cannot be judged by, before anything is measured. Raises InputError."""
    from pytest_llmbench.marks import file as marks_file  # noqa: PLC0415

    marks_file.read(settings.marks)
    if settings.no_history:
        for flag, given in (("--llmbench-accept", settings.accept), ("--llmbench-history", settings.history)):
            if given is not None:
                raise InputError(
                    flag, given, "there is no history with --llmbench-no-history", "leave out one of the two"
                )
        if settings.require_baseline and settings.baseline is None:
            raise InputError(
                "--llmbench-require-baseline",
                None,
                "no baseline can be there without a history",
                "leave out --llmbench-no-history, or name a file with --llmbench-baseline",
            )
    if settings.accept is not None and settings.baseline is not None:
        raise InputError(
            "--llmbench-accept",
            settings.accept,
            "a file of baselines is not changed by a session",
            "accept without --llmbench-baseline, then write the file: llmbench baseline export",
        )
    if settings.baseline is not None:
        from pytest_llmbench.history.file import BaselineFile  # noqa: PLC0415

        BaselineFile.load(settings.baseline)
    if _keeps_history(settings):
        from pytest_llmbench.history.connect import check  # noqa: PLC0415 - a database package behind it

        check(settings.storage, settings.history)


def _keeps_history(settings: Settings) -> bool:
    return not settings.no_history and not settings.probe and settings.against is None


def place_of(param: CellParam, cards: Sequence[LoadedCard]) -> tuple[int, int]:
    """Where a cell's turn is: one card after the other, and in the order of the plan, so that servers start seldom."""
    card = next(n for n, loaded in enumerate(cards) if loaded.card.id == param.loaded.card.id)
    return card, param.loaded.cells.index(param.spec)


def _check_writable(flag: str, folder: Path) -> None:
    """Refuse a folder that cannot be made or written, before anything is measured for it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir():
        raise InputError(flag, str(folder), f"{there} is a file, not a folder", "name another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(flag, str(folder), f"{there} may not be written by this user", "name another place")


def param_of(item: pytest.Item) -> CellParam | None:
    """What a bench item measures; None for one whose part is not in any plan."""
    callspec = getattr(item, "callspec", None)
    param = callspec.params.get("cell") if callspec is not None else None
    return param if isinstance(param, CellParam) else None


class Setups:
    """The setups of a session: one runs at a time, and each leaves its documents."""

    def __init__(self, settings: Settings, against: LoadedAgainst | None = None) -> None:
        self.settings, self.against = settings, against
        self.session = new_session()
        self.folder = settings.storage / "runs" / self.session
        self.documents: dict[str, dict[str, Any]] = {}
        self.tables: list[tuple[Path, str]] = []
        self.broken_promises = False
        self.saved: list[tuple[str, str, str | None]] = []
        self.forgotten: list[str] = []
        self.verdict: VerdictFile | None = None
        self.verdict_path = self.folder / "verdict.json"
        self.other_failures = False
        self._started = now()
        self.not_reached: dict[str, int] = {}
        self.not_written: list[str] = []
        self._promised: dict[str, list[CellSpec]] = {}
        self._runs: dict[str, SetupRun] = {}
        self._current: SetupRun | None = None
        self._reported: set[str] = set()

    def promise(self, params: Sequence[CellParam]) -> None:
        """The cells that this session measures: those of the items that are left after selection."""
        for param in params:
            specs = self._promised.setdefault(param.loaded.card.id, [])
            if param.spec not in specs:
                specs.append(param.spec)

    def refuse_other(self, cards: Sequence[LoadedCard]) -> None:
        """Refuse to compare or go on with another setup's run, as far as that is known now. Raises InputError."""
        wish, baseline_file = _continue(self.settings), self.settings.baseline
        if self.against is not None:
            from pytest_llmbench.against import cards as against_cards  # noqa: PLC0415

            new = self.against.new.card
            against_cards.refuse(new, self.against.old, self._promised.get(new.id, []))
        if wish is None and self.settings.compare is None and baseline_file is None:
            return
        from pytest_llmbench import sameness  # noqa: PLC0415

        for loaded in cards:
            cells = self._promised.get(loaded.card.id)
            if cells:
                sameness.refuse_known(
                    loaded.card,
                    cells,
                    self.settings.storage,
                    compare=self.settings.compare,
                    go_on=wish,
                    baseline_file=baseline_file,
                )

    async def use(self, loaded: LoadedCard, terminal: Terminal, spec: CellSpec | None = None) -> SetupRun:
        """The card's run, ready to measure a cell; another card's server is stopped first. Raises LlmbenchError."""
        run = self._runs.get(loaded.card.id)
        if run is None:
            run = self._runs[loaded.card.id] = self._new(loaded, terminal)
        if self._current is not None and self._current is not run:
            await self._current.stop()
        self._current = run
        try:
            await run.start(spec)
        except LlmbenchError as exc:
            if str(exc) in self._reported:
                raise LlmbenchError(
                    f"{loaded.card.id}: not measured, for the reason given above: {str(exc).splitlines()[0]}"
                ) from None
            self._reported.add(str(exc))
            raise
        return run

    def _new(self, loaded: LoadedCard, terminal: Terminal) -> SetupRun:
        # The first import of everything heavy.
        from pytest_llmbench.session import SetupRun  # noqa: PLC0415
        from pytest_llmbench.wishes import Comparison, Wishes  # noqa: PLC0415

        settings = self.settings
        cells = self._promised.get(loaded.card.id, [])
        promised = {spec.id for spec in cells}
        saves = [settings.save] if settings.save else []
        saves += [self.session] if settings.autosave else []
        return SetupRun(
            loaded.card,
            cells=cells,
            left_out=[
                *((spec.id, self._why_not(spec)) for spec in loaded.cells if spec.id not in promised),
                *((cell, "the old card has no such cell") for cell in (self.against.only_new if self.against else ())),
            ],
            folder=self.folder / loaded.card.id,
            session=self.session,
            wishes=Wishes(
                storage=settings.storage,
                compare=Comparison(settings.compare, settings.tolerances, settings.tolerance)
                if settings.compare
                else None,
                save=tuple(saves),
                json=settings.json,
                model=settings.model,
                variables=settings.variables,
                ready_timeout_s=settings.ready_timeout_s,
                silence_timeout_s=settings.silence_timeout_s,
                plan_changes=_changes(settings).to_json(),
                probe=settings.probe,
                go_on=_continue(settings),
                gating=_gating(settings),
                canary=_canary(settings),
                control=loaded.control,
                against=_against(settings, self.against),
            ),
            progress=terminal,
        )

    def _why_not(self, spec: CellSpec) -> str:
        if self.settings.parts is not None and spec.part not in self.settings.parts:
            return "not among --llmbench-parts"
        return "no test of this session measures it (deselected, or no suite for it was given)"

    async def stop(self) -> None:
        if self._current is not None:
            await self._current.stop()
            self._current = None

    def finish(self, pytest_code: int) -> int:
        """Write every run's documents and the verdict file; the exit code of the session.

        A promised cell without a number breaks a promise.
        """
        for card_id, run in self._runs.items():
            report = run.finish()
            self.documents[card_id] = report.model_dump(mode="json")
            if not run.leaves_nothing:
                self.tables.append((run.folder, (run.folder / "table.md").read_text(encoding="utf-8")))
            self.broken_promises |= not report.complete or any(run.saved.values()) or run.not_written is not None
            self.not_written += [run.not_written] if run.not_written is not None else []
            if run.not_reached:
                self.not_reached[card_id] = len(run.not_reached)
            self.saved += [(card_id, name, why_not) for name, why_not in run.saved.items()]
            self.forgotten += run.forgotten
        broken = self.broken_promises or (self.forgotten and self.settings.accept)
        code = 1 if pytest_code == 0 and broken else pytest_code
        return self._conclude(code) if self.tables and not self.settings.probe else code

    def _conclude(self, code: int) -> int:
        from pytest_llmbench.outcomes.file import build, card_verdict  # noqa: PLC0415

        judged = {card_id: run.judged() for card_id, run in self._runs.items()}
        finished = now()

        def verdict(base: Path) -> VerdictFile:
            cards = [
                (
                    card_verdict(
                        card_id,
                        [_seen_from(base, cell) for cell in judged[card_id]],
                        machine_key=run.gate.machine_key,
                        machine_name=run.gate.machine_name,
                        problems=run.problems,
                        remeasured_s=run.remeasured_s,
                        canary=run.wishes.canary.words if run.wishes.canary else None,
                        last_canary=run.gate.last_canary(),
                        report=relative(run.folder / "report.json", base),
                        control=run.control_facts(),
                    ),
                    judged[card_id],
                )
                for card_id, run in self._runs.items()
            ]
            return build(
                session=self.session,
                started=self._started,
                finished=finished,
                cards=cards,
                pytest_code=code,
                other_failures=self.other_failures,
            )

        for path in filter(None, (self.verdict_path, self.settings.verdict)):
            self.verdict = verdict(path.parent)
            write_json(path, self.verdict.model_dump(mode="json"))
        assert self.verdict is not None
        return self.verdict.exit_code

    def close(self) -> None:
        for run in self._runs.values():
            run.close()


def _seen_from(base: Path, cell: JudgedCell) -> JudgedCell:
    """The cell with its files as seen from a folder."""
    result = cell.result
    raw = None if result.raw_file is None else relative(result.raw_file, base)
    logs = tuple(relative(log, base) for log in result.server_logs)
    return replace(cell, result=replace(result, raw_file=raw, server_logs=logs))


def _against(settings: Settings, loaded: LoadedAgainst | None) -> Against | None:
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


def _gating(settings: Settings) -> Gating:
    from pytest_llmbench.wishes import Gating  # noqa: PLC0415

    return Gating(
        history=(settings.history or str(settings.storage / "history.sqlite")) if _keeps_history(settings) else None,
        baseline_file=settings.baseline,
        remeasure=settings.remeasure,
        require_baseline=settings.require_baseline,
        strict=settings.strict,
        accept=settings.accept,
        # What a mark covers is measured by the history, which is not asked here.
        marks=settings.marks if settings.against is None else None,
    )


# ---- fixtures ---------------------------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llmbench_setups(request: pytest.FixtureRequest) -> AsyncIterator[Setups]:
    """The session's setups; stops the running server at the end."""
    setups = request.config.stash[SETUPS]
    try:
        yield setups
    finally:
        await setups.stop()


@pytest.fixture
def cell(request: pytest.FixtureRequest) -> CellSpec:
    """The cell that this item measures."""
    return _param(request).spec


@pytest.fixture
def card(request: pytest.FixtureRequest) -> SetupCard:
    """The setup card that this item measures."""
    return _param(request).loaded.card


@pytest_asyncio.fixture(loop_scope="session")
async def bench(request: pytest.FixtureRequest, llmbench_setups: Setups) -> AsyncIterator[Bench]:
    """Measures and checks cells of the item's card, whose server is running."""
    from pytest_llmbench.bench import Bench  # noqa: PLC0415

    param = _param(request)
    run = await llmbench_setups.use(param.loaded, request.config.stash[TERMINAL], param.spec)
    face = Bench(run, skip=pytest.skip, xfail=pytest.xfail)
    yield face
    for result in face.measured:
        for summary in result.summaries:
            if summary.median is not None:
                request.node.user_properties.append((f"{result.spec.id} {summary.name}", summary.median))


def _param(request: pytest.FixtureRequest) -> CellParam:
    param = param_of(request.node)
    if param is None:
        pytest.fail(
            "this test needs a cell: mark it @pytest.mark.llmbench(part) and take the argument cell", pytrace=False
        )
    return param
