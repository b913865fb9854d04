"""``llmbench baseline``: what sessions are compared with, and how a new reference is accepted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.cli import common
from pytest_llmbench.errors import InputError, counted

if TYPE_CHECKING:
    import argparse

    from pytest_llmbench.history.read import KeptBaseline
    from pytest_llmbench.history.store import Store

NAME = "baseline"
HELP = "show what sessions are compared with, accept a new reference, export it to commit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    common.add_place(parser)
    parser.add_argument("--card", metavar="ID", help="only this card")
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    export = actions.add_parser("export", help="write a card's baselines as a file to commit")
    export.add_argument("card_id", metavar="CARD_ID")
    export.add_argument("file", metavar="FILE", type=Path, help="-: standard output")
    export.add_argument(
        "--host", metavar="ID", help="of this machine (the start of its host id), where there are several"
    )
    accept = actions.add_parser("accept", help="from a session on, what was measured is what is expected")
    accept.add_argument("--card", metavar="ID", dest="card_id", required=True)
    accept.add_argument(
        "--reason", required=True, help="why the new numbers are right; kept, with your name and the time"
    )
    accept.add_argument("--cell", action="append", metavar="CELL", help="only this cell; may be given several times")
    accept.add_argument(
        "--since", metavar="SESSION", help="the first session of the new baseline (default: the card's last)"
    )
    accept.add_argument("--who", help="who accepts (default: the user's name)")
    for action in actions.choices.values():
        common.add_place(action, inner=True)


def run(args: argparse.Namespace) -> int:
    with common.open_store(args, writes=args.action == "accept") as store:
        match args.action:
            case "export":
                return _export(store, args)
            case "accept":
                return _accept(store, args)
            case _:
                return _list(store, args.card)


def _list(store: Store, card_id: str | None) -> int:
    from pytest_llmbench.history import keys  # noqa: PLC0415

    printed = False
    for setup in store.setups(card_id):
        kept = store.kept_baselines(setup.identity)
        if not kept:
            continue
        print(
            f"{setup.card_id} on {keys.machine_label(setup.identity['machine'])}, last measured {common.when(setup.last)} UTC"
        )
        rows = [_row(one) for one in kept]
        print(common.table(_HEAD, rows, right=(2, 3, 5)) + "\n")
        printed = True
    if not printed:
        of_card = f" of card {card_id}" if card_id else ""
        print(f"no baseline{of_card} in {store.url} yet: every session with valid numbers adds to it")
    return 0


_HEAD = ("cell", "figure", "sessions", "reference", "unit", "spread", "state", "since", "until", "accepted")


def _row(one: KeptBaseline) -> tuple[str, ...]:
    from pytest_llmbench.history import baselines  # noqa: PLC0415

    values = one.baseline.values
    reference = baselines.reference(values, one.direction)
    missing = baselines.COMPLETE - len(values)
    by = f"{one.accepted_by}, {(one.accepted_when or '')[:10]}: {one.baseline.accepted}" if one.accepted_by else ""
    return (
        one.cell,
        one.figure,
        str(len(values)),
        "" if reference is None else common.number(reference),
        one.unit,
        "" if one.spread is None else f"{one.spread:.1%}",
        "pinned" if one.baseline.pinned else f"collecting, {missing} missing",
        one.baseline.since[:10],
        one.baseline.until[:10],
        by,
    )


def _accept(store: Store, args: argparse.Namespace) -> int:
    from pytest_llmbench.history import acceptance  # noqa: PLC0415

    one = store.accept(args.card_id, args.cell, why=args.reason, who=args.who, since=args.since)
    print(f"accepted for {one.card_id} from session {one.since} on: {', '.join(one.cells)}")
    print(f"reason: {one.why} ({one.who}, {common.when(one.when)} UTC), written to {store.storage / acceptance.FILE}")
    print("the new baselines are collecting: `llmbench baseline` shows how many sessions are missing")
    return 0


def _export(store: Store, args: argparse.Namespace) -> int:
    setup = common.one_setup(store, args.card_id, args.host)
    file = store.baseline_file(setup.identity)
    if not file.cells:
        raise InputError("card", args.card_id, f"has no baseline in {store.url} yet", "measure it first")
    if common.is_stdout(args.file):
        sys.stdout.write(file.text())
        return 0
    file.save(args.file)
    pinned = sum(figure.pinned for cell in file.cells.values() for figure in cell.figures.values())
    count = sum(len(cell.figures) for cell in file.cells.values())
    print(
        f"{counted(count, 'baseline')}, {pinned} of them pinned, from {counted(len(file.sessions), 'session')} in {args.file}"
    )
    return 0
