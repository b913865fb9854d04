"""The control's own run, beside a setup's: it takes turns, leaves its documents, and its level is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pytest_llmbench import control as controls
from pytest_llmbench import control_gate, stats
from pytest_llmbench.errors import LlmbenchError
from pytest_llmbench.measure import PARTS
from pytest_llmbench.session import SetupRun
from pytest_llmbench.wishes import Gating

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.records import Attempt, CellSpec
    from pytest_llmbench.wishes import ControlWish

# A control is no run of its own: what the caller wants of the setup is nothing to it.
_OF_THE_SETUP: dict[str, Any] = {
    "compare": None,
    "save": (),
    "json": None,
    "model": None,
    "plan_changes": {},
    "go_on": None,
    "gating": Gating(),
    "canary": None,
    "control": None,
    "against": None,
}


class ControlRun(SetupRun):
    """A control's card in one session: its one cell, a run at a time."""

    _turns: tuple[Attempt, ...] = ()

    def identify(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Check the promises without starting anything: the identity, and what is known of the engine."""
        self.preparation.check()
        return dict(self.key), dict(self.environment["engine"])

    async def turn(self, spec: CellSpec, run: int, again: int) -> Sequence[Attempt]:
        """One run, with its retries; kept for ``conclude_turns``. Raises LlmbenchError."""
        await self.start(spec)
        made: list[Attempt] = []
        try:
            await self.runner.run(spec, run, made, again=again)
        finally:
            self._turns += tuple(made)
        return made

    async def rest(self, reason: str) -> None:
        """Stop the server; the next turn starts another one."""
        if self._runner is not None:
            await self._runner.servers.drop(reason)

    def conclude_turns(self) -> None:
        """The result of the cell, out of its turns."""
        if not self._turns or self.journal is None:
            return
        (spec,) = self.cells
        starts = sorted({one.server_start for one in self._turns})
        result = stats.conclude(
            spec,
            self.card.id,
            self._turns,
            PARTS[spec.part].kinds,
            raw_file=str(self.folder / self.journal.raw_file(spec.id)),
            server_logs=[str(self.folder / f"server-{n}.log") for n in starts],
        )
        self.results[spec.id] = result
        self.journal.event(
            "cell", cell=spec.id, status=result.status, reasons=result.reasons, summaries=result.summaries
        )


class ControlSide:
    """What stands beside a setup's run as its control. turns: takes them; None where nothing does, and ``why`` says why."""

    def __init__(self, setup: SetupRun, wish: ControlWish) -> None:
        self._setup, self._wish = setup, wish
        self._run: ControlRun | None = None
        self._level: control_gate.Level | None = None
        self.turns: controls.Control | None = None
        self.why: str | None = None

    def prepare(self) -> None:
        """Make it ready to take turns, where it is worth it; its server starts with the first one."""
        setup, wish = self._setup, self._wish
        cells = [spec for spec in setup.cells if not PARTS[spec.part].cold]
        if setup.wishes.probe or not cells:
            return
        assert setup.watch is not None
        runs = sum(spec.runs for spec in cells if spec.id not in setup.results)
        run = ControlRun(
            wish.card,
            cells=[controls.promised(controls.turn_of(wish.card), runs, resident=wish.resident)],
            left_out=(),
            folder=setup.folder / controls.FOLDER,
            session=setup.session,
            wishes=replace(setup.wishes, **_OF_THE_SETUP),
            progress=controls.Quiet(setup.progress.phase),
            watch=controls.SharedWatch(setup.watch),
        )
        try:
            identity, engine = run.identify()
        except LlmbenchError as exc:
            self.why = f"no control: {str(exc).partition(chr(10))[0]}"
            setup.progress.note(self.why)
            return
        figures = {
            spec.id: [k for k in PARTS[spec.part].kinds if k.gated and k.direction != "none"]
            for spec in cells
            if spec.part != "long_answer"
        }
        key, same = control_gate.key_of(identity, engine), control_gate.is_same(setup.key, identity)
        if not setup.gate.use_control(key, identity, figures, same=same):
            self.why = setup.gate.no_control
            return
        self._run = run
        self.turns = controls.Control(run, run.cells[0], resident=wish.resident, note=setup.progress.note)

    def finish(self) -> list[str]:
        """Write its documents, keep its session, and judge its level; what could not be kept, in words."""
        if self._run is None or self.turns is None or not self.turns.turns:
            return []
        self._run.conclude_turns()
        report = self._run.finish()
        self._setup.not_written += self._run.not_written
        result = self._run.results.get(self.turns.spec.id)
        if result is not None:
            self._level = self._setup.gate.control_level(result)
        return self._setup.gate.remember_control(report.model_dump(mode="json"), self._run.folder)

    def facts(self) -> dict[str, Any]:
        """For the documents: what it did in this session."""
        turns, gate, level = self.turns, self._setup.gate.control, self._level
        final = level.final if level is not None else None
        return {
            "card": self._wish.card.id,
            "role": gate.role if gate is not None else "rests",
            "why": self.why or (gate.why if gate is not None else "nothing was measured beside it"),
            "turns": turns.turns if turns is not None else 0,
            "minutes": round(turns.seconds / 60, 2) if turns is not None else 0.0,
            "lost": turns.lost if turns is not None else None,
            "report": f"{controls.FOLDER}/report.json" if turns is not None and turns.turns else None,
            "verdict": final.kind if final is not None else None,
            "failed": final.failed if final is not None else False,
            "said": final.why if final is not None else None,
            "changes": {name: one.change for name, one in level.figures.items()} if level is not None else {},
        }

    async def stop(self) -> None:
        if self._run is not None:
            await self._run.stop()

    def close(self) -> None:
        if self._run is not None:
            self._run.close()
