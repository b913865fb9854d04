"""``python -m pytest_llmbench.card`` writes card.schema.json; with ``--check CARD…`` it checks cards instead."""

import sys

from pytest_llmbench.card.schema import SCHEMA_PATH, schema_text
from pytest_llmbench.card.setup import SetupCard
from pytest_llmbench.errors import CardError


def main(words: list[str]) -> int:
    """0, or 1 where a card has faults."""
    if words[:1] != ["--check"]:
        SCHEMA_PATH.write_text(schema_text(), encoding="utf-8")
        return 0
    failed = False
    for path in words[1:]:
        try:
            card = SetupCard.load(path)
        except CardError as error:
            failed = True
            sys.stderr.write(f"{error}\n")
        else:
            sys.stdout.write(f"{path}: {card.title}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
