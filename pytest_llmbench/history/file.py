"""A card's baselines as a file to commit: reviewed like code, read in place of a store where a workspace keeps nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from pytest_llmbench.errors import InputError
from pytest_llmbench.files import write_text
from pytest_llmbench.history import keys
from pytest_llmbench.history.entry import why
from pytest_llmbench.records import Baseline, Direction

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from pytest_llmbench.history.read import KeptBaseline

FIELD = "baseline file"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FileFigure(_Model):
    """The baseline of one figure; fields as in records.Baseline. members: the median of each session, in the figure's unit."""

    unit: str
    direction: Direction
    pinned: bool
    sigma0: float | None
    accepted: str | None
    members: dict[str, float]


class FileCell(_Model):
    """A cell's definition, which is part of its key, and its figures."""

    definition: dict[str, Any]
    figures: dict[str, FileFigure]


class FileSession(_Model):
    """A session that is in one of the baselines: when, and with what engine, driver and kernel."""

    started: str
    attributes: dict[str, Any]


class BaselineFile(_Model):
    """The baselines of one card on one machine. card: its identity without cells."""

    llmbench_baselines: Literal[1] = 1
    card_id: str
    card: dict[str, Any]
    machine: dict[str, Any]
    cells: dict[str, FileCell]
    sessions: dict[str, FileSession]

    @model_validator(mode="after")
    def _every_member_is_known(self) -> Self:
        for cell, content in self.cells.items():
            for name, figure in content.figures.items():
                for session, value in figure.members.items():
                    if session not in self.sessions:
                        raise ValueError(f"{cell} {name}: session {session} is not among the sessions")
                    if value <= 0:
                        raise ValueError(f"{cell} {name}: the value of session {session} is not above 0")
        return self

    @classmethod
    def of(
        cls,
        identity: Mapping[str, Any],
        kept: Iterable[KeptBaseline],
        facts: Mapping[str, Mapping[str, Any]],
    ) -> Self:
        """Put a file together. kept: current baselines of this identity; facts: the attributes of their sessions."""
        cells: dict[str, dict[str, FileFigure]] = {}
        sessions: dict[str, FileSession] = {}
        for one in kept:
            baseline = one.baseline
            cells.setdefault(one.cell, {})[one.figure] = FileFigure(
                unit=one.unit,
                direction=one.direction,
                pinned=baseline.pinned,
                sigma0=baseline.sigma0,
                accepted=baseline.accepted,
                members=dict(zip(baseline.sessions, baseline.values, strict=True)),
            )
            for session, started in zip(baseline.sessions, one.started, strict=True):
                sessions[session] = FileSession(started=started, attributes=dict(facts.get(session, {})))
        defined = identity["card"]["cells"]
        return cls(
            card_id=identity["card_id"],
            card=keys.common_card(identity),
            machine=dict(identity["machine"]),
            cells={cell: FileCell(definition=defined[cell], figures=figures) for cell, figures in cells.items()},
            sessions=sessions,
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file. Raises InputError naming what is wrong with it."""
        remedy = "write it again: llmbench baseline export CARD FILE"
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            version = content.get("llmbench_baselines") if isinstance(content, dict) else None
            if isinstance(version, int) and version != 1:
                raise InputError(
                    FIELD, str(path), f"has format {version}, this version reads 1", "update pytest-llmbench"
                )
            return cls.model_validate(content)
        except OSError as exc:
            raise InputError(FIELD, str(path), exc.strerror or str(exc), remedy) from None
        except (ValidationError, ValueError) as exc:
            raise InputError(FIELD, str(path), f"not a file of baselines: {why(exc)}", remedy) from None

    def text(self) -> str:
        """It as JSON: sorted, one value a line, so that a diff shows what changed."""
        return json.dumps(self.model_dump(mode="json"), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def save(self, path: Path) -> None:
        """Write its text. Atomic. Raises InputError."""
        try:
            write_text(path, self.text())
        except OSError as exc:
            raise InputError("file", str(path), exc.strerror or str(exc), "name another place") from None

    # ---- as a store answers ----

    def differences(self, identity: Mapping[str, Any]) -> tuple[str, ...]:
        """What this card or machine has otherwise than the file; a cell that only one side has is no difference."""
        return tuple(keys.differences(self.identity(), identity))

    def refuse_other(self, identity: Mapping[str, Any], path: Path) -> None:
        """Raise InputError with the differences, unless card identity and machine are those of the file."""
        found = keys.capped(self.differences(identity))
        if found:
            listed = "\n    ".join(found)
            raise InputError(
                FIELD,
                str(path),
                f"of another setup or machine; its figures say nothing about this one:\n    {listed}",
                "compare on the machine and with the card that it was made from, or write one for this",
            )

    def baselines_of(self, identity: Mapping[str, Any]) -> dict[tuple[str, str], Baseline]:
        """The baseline of every figure of this identity's cells, by (cell, figure); empty for another card or machine."""
        if self.differences(identity):
            return {}
        return {
            (cell, name): self._baseline(figure)
            for cell, content in self.cells.items()
            if cell in identity["card"]["cells"]
            for name, figure in content.figures.items()
        }

    def other_machines(self, identity: Mapping[str, Any], limit: int = 8) -> tuple[str, ...]:
        """Why the file says nothing here: what differs, at most ``limit`` lines."""
        return keys.capped(self.differences(identity), limit)

    def changed_since(
        self,
        identity: Mapping[str, Any],  # noqa: ARG002 - asked as a store is asked
        cell: str,
        figure: str,
        environment: Mapping[str, Any],
    ) -> tuple[str, ...]:
        """What differs between the sessions of a figure's baseline and now, a line each."""
        content = self.cells.get(cell)
        kept = content.figures.get(figure) if content else None
        before = [self.sessions[session].attributes for session in kept.members] if kept else []
        return keys.changes(before, keys.attributes(environment))

    def identity(self) -> dict[str, Any]:
        """Card and machine of the file, as a contract's ``identity`` has them."""
        cells = {cell: content.definition for cell, content in self.cells.items()}
        return {"card_id": self.card_id, "card": self.card | {"cells": cells}, "machine": self.machine}

    def _baseline(self, figure: FileFigure) -> Baseline:
        started = {session: self.sessions[session].started for session in figure.members}
        members = sorted(figure.members, key=lambda session: (started[session], session))
        return Baseline(
            values=tuple(figure.members[session] for session in members),
            sessions=tuple(members),
            since=started[members[0]] if members else "",
            until=started[members[-1]] if members else "",
            pinned=figure.pinned,
            sigma0=figure.sigma0,
            accepted=figure.accepted,
        )
