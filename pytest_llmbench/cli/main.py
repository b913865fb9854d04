"""``llmbench COMMAND``: one module a command, listed here."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Protocol

from pytest_llmbench import __version__
from pytest_llmbench.cli import baseline, canary, history, marks, resolve
from pytest_llmbench.errors import LlmbenchError, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 4  # as pytest's own exit code for a usage error


class Command(Protocol):
    """A subcommand: a module with these names. run returns the exit code; it may raise LlmbenchError."""

    NAME: str
    HELP: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


COMMANDS: tuple[Command, ...] = (history, baseline, marks, resolve, canary)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it did what was asked, 2 for wrong arguments, 4 for a store or a file that cannot be used."""
    parser = argparse.ArgumentParser(prog="llmbench", description="What earlier sessions say.")
    parser.add_argument("--version", action="version", version=f"pytest-llmbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        one = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    args, rest = parser.parse_known_args(argv)
    if rest and not getattr(args, "takes_the_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    args.rest = rest
    try:
        code = args.run(args)
        sys.stdout.flush()
    except LlmbenchError as exc:
        print(f"llmbench: {exc}", file=sys.stderr)
        return USAGE
    except BrokenPipeError:  # the reader had enough (`| head`); nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as exc:
        named = f"{exc.filename}: " if exc.filename else ""
        print(f"llmbench: {printable(f'{named}{exc.strerror or exc}')}", file=sys.stderr)
        return USAGE
    return int(code)
