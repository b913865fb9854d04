"""``python -m pytest_llmbench.card`` writes card.schema.json; with ``--check CARD…`` it checks cards instead."""

import sys

from pytest_llmbench.card import arguments
from pytest_llmbench.card.checks import near
from pytest_llmbench.card.schema import SCHEMA_PATH, schema_text
from pytest_llmbench.card.setup import SetupCard
from pytest_llmbench.errors import CardError, printable

USAGE = "usage: python -m pytest_llmbench.card --check CARD…\n"


def main(words: list[str]) -> int:
    """0, 1 where a card has faults, or 2 where the call is wrong."""
    if not words:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
        return 0
    if words[0] != "--check" or not words[1:]:
        sys.stderr.write(USAGE)
        return 2
    failed = False
    for path in words[1:]:
        try:
            card = SetupCard.load(path)
        except CardError as error:
            failed = True
            sys.stderr.write(f"{error}\n")
        else:
            sys.stdout.write(printable(f"{path}: {card.title}") + "\n")
            for note in _notes(card):
                sys.stdout.write(f"  note: {note}\n")
    return int(failed)


def _notes(card: SetupCard) -> list[str]:
    """Flags that may be newer than this version: the engine's own parser is the judge, so they are no faults."""
    return [
        f"server.args[{at}]: {flag} is no flag that this version knows{near(flag, arguments.KNOWN)}; the engine decides"
        for at, flag in arguments.unknown(card.server.args)
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
