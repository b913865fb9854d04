"""What the commands share: where the history is, and tables."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_llmbench.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pytest_llmbench.history.listing import Setup
    from pytest_llmbench.history.store import Store


def add_place(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """--storage and --history, as a session has them. inner: of an action; what stood before it is not overwritten."""
    default = argparse.SUPPRESS if inner else None
    parser.add_argument(
        "--storage",
        metavar="FOLDER",
        default=default,
        help="the folder with the runs (default: LLMBENCH_STORAGE, else ./.llmbench)",
    )
    parser.add_argument(
        "--history",
        metavar="URL",
        default=default,
        help="a database URL, or a SQLite file's path (default: LLMBENCH_HISTORY, else history.sqlite in the storage folder)",
    )


def open_store(args: argparse.Namespace, *, create: bool = False, writes: bool = False) -> Store:
    """The store that the arguments and the environment name. Raises InputError where there is none yet, unless create.

    writes: the command changes it; create does too. Otherwise one that may only be read will do.
    """
    from pytest_llmbench.history.store import Store  # noqa: PLC0415 - help costs no database package

    storage = Path(os.path.expandvars(args.storage or os.environ.get("LLMBENCH_STORAGE") or ".llmbench"))
    given = args.history or os.environ.get("LLMBENCH_HISTORY") or None
    return Store.open(
        storage, os.path.expandvars(given) if given else None, create=create, reads=not (create or writes)
    )


def one_setup(store: Store, card_id: str, host: str | None) -> Setup:
    """The card as it was measured last; of several machines the one whose host id begins so. Raises InputError."""
    from pytest_llmbench.history import keys  # noqa: PLC0415

    found = store.setups(card_id)
    if not found:
        known = ", ".join(dict.fromkeys(one.card_id for one in store.setups())) or "none"
        raise InputError("card", card_id, f"not in {store.url} (cards: {known})", "name one of them")
    here = [one for one in found if str(one.identity["machine"].get("host_id")).startswith(host or "")]
    machines = dict.fromkeys(keys.machine_label(one.identity["machine"]) for one in here)
    if not here or len(machines) > 1:
        labels = "; ".join(dict.fromkeys(keys.machine_label(one.identity["machine"]) for one in found))
        raise InputError("--host", host, f"the card was measured on: {labels}", "name the start of one host id")
    return here[0]


def is_stdout(path: Path) -> bool:
    """Whether a file's name stands for standard output."""
    return str(path) in {"-", "/dev/stdout"}


def when(text: str) -> str:
    """An ISO time as people read it, in UTC."""
    return text[:16].replace("T", " ")


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Columns of text, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = []
    for row in (head, *rows):
        words = [
            word.rjust(w) if at in right else word.ljust(w)
            for at, (word, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(words).rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Four digits, as the session's own table has them."""
    return f"{value:,.{0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4}f}"


def share(field: str, text: str, *, example: str = "3%", least: float = 0.0) -> float:
    """A percentage as a share: ``3%`` is 0.03. Raises InputError unless it lies between 0 and 100 %, and is not under least.

    example: what the remedy names; least: a share.
    """
    try:
        found = float(text.strip().removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not 0 < found < 1:
        raise InputError(field, text, "not a percentage between 0 and 100", f"{field} {example}")
    if found < least:
        raise InputError(field, text, f"below {least:.1%}, which nothing here can show", f"{field} {example}")
    return found


def card_id(text: str) -> str:
    """A card's id, given as it is or as the card's file. Raises InputError for a file that is no card."""
    path = Path(os.path.expanduser(text))  # noqa: PTH111 - pathlib raises where there is no such user
    if not path.is_file():
        return text
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["id"]
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InputError("card", text, f"not a card: {exc}", "name a card's file, or its id") from None
    return str(found)
