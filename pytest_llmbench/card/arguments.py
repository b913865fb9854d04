"""What llama-server would refuse in its arguments, or take for something else: told before it is started. Pure.

No message quotes an argument that may be a secret: only flags of the table, and values of those that take numbers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_llmbench import card_args
from pytest_llmbench.card import secret
from pytest_llmbench.card.base import Fault
from pytest_llmbench.card_flags import BY_NAME, canonical, values_after

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# With one of them the program prints something and ends.
_ENDS = frozenset(
    {"-h", "--help", "--usage", "--version", "--license", "-cl", "--cache-list", "--list-devices", "--completion-bash"}
)
_MOST = 2**31 - 1
"""llama-server keeps these numbers in 32 bits."""
# The least that a number may be, and what it is.
_NUMBERS: tuple[tuple[card_args.Flag, int, str], ...] = (
    (card_args.CONTEXT, 0, "a number of tokens, or 0 for the model's own context"),
    (card_args.SLOTS, -1, "1 or more slots, or -1 for the engine's choice"),
    (card_args.BATCH, 1, "1 or more tokens"),
    (card_args.MICRO_BATCH, 1, "1 or more tokens"),
    (
        card_args.Flag(("-t", "--threads"), "LLAMA_ARG_THREADS"),
        -1,
        "a number of threads, or -1 for the engine's choice",
    ),
    (card_args.Flag(("-tb", "--threads-batch")), -1, "a number of threads, or -1 for the engine's choice"),
    (
        card_args.Flag(("-cram", "--cache-ram"), "LLAMA_ARG_CACHE_RAM"),
        -1,
        "a number of MiB, 0 for none, -1 for no limit",
    ),
    (card_args.Flag(("--port",), "LLAMA_ARG_PORT"), 0, "a port"),
)
KNOWN = tuple(BY_NAME)
_FLAG_WITH_MORE = re.compile(r"(--?[A-Za-z][\w-]*)(=|\s)")
_FLAG = re.compile(r"--?[A-Za-z][\w-]*")


def faults(args: Sequence[str], env: Mapping[str, str]) -> Iterator[Fault]:
    """Everything wrong in ``server.args``, and in the numbers of ``server.env``; fields relative to the section."""
    known_before = True  # what stands behind a flag that is not in the table may be its value
    at = 0
    while at < len(args):
        word, field = args[at], f"args[{at}]"
        flag = BY_NAME.get(canonical(word))
        if flag is None:
            if known_before:
                yield from _not_a_flag(field, word)
            known_before = not word.startswith("-")
            at += 1
            continue
        known_before = True
        if canonical(word) in _ENDS:
            yield Fault(field, None, f"{word} makes the program print something and end", "remove it")
        values = args[at + 1 : at + 1 + values_after(flag, args, at)]
        if flag.values is not None and len(values) < flag.values:
            yield Fault(field, None, f"{word} needs a value, and nothing follows", "write the value as the next entry")
        elif values and canonical(values[0]) in BY_NAME:
            reason = f"{word} needs a value, and the flag {values[0]} follows"
            yield Fault(field, None, reason, "write the value as the next entry")
        elif values:
            yield from _number(field, word, values[0])
        at += 1 + len(values)
    for flag_read, _, _ in _NUMBERS:
        if flag_read.env is not None and flag_read.env in env:
            yield from _number(f"env.{flag_read.env}", flag_read.names[0], env[flag_read.env])


def unknown(args: Sequence[str]) -> list[tuple[int, str]]:
    """(place, flag) of what looks like a flag and is not in the table: a newer one, or a slip of the pen."""
    found = []
    at = 0
    while at < len(args):
        flag = BY_NAME.get(canonical(args[at]))
        if flag is None and _FLAG.fullmatch(args[at]):
            found.append((at, args[at]))
        at += 1 if flag is None else 1 + values_after(flag, args, at)
    return found


def _not_a_flag(field: str, word: str) -> Iterator[Fault]:
    if not word.strip():
        yield Fault(field, None, "is empty, and stands at a flag's place", "remove it")
    more = _FLAG_WITH_MORE.match(word)
    if more is None:
        return
    name = more[1]
    if more[2] == "=":
        reason = f"llama-server does not take {name} joined to its value with '='"
    else:
        reason = f"{name} and what belongs to it stand in one entry"
    yield Fault(field, None, reason, f'write one word an entry: "{name}", "…"')


def _number(field: str, name: str, text: str) -> Iterator[Fault]:
    spelled = canonical(name)
    found = next(((least, unit) for flag, least, unit in _NUMBERS if spelled in flag.names), None)
    if found is None or secret.PLACEHOLDER.search(text):
        return
    least, unit = found
    number = card_args.whole_number(text)
    remedy = f"write {unit}, as the next entry" if field.startswith("args") else f"write {unit}"
    if number is None:
        yield Fault(field, None, f"{name} needs a whole number, found {text!r}", remedy)
    elif number < least or (number == 0 and spelled in card_args.SLOTS.names):
        yield Fault(field, None, f"{name} cannot be {number}", remedy)
    elif number > _MOST:
        yield Fault(field, None, f"{name} is above what llama-server can hold ({_MOST})", remedy)
