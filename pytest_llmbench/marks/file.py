"""The reviewed file of marks, ``llmbench-marks.json``: what a person accepted, how deep, and until when.

``python -m pytest_llmbench.marks.file`` prints its JSON Schema.
"""

from __future__ import annotations

import datetime as dt
import json
from importlib.resources import files
from pathlib import Path  # noqa: TC003 - read by tests of the annotations
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from pytest_llmbench.card.base import CardModel, CellId, Fault, Slug, Text, refuse
from pytest_llmbench.card.checks import nearest
from pytest_llmbench.card.load import load
from pytest_llmbench.errors import CardError, InputError
from pytest_llmbench.files import write_json
from pytest_llmbench.marks.propose import Marked

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pytest_llmbench.marks.propose import Proposal

FILE_NAME = "llmbench-marks.json"
ANY = "any"
KEY_DIGITS = 12
# A mark that nobody has to look at again is a mute button.
LONGEST = dt.timedelta(days=366)


class MarksError(InputError):
    """The file of marks cannot be used as it stands."""


class Mark(CardModel):
    """One accepted mark of one cell on one machine."""

    card: Slug
    """The card's id."""
    cell: CellId
    figure: Text | None = None
    """One figure of the cell (decode_tok_s, ttft_ms, …); absent: every figure of the cell that is judged."""
    machine: Text
    """The first 8 or more digits of the machine key that a session shows; "any" only where a person writes it."""
    machine_name: Text | None = None
    """The machine for readers; nothing is compared with it."""
    mark: Literal["slow", "flaky"]
    depth: Annotated[float, Field(ge=0, le=10)]
    """By what share of its reference a figure may be worse: 0.12 is "down to -12 %" (a latency: up to +12 %)."""
    reason: Text
    evidence: Annotated[tuple[Text, ...], Field(min_length=1)]
    """The sessions that show it."""
    date: dt.date
    """The day on which it was accepted."""
    expires: dt.date
    """The last day on which it is in effect; from the next day on it fails by name."""
    author: Text | None = None

    @model_validator(mode="after")
    def _reviewable(self) -> Self:
        faults = []
        if self.machine != ANY and not _is_key(self.machine):
            faults.append(
                Fault(
                    "machine",
                    self.machine,
                    "is neither a machine key nor 'any'",
                    "write its first 8 or more hexadecimal digits, as `llmbench marks` shows them",
                )
            )
        if self.depth >= 1 and self.figure is None:
            remedy = "name the figure (a latency can be worse by more than 100 %, a rate cannot), or lower it"
            faults.append(Fault("depth", self.depth, "would cover any rate at all", remedy))
        if self.expires < self.date:
            faults.append(Fault("expires", str(self.expires), f"is before its date ({self.date})", "write a later day"))
        elif self.expires - self.date > LONGEST:
            remedy = f"write {self.date + LONGEST} at the latest, and look at it again then"
            faults.append(Fault("expires", str(self.expires), "is more than a year after its date", remedy))
        refuse(faults)
        return self

    @property
    def place(self) -> str:
        """``decode[code] of my-card``, with the figure where it is for one."""
        return f"{self.cell}{f' {self.figure}' if self.figure else ''} of {self.card}"

    def is_for(self, card: str, cell: str, machine_key: str) -> bool:
        """Whether it speaks of this cell of this card on the machine with this key (sha256, hexadecimal)."""
        return (self.card, self.cell) == (card, cell) and _overlap(self.machine, machine_key)

    def is_active(self, today: dt.date) -> bool:
        return today <= self.expires


class Marks(CardModel):
    """The file: marks in the order of their places, so that one more or less changes a few lines."""

    json_schema: str | None = Field(default=None, alias="$schema")
    """For editors: the path or URL of marks.schema.json."""
    llmbench_marks: Literal[1] = 1
    """The version of this format."""
    marks: tuple[Mark, ...] = ()

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        refuse(
            [
                Fault(f"marks[{at}]", None, f"marks[{before}] is a {one.mark} mark of {one.place} too", "keep one")
                for at, one in enumerate(self.marks)
                for before in range(at)
                if _clash(self.marks[before], one)
            ]
        )
        return self

    def adding(self, *new: Mark, today: dt.date) -> Marks:
        """The file with more marks; an expired one of that kind for that place makes room.

        Raises MarksError where there is one in effect.
        """
        gone = [one for one in self.marks if not one.is_active(today) and any(_clash(one, mark) for mark in new)]
        kept = [one for one in self.marks if one not in gone]
        for at, one in enumerate(new):
            there = next((other for other in (*kept, *new[:at]) if _clash(other, one)), None)
            if there is not None:
                raise MarksError(
                    f"{one.mark} mark of {one.place}",
                    None,
                    f"the file has one for {there.place}, in effect until {there.expires}",
                    "remove it first, or change it in the file",
                )
        return self._with((*kept, *new))

    def without(self, gone: Sequence[Mark]) -> Marks:
        return self._with(tuple(one for one in self.marks if one not in gone))

    def _with(self, marks: Sequence[Mark]) -> Marks:
        return self.model_copy(update={"marks": tuple(sorted(marks, key=_order))})


def read(path: Path) -> Marks:
    """Read a file of marks; one that is not there holds none.

    Raises MarksError that names file, place, value, reason and remedy of everything wrong in it.
    """
    if not path.exists():
        return Marks()
    try:
        return load(Marks, path)
    except CardError as error:
        # Read and told the way a card is; where the text speaks of cards, it is this file that is meant.
        reason = error.reason.replace("a card", "a file of marks")
        remedy = error.remedy.replace("a card is", "a file of marks is").replace("the card's", "the marks'")
        if "bench_suites" in remedy:
            remedy = 'delete it, or write {"llmbench_marks": 1, "marks": []}'
        raise MarksError(error.field, error.value, reason, remedy) from None


def write(path: Path, marks: Marks) -> None:
    """Write the file, sorted, one line a field; atomic."""
    ordered = marks.model_copy(update={"marks": tuple(sorted(marks.marks, key=_order))})
    write_json(path, ordered.model_dump(mode="json", by_alias=True, exclude_none=True))


def marked(marks: Marks, *, card: str, cell: str, machine_key: str, today: dt.date) -> tuple[Marked, ...]:
    """The marks in effect on a cell, as ``propose`` wants to know them; an expired one is not."""
    return tuple(
        Marked(one.mark, one.figure, str(one.date))
        for one in marks.marks
        if one.is_for(card, cell, machine_key) and one.is_active(today)
    )


def accepted(
    proposal: Proposal,
    *,
    card: str,
    cell: str,
    machine_key: str,
    machine_name: str | None,
    reason: str,
    today: dt.date,
    author: str | None = None,
) -> Mark:
    """The mark that a proposal to add one becomes, once a person accepts it with a reason."""
    assert proposal.action == "add"
    assert proposal.depth is not None
    assert proposal.days is not None
    return Mark(
        card=card,
        cell=cell,
        figure=proposal.figure,
        machine=machine_key[:KEY_DIGITS],
        machine_name=machine_name,
        mark=proposal.mark,
        depth=proposal.depth,
        reason=reason,
        evidence=proposal.evidence,
        date=today,
        expires=today + dt.timedelta(days=proposal.days),
        author=author,
    )


def covers_nothing(
    marks: Marks, plans: Mapping[str, Mapping[str, Collection[str]]], *, all_cards: bool = False
) -> list[str]:
    """What is marked and does not exist, a line each: a cell that its card's plan lacks, a figure that the cell lacks.

    plans: card id to cell id to the names of its figures. all_cards: there are no other cards, so that a mark of one is
    said too; a session with one card of many leaves this out.
    """
    lines = []
    for one in marks.marks:
        cells = plans.get(one.card)
        name = f"{one.mark} mark of {one.place}"
        if cells is None:
            if all_cards:
                lines.append(f"{name} covers nothing: no such card ({nearest(one.card, sorted(plans))})")
        elif one.cell not in cells:
            lines.append(f"{name} covers nothing: no such cell in its plan ({nearest(one.cell, sorted(cells))})")
        elif one.figure is not None and one.figure not in cells[one.cell]:
            known = nearest(one.figure, sorted(cells[one.cell]))
            lines.append(f"{name} covers nothing: {one.cell} has no such figure ({known})")
    return lines


def _is_key(text: str) -> bool:
    return 8 <= len(text) <= 64 and set(text) <= set("0123456789abcdef")


def _overlap(one: str, other: str) -> bool:
    return ANY in (one, other) or one.startswith(other) or other.startswith(one)


def _clash(one: Mark, other: Mark) -> bool:
    """Both would speak for one figure, and it would be unclear which depth holds."""
    return (
        (one.card, one.cell, one.mark) == (other.card, other.cell, other.mark)
        and (None in (one.figure, other.figure) or one.figure == other.figure)
        and _overlap(one.machine, other.machine)
    )


def _order(one: Mark) -> tuple[str, ...]:
    return one.card, one.cell, one.figure or "", one.machine, one.mark


def schema() -> dict[str, Any]:
    """The file's JSON Schema (draft 2020-12)."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Marks.model_json_schema(by_alias=True)}


def packaged_schema() -> dict[str, Any]:
    """The schema file that the package ships; a test holds it equal to ``schema()``."""
    return dict(json.loads(files("pytest_llmbench.marks").joinpath("marks.schema.json").read_text(encoding="utf-8")))


if __name__ == "__main__":
    print(json.dumps(schema(), indent=2, ensure_ascii=False))  # noqa: T201 - this is what it is for
