"""The setups of a session: one runs at a time, and each leaves its documents."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench.asked import against_wish, canary, changes, continuing, gating
from pytest_llmbench.errors import LlmbenchError
from pytest_llmbench.files import new_session, now, relative, write_json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pytest_llmbench.asked import LoadedAgainst, LoadedCard
    from pytest_llmbench.fixtures import CellParam
    from pytest_llmbench.options import Settings
    from pytest_llmbench.outcomes import JudgedCell
    from pytest_llmbench.outcomes.file import VerdictFile
    from pytest_llmbench.records import CellSpec
    from pytest_llmbench.resume import Continue
    from pytest_llmbench.session import SetupRun
    from pytest_llmbench.terminal import Terminal


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
        self.accepted: list[str] = []
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
        self.done: set[str] = set()
        self._anew: set[str] = set()

    def promise(self, params: Sequence[CellParam]) -> None:
        """The cells that this session measures: those of the items that are left after selection."""
        for param in params:
            specs = self._promised.setdefault(param.loaded.card.id, [])
            if param.spec not in specs:
                specs.append(param.spec)

    def refuse_other(self, cards: Sequence[LoadedCard]) -> None:
        """Refuse to compare or go on with another setup's run, as far as that is known now. Raises InputError.

        Of several cards whose session is gone on with, those that it finished are ``done`` and leave this one, and those that
        it never reached are measured anew.
        """
        wish, baseline_file = continuing(self.settings), self.settings.baseline
        if self.against is not None:
            from pytest_llmbench.against import cards as against_cards  # noqa: PLC0415

            new = self.against.new.card
            against_cards.refuse(new, self.against.old, self._promised.get(new.id, []))
        if wish is None and self.settings.compare is None and baseline_file is None:
            return
        from pytest_llmbench import resume, sameness  # noqa: PLC0415

        refused, asked = [], [loaded.card for loaded in cards if self._promised.get(loaded.card.id)]
        for card in asked:
            try:
                sameness.refuse_known(
                    card,
                    self._promised[card.id],
                    self.settings.storage,
                    compare=self.settings.compare,
                    go_on=wish,
                    baseline_file=baseline_file,
                )
            except resume.NothingToGoOnError as exc:
                if wish is None or wish.kind == "supplement":
                    raise
                refused.append(exc)
                (self.done if exc.done else self._anew).add(card.id)
        if refused and len(refused) == len(asked):
            raise refused[0]
        if refused and wish is not None:
            self._finished_beside(wish, [card.id for card in asked])
        for card_id in self.done:
            del self._promised[card_id]

    def _finished_beside(self, wish: Continue, asked: Sequence[str]) -> None:
        """Cards without an unfinished run that a session which others go on with has finished."""
        from pytest_llmbench import resume  # noqa: PLC0415

        storage = self.settings.storage
        going_on = [card for card in asked if card not in self.done | self._anew]
        sessions = {resume.find(storage, card, wish).parent.name for card in going_on}
        beside = {c for c in self._anew if any((storage / "runs" / s / c / "report.json").exists() for s in sessions)}
        self.done |= beside
        self._anew -= beside

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
                plan_changes=changes(settings).to_json(),
                probe=settings.probe,
                go_on=None if loaded.card.id in self._anew else continuing(settings),
                gating=gating(settings),
                canary=canary(settings),
                control=loaded.control,
                against=against_wish(settings, self.against),
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
        from pytest_llmbench.outcomes import is_interrupted  # noqa: PLC0415

        for card_id, run in self._runs.items():
            report = run.finish(interrupted=is_interrupted(pytest_code))
            self.documents[card_id] = report.model_dump(mode="json")
            if not run.leaves_nothing:
                self.tables.append((run.folder, run.table))
            self.broken_promises |= not report.complete or any(run.saved.values()) or bool(run.not_written)
            self.not_written += run.not_written
            if run.not_reached:
                self.not_reached[card_id] = len(run.not_reached)
            self.saved += [(card_id, name, why_not) for name, why_not in run.saved.items()]
            self.forgotten += run.forgotten
            self.accepted += [f"{card_id} {cell}" if len(self._runs) > 1 else cell for cell in run.gate.accepted]
        if is_interrupted(pytest_code):
            self.not_reached |= {card: len(cells) for card, cells in self._promised.items() if card not in self._runs}
        broken = self.broken_promises or (self.forgotten and self.settings.accept)
        code = 1 if pytest_code == 0 and broken else pytest_code
        return self._conclude(code) if self.tables and not self.settings.probe else code

    def _conclude(self, code: int) -> int:
        from pytest_llmbench.outcomes.file import build, card_verdict  # noqa: PLC0415

        judged = {card_id: run.judged() for card_id, run in self._runs.items()}
        self.forgotten += [line for run in self._runs.values() for line in run.gate.troubles]
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
                        not_counted=run.gate.not_counted,
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

        def write(paths: Sequence[Path]) -> list[Path]:
            written = []
            for path in paths:
                try:
                    write_json(path, verdict(path.parent).model_dump(mode="json"))
                    written.append(path)
                except OSError as exc:  # the other documents are there all the same
                    what = path if path == self.verdict_path else f"--llmbench-verdict = {str(path)!r}"
                    self.not_written.append(f"{what}: cannot be written: {exc.strerror}")
            return written

        paths = [path for path in (self.verdict_path, self.settings.verdict) if path is not None]
        written = write(paths)
        if len(written) < len(paths) and code == 0:
            code = 1
            write(written)  # the exit code stands in it
        self.verdict = verdict(self.folder)
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
