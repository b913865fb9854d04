"""What a card reads from its server's arguments and environment: the one truth, so nothing is stated twice. Pure.

Reading only; replacing arguments is ``engine.command``'s. As llama-server does: the last of several wins, and an argument
wins over its environment variable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Flag(NamedTuple):
    """An argument under all its names. env: the variable that stands for it."""

    names: tuple[str, ...]
    env: str | None = None


CONTEXT = Flag(("-c", "--ctx-size"), "LLAMA_ARG_CTX_SIZE")
SLOTS = Flag(("-np", "--parallel"), "LLAMA_ARG_N_PARALLEL")
BATCH = Flag(("-b", "--batch-size"), "LLAMA_ARG_BATCH")
MICRO_BATCH = Flag(("-ub", "--ubatch-size"), "LLAMA_ARG_UBATCH")
ALIAS = Flag(("-a", "--alias"), "LLAMA_ARG_ALIAS")
MODEL = Flag(("-m", "--model"))
DRAFT_MODEL = Flag(("-md", "--model-draft", "--spec-draft-model"))
CACHE_TYPE_K = Flag(("-ctk", "--cache-type-k"), "LLAMA_ARG_CACHE_TYPE_K")
CACHE_TYPE_V = Flag(("-ctv", "--cache-type-v"), "LLAMA_ARG_CACHE_TYPE_V")
HOST = Flag(("--host",))
PORT = Flag(("--port",))
UNIFIED = Flag(("-kvu", "--kv-unified"), "LLAMA_ARG_KV_UNIFIED")
NOT_UNIFIED = Flag(("-no-kvu", "--no-kv-unified"))

_DRAFT_NAMES = frozenset({"-md", "-cd", "-td", "-tbd", "-ngld", "-devd", "-ctkd", "-ctvd", "-cmoed", "-ncmoed", "-otd"})


def values(args: Sequence[str], flag: Flag) -> Iterator[tuple[int, str | None]]:
    """(position of the flag, its value) of every time it is given, in order; a value None means that it is missing."""
    for at, word in enumerate(args):
        name, equals, value = word.partition("=")
        if word in flag.names:
            yield at, args[at + 1] if at + 1 < len(args) else None
        elif equals and name in flag.names:
            yield at, value


def value(args: Sequence[str], env: Mapping[str, str], flag: Flag) -> str | None:
    """The value that counts, or None where the flag is not given."""
    found = [one for _, one in values(args, flag)]
    if found:
        return found[-1]
    return env.get(flag.env) if flag.env else None


def whole_number(text: str | None) -> int | None:
    """The text as a whole number in plain digits, or None where it is absent or is none (a placeholder)."""
    return int(text) if text is not None and re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None


def unified(args: Sequence[str], env: Mapping[str, str]) -> bool | None:
    """Whether one cache for all slots was asked for: True, False, or None where neither flag is given."""
    for word in reversed(args):
        if word in UNIFIED.names:
            return True
        if word in NOT_UNIFIED.names:
            return False
    said = env.get(UNIFIED.env or "")
    return None if said is None else said.lower() in {"1", "true", "on", "enabled"}


def draft_settings(args: Sequence[str]) -> dict[str, str | None]:
    """The arguments that set up drafting, by the name the card uses; None for one without a value. The last one wins."""
    found: dict[str, str | None] = {}
    for at, word in enumerate(args):
        name, equals, value_ = word.partition("=")
        if name in _DRAFT_NAMES or (name.startswith("--") and ("draft" in name or name.startswith("--spec-"))):
            following = args[at + 1] if at + 1 < len(args) else None
            if following is not None and following.startswith("-") and whole_number(following) is None:
                following = None
            found[name] = value_ if equals else following
    return found


def identity_args(args: Sequence[str]) -> list[str]:
    """The arguments without what names a place and not a speed: model paths (the weights have a hash), host, port."""
    places = {name for flag in (MODEL, DRAFT_MODEL, HOST, PORT) for name in flag.names}
    kept: list[str] = []
    words = iter(args)
    for word in words:
        if word in places:
            next(words, None)
        elif word.partition("=")[0] not in places:
            kept.append(word)
    return kept
