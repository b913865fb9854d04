"""``llmbench history``: which sessions there are, and the store as a whole."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.cli import common
from pytest_llmbench.errors import InputError, counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from pytest_llmbench.history.entry import SessionEntry
    from pytest_llmbench.history.store import Store

NAME = "history"
HELP = "list earlier sessions, show one, rebuild, export or import the history"
_QUIET = ("ok", "no baseline")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_place(parser)
    parser.add_argument("--card", metavar="ID", help="only sessions of this card")
    parser.add_argument("--limit", metavar="N", type=int, default=20, help="how many sessions (default: 20)")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    show = actions.add_parser("show", help="one session: its cells and figures")
    show.add_argument("session", metavar="SESSION")
    actions.add_parser("rebuild", help="make the index again from the reports in the storage folder")
    for name, text in (
        ("export", "write everything as lines of JSON; -: to standard output"),
        ("import", "add what an export holds"),
    ):
        actions.add_parser(name, help=text).add_argument("file", metavar="FILE", type=Path)
    for action in actions.choices.values():
        common.add_place(action, inner=True)


def run(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise InputError("--limit", args.limit, "not a whole number above 0", "--limit 20")
    with common.open_store(args, create=args.action in ("rebuild", "import")) as store:
        match args.action:
            case "show":
                return _show(store, args.session)
            case "rebuild":
                return _rebuild(store)
            case "export":
                if common.is_stdout(args.file):
                    store.export_to(sys.stdout)
                else:
                    print(f"{counted(store.export_to(args.file), 'line')} in {args.file}")
            case "import":
                done = store.import_from(args.file)
                print(
                    f"new in {store.url}: {counted(done.sessions, 'session')} and {counted(done.acceptances, 'acceptance')}; "
                    f"there already: {done.known}"
                )
            case _:
                return _list(store, args)
    return 0


def _list(store: Store, args: argparse.Namespace) -> int:
    rows = store.sessions(args.limit, args.card)
    if not rows:
        of_card = f" of card {args.card}" if args.card else ""
        print(f"no session{of_card} in {store.url} yet: measure a card, or `llmbench history rebuild`")
        return 0
    lines = [
        (
            common.when(one.started),
            one.session,
            one.card_id,
            one.machine,
            "complete" if one.complete else _counts(one.statuses, leave=("measured",)) or "incomplete",
            _counts(one.verdicts),
        )
        for one in rows
    ]
    print(common.table(("when (UTC)", "session", "card", "machine", "status", "verdicts"), lines))
    return 0


def _counts(counts: Mapping[str, int], leave: tuple[str, ...] = ()) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if name not in leave)


def _show(store: Store, session: str) -> int:
    found = store.entries_of(session)
    if not found:
        last = ", ".join(one.session for one in store.sessions(3)) or "none"
        raise InputError("session", session, f"not in {store.url} (last: {last})", "name one of `llmbench history`")
    for one in found:
        _show_one(one, store)
    return 0


def _show_one(one: SessionEntry, store: Store) -> None:
    from pytest_llmbench.history.listing import in_words  # noqa: PLC0415 - a database package behind it

    folder = Path(one.folder) if Path(one.folder).is_absolute() else store.storage / one.folder
    print(f"{one.session}  {one.card_id}  {common.when(one.started)} to {common.when(one.finished)} UTC  {one.tool}")
    print(
        f"{'complete' if one.complete else 'not complete'}; raw files: {folder}{'' if folder.exists() else ' (gone)'}"
    )
    if one.continues:
        print(f"{one.continues.get('kind')} of {one.continues.get('session')}")
    for name, value in one.attributes.items():
        print(f"  {name}: {value}")
    for problem in one.problems:
        print(f"  problem: {problem}")
    for cell in one.cells:
        notes = [
            cell.status,
            *([] if cell.own else ["of an earlier session"]),
            *(["a crash was survived"] if cell.crashed else []),
        ]
        print(f"\n{cell.cell}: {', '.join(notes)}")
        for reason in cell.reasons:
            print(f"  {reason.partition(chr(10))[0]}")
        rows = []
        for figure in cell.figures:
            if figure.median is not None:
                change = "" if figure.change is None else f"{figure.change:+.1%}"
                runs = " ".join(map(common.number, figure.values))
                verdict = in_words(figure.verdict, figure.reference) if figure.verdict else ""
                said = " ".join(word for word in (verdict, "(dip)" if figure.dip else "") if word)
                rows.append(
                    (f"  {figure.name}", common.number(figure.median), figure.unit, said, change, f"runs {runs}")
                )
        if rows:
            print(common.table(("  figure", "median", "", "verdict", "change", ""), rows, right=(1, 4)))


def _rebuild(store: Store) -> int:
    done = store.rebuild()
    print(
        f"{store.url}: {counted(done.sessions, 'session')} and {counted(done.acceptances, 'acceptance')}, in the order of time"
    )
    if done.kept:
        print(f"kept from the old index, for their report is gone: {done.kept}")
    if done.found.probes or done.found.unfinished:
        print(
            f"not recorded: {counted(done.found.unfinished, 'run')} without a report; probes and direct comparisons: {done.found.probes}"
        )
    for file, reason in done.found.skipped:
        print(f"skipped {file}: {reason}", file=sys.stderr)
    return 1 if done.found.skipped else 0
