"""``llmbench marks``: what is proposed, in effect and expired, with the evidence; into the file only when told to."""

from __future__ import annotations

import datetime as dt
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench.cli import common
from pytest_llmbench.errors import InputError
from pytest_llmbench.marks import file
from pytest_llmbench.marks.evidence import FigureHistory
from pytest_llmbench.marks.propose import machine_trouble, propose

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_llmbench.history.store import Store
    from pytest_llmbench.marks.file import Mark, Marks
    from pytest_llmbench.marks.propose import Proposal
    from pytest_llmbench.records import Direction, Outcome

NAME = "marks"
HELP = "show marks of slow and flaky cells; accept or remove them"
# Enough for ten usable sessions among disturbed ones.
SESSIONS = 50


@dataclass(frozen=True, slots=True)
class TrackedFigure:
    """accepted: when its reference was last accepted anew (ISO 8601 UTC); None: never."""

    name: str
    direction: Direction
    accepted: str | None = None


@dataclass(frozen=True, slots=True)
class TrackedCell:
    """A cell that the history knows on a machine. Keys: sha256, hexadecimal; machine: in words."""

    card: str
    cell: str
    cell_key: str
    machine_key: str
    machine: str
    figures: tuple[TrackedFigure, ...]


class Source(Protocol):
    """Where earlier sessions come from."""

    def cells(self) -> Sequence[TrackedCell]: ...

    def outcomes(self, cell: TrackedCell, figure: str, limit: int) -> Sequence[Outcome]:
        """The last sessions of a figure, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class _Found:
    cell: TrackedCell
    proposal: Proposal

    @property
    def place(self) -> str:
        figure = f" {self.proposal.figure}" if self.proposal.figure else ""
        return f"{self.cell.cell}{figure} of {self.cell.card} on {self.cell.machine}, {self.key}"

    @property
    def key(self) -> str:
        return self.cell.machine_key[: file.KEY_DIGITS]


class StoreSource:
    """The history as the source: every cell of every card on every machine that has a baseline, as last measured."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def cells(self) -> list[TrackedCell]:
        from pytest_llmbench.history import keys  # noqa: PLC0415

        found, last = [], set()
        # The identity measured last comes first: what the card was before (other arguments, another model) is over.
        for setup in self._store.setups():
            place = setup.card_id, keys.machine_key(setup.identity)
            if place in last:
                continue
            last.add(place)
            machine = keys.machine_label(setup.identity["machine"])
            figures: dict[tuple[str, str, str], list[TrackedFigure]] = {}
            for one in self._store.kept_baselines(setup.identity):
                figure = TrackedFigure(one.figure, one.direction, one.accepted_when)
                figures.setdefault((one.cell, one.cell_key, one.machine_key), []).append(figure)
            found += [
                TrackedCell(setup.card_id, cell, cell_key, machine_key, machine, tuple(of_cell))
                for (cell, cell_key, machine_key), of_cell in figures.items()
            ]
        return found

    def outcomes(self, cell: TrackedCell, figure: str, limit: int) -> Sequence[Outcome]:
        return self._store.outcomes(cell.cell_key, cell.machine_key, figure, limit)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_place(parser)
    parser.add_argument(
        "--file",
        type=Path,
        default=Path(file.FILE_NAME),
        metavar="FILE",
        help=f"the file of marks (default: {file.FILE_NAME} in this folder)",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions; none: show all")
    accept = actions.add_parser("accept", help="write what is proposed into the file")
    remove = actions.add_parser("remove", help="take marks out of the file")
    for one in (accept, remove):
        one.add_argument("card", nargs="?", metavar="CARD", help="the card's id")
        one.add_argument("cell", nargs="?", metavar="CELL", help="as in decode[code]")
        one.add_argument("--figure", metavar="FIGURE", help="only of this figure")
        one.add_argument("--mark", choices=("slow", "flaky"), help="only of this kind")
        one.add_argument("--machine", metavar="KEY", help="only of the machine whose key begins so")
    accept.add_argument("--all", action="store_true", help="everything that is proposed")
    accept.add_argument(
        "--reason", metavar="TEXT", required=True, help="why this is acceptable for now; goes into the file"
    )
    accept.add_argument("--author", metavar="NAME", help="who accepts it; goes into the file")
    remove.add_argument("--all", action="store_true", help="everything that is proposed for removal or has expired")


def run(args: argparse.Namespace, source: Source | None = None) -> int:
    """Do what the arguments say; 0. source: None for the history. Raises InputError, MarksError."""
    if source is None:
        with common.open_store(args) as store:
            return run(args, StoreSource(store))
    marks, today = file.read(args.file), _today()
    if args.action is None:
        _print(_shown(marks, source, today, args.file))
        return 0
    if args.all == (args.card is not None) or (not args.all and args.cell is None):
        raise InputError(
            f"llmbench marks {args.action}", None, "needs either CARD and CELL, or --all", "see llmbench marks --help"
        )
    if args.action == "accept":
        _accept(args, marks, source, today)
    else:
        _remove(args, marks, source, today)
    return 0


# ---- showing ----------------------------------------------------------------------------------------------------------


def _shown(marks: Marks, source: Source, today: dt.date, path: Path) -> Iterator[str]:
    cells = source.cells()
    yield "proposed (no effect until accepted):"
    yield from _or_none(line for one in _found(marks, source, today) for line in _proposed(one, path))
    for title, is_active in (("in effect:", True), ("expired (each fails its cell):", False)):
        yield title
        yield from _or_none(
            line for one in marks.marks if one.is_active(today) == is_active for line in _mark(one, cells, today)
        )
    for cell in cells:
        trouble = machine_trouble(_histories(cell, source))
        if trouble:
            yield f"{cell.cell} of {cell.card} on {cell.machine}: {trouble}"


def _or_none(lines: Iterable[str]) -> list[str]:
    return list(lines) or ["  none"]


def _proposed(found: _Found, path: Path) -> Iterator[str]:
    one = found.proposal
    yield f"  {'' if one.action == 'add' else 'no longer '}{one.mark}: {found.place}"
    yield from (f"    {line}" for line in one.lines)
    words = ["llmbench", "marks", *(() if path == Path(file.FILE_NAME) else ("--file", str(path)))]
    words += ["accept" if one.action == "add" else "remove", found.cell.card, found.cell.cell]
    words += ["--mark", one.mark, *(("--figure", one.figure) if one.figure else ()), "--machine", found.key]
    if one.action == "add":
        yield f"    would accept down to {one.depth:.0%} worse for {one.days} days ({one.depth_why})"
        words += ["--reason", "…"]
    yield f"    {'accept' if one.action == 'add' else 'remove'} it: {shlex.join(words)}"


def _mark(one: Mark, cells: Sequence[TrackedCell], today: dt.date) -> Iterator[str]:
    machine = "any machine" if one.machine == file.ANY else f"{one.machine_name or 'machine'}, {one.machine}"
    days = (one.expires - today).days
    until = f"until {one.expires} ({days} more days)" if days >= 0 else f"expired on {one.expires}"
    by = f", by {one.author}" if one.author else ""
    yield f"  {one.mark}: {one.place} on {machine}: down to {one.depth:.0%} worse, {until}"
    yield f"    accepted on {one.date}{by}: {one.reason}"
    yield f"    evidence: {', '.join(one.evidence)}"
    if not any(one.is_for(cell.card, cell.cell, cell.machine_key) for cell in cells):
        yield "    covers nothing that the history knows: no such cell in the last session of this card on this machine"


# ---- changing ---------------------------------------------------------------------------------------------------------


def _accept(args: argparse.Namespace, marks: Marks, source: Source, today: dt.date) -> None:
    if not args.reason.strip():
        raise InputError("--reason", args.reason, "says nothing", "write why this is acceptable for now")
    there = [one for one in _found(marks, source, today) if one.proposal.action == "add"]
    chosen = [one for one in there if args.all or _is_asked(args, one)]
    if not chosen:
        listed = "; ".join(f"{one.proposal.mark} {one.place}" for one in there) or "nothing"
        raise InputError(
            "llmbench marks accept",
            None if args.all else f"{args.card} {args.cell}",
            f"no such mark is proposed (proposed: {listed})",
            "only what sessions show is accepted here; a mark of your own goes into the file by hand, with its evidence",
        )
    new = [
        file.accepted(
            one.proposal,
            card=one.cell.card,
            cell=one.cell.cell,
            machine_key=one.cell.machine_key,
            machine_name=one.cell.machine,
            reason=args.reason,
            author=args.author,
            today=today,
        )
        for one in chosen
    ]
    file.write(args.file, marks.adding(*new, today=today))
    _print(f"{args.file}: {one.mark} mark of {one.place}, down to {one.depth:.0%}, until {one.expires}" for one in new)
    _print([f"sessions read {file.FILE_NAME} in pytest's root folder, or the file of --llmbench-marks FILE"])


def _remove(args: argparse.Namespace, marks: Marks, source: Source, today: dt.date) -> None:
    if args.all:
        gone = [one for one in marks.marks if not one.is_active(today)]
        cells, found = source.cells(), [one for one in _found(marks, source, today) if one.proposal.action == "remove"]
        for mark in marks.marks:
            # A mark for any machine goes when each of them says so.
            of = [one for one in cells if mark.is_for(one.card, one.cell, one.machine_key)]
            gone += [mark] if of and len(of) == sum(_is_of(mark, one) for one in found) else []
    else:
        gone = [one for one in marks.marks if _is_named(args, one)]
    if not gone and not args.all:
        listed = "; ".join(f"{one.mark} {one.place}" for one in marks.marks) or "none"
        raise InputError(
            "llmbench marks remove",
            f"{args.card} {args.cell}",
            f"{args.file} has no such mark (it has: {listed})",
            "name one of them",
        )
    file.write(args.file, marks.without(gone))
    said = [f"{args.file}: the {one.mark} mark of {one.place} is gone" for one in dict.fromkeys(gone)]
    _print(said or [f"{args.file}: nothing is proposed for removal, and nothing has expired"])


def _is_asked(args: argparse.Namespace, found: _Found) -> bool:
    one = found.proposal
    return (
        (args.card, args.cell) == (found.cell.card, found.cell.cell)
        and args.figure in (None, one.figure)
        and args.mark in (None, one.mark)
        and found.cell.machine_key.startswith(args.machine or "")
    )


def _is_named(args: argparse.Namespace, one: Mark) -> bool:
    return (
        (args.card, args.cell) == (one.card, one.cell)
        and args.figure in (None, one.figure)
        and args.mark in (None, one.mark)
        and (args.machine is None or one.machine == file.ANY or one.machine.startswith(args.machine))
    )


def _is_of(mark: Mark, found: _Found) -> bool:
    """Whether a proposal to remove is about this mark."""
    one = found.proposal
    return mark.is_for(found.cell.card, found.cell.cell, found.cell.machine_key) and (mark.mark, mark.figure) == (
        one.mark,
        one.figure,
    )


def _found(marks: Marks, source: Source, today: dt.date) -> list[_Found]:
    return [
        _Found(cell, one)
        for cell in source.cells()
        for one in propose(
            _histories(cell, source),
            file.marked(marks, card=cell.card, cell=cell.cell, machine_key=cell.machine_key, today=today),
        )
    ]


def _histories(cell: TrackedCell, source: Source) -> list[FigureHistory]:
    found = [
        FigureHistory(one.name, one.direction, tuple(source.outcomes(cell, one.name, SESSIONS)), one.accepted)
        for one in cell.figures
    ]
    # The history keeps companions too, which no session judges: they say nothing about a mark.
    return [figure for figure in found if any(one.verdict is not None for one in figure.outcomes)]


def _today() -> dt.date:
    return dt.datetime.now(dt.UTC).date()


def _print(lines: Iterable[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
