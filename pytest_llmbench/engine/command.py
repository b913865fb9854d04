"""Editing a llama-server command line without disturbing the rest of it. Pure: no clock, no file, no network."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_llmbench.card_flags import BY_NAME, Flag, canonical, values_after

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HIDDEN = "***"
_SECRET_FLAGS = frozenset({"--api-key", "--hf-token", "-hft", "--mcp-servers-json"})
_SECRET_WORD = r"(?:key|token|secret|passw(?:or)?d|credentials?)"  # noqa: S105 - a pattern for names, not a secret
_SECRET_NAME = re.compile(rf"(?i)(?:^|[-_]){_SECRET_WORD}$")
_ASSIGNMENT = re.compile(r"^([A-Za-z_][A-Za-z0-9_]*)=(.*)$", re.DOTALL)
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")


@dataclass(frozen=True, slots=True)
class _Occurrence:
    """Where a flag stands: tokens[start:end], spelled ``name``, with its value if it has one."""

    start: int
    end: int
    name: str
    value: str | None
    joined: bool


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a llama-server command, token by token, without the program.

    Any spelling of a flag finds all of its spellings (``-c`` = ``--ctx-size`` = ``--ctx_size``), also joined by ``=``,
    and the spellings that switch it off (``--no-kv-unified``). Where a flag is repeated, the last one counts, as in
    llama-server. Flags that are not known stay as they are.
    """

    tokens: tuple[str, ...]

    def get(self, flag: str) -> str | None:
        """The value of the flag's last occurrence; None where it is absent, or has no value."""
        found = self._find(flag)
        return found[-1].value if found else None

    def get_all(self, flag: str) -> tuple[str, ...]:
        """The values of all occurrences in order, for flags that add up (``--lora``, ``-ot``)."""
        return tuple(one.value for one in self._find(flag) if one.value is not None)

    def has(self, flag: str) -> bool:
        """Whether the flag is in force: there, and not switched off by a later negation."""
        found = self._find(flag)
        return bool(found) and (canonical(found[-1].name) in _lookup(flag).off) == (
            canonical(flag) in _lookup(flag).off
        )

    def set(self, flag: str, value: str | None = None) -> Arguments:
        """The same arguments with this flag at this value (None: a switch without a value).

        Replaces the last occurrence where it stands, keeping its spelling; removes the others; appends where there is none.
        """
        found = self._find(flag)
        words = () if value is None else tuple(value.split()) if _lookup(flag).values == 2 else (value,)
        if not found:
            return Arguments((*self.tokens, flag, *words))
        last = found[-1]
        same_side = (canonical(last.name) in _lookup(flag).off) == (canonical(flag) in _lookup(flag).off)
        name = last.name if same_side else flag
        new = (f"{name}={value}",) if last.joined and words else (name, *words)
        return self._without(found[:-1], replace=(last, new))

    def remove(self, flag: str) -> Arguments:
        """The same arguments without any occurrence of the flag or its negation."""
        return self._without(self._find(flag))

    def _find(self, flag: str) -> list[_Occurrence]:
        wanted = _lookup(flag)
        spellings = {*wanted.names, *wanted.off}
        return [one for one in _occurrences(self.tokens, wanted) if canonical(one.name) in spellings]

    def _without(
        self, gone: Iterable[_Occurrence], replace: tuple[_Occurrence, tuple[str, ...]] | None = None
    ) -> Arguments:
        edits = [(one.start, one.end, ()) for one in gone] + (
            [(replace[0].start, replace[0].end, replace[1])] if replace else []
        )
        tokens = list(self.tokens)
        for start, end, new in sorted(edits, reverse=True):
            tokens[start:end] = new
        return Arguments(tuple(tokens))


def _lookup(flag: str) -> Flag:
    return BY_NAME.get(canonical(flag)) or Flag((canonical(flag),))


def _occurrences(tokens: tuple[str, ...], asked: Flag | None = None) -> Iterator[_Occurrence]:
    """Every flag of the table, and the one asked for, in order; a value is never taken for a flag."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        name, equals, joined_value = token.partition("=")
        flag = BY_NAME.get(canonical(name))
        if flag is None and asked is not None and canonical(name) in asked.names:
            flag = asked
        if flag is None or not name.startswith("-"):
            at += 1
            continue
        if equals:
            yield _Occurrence(at, at + 1, name, joined_value, joined=True)
            at += 1
            continue
        following = tokens[at + 1 : at + 1 + values_after(flag, tokens, at)]
        value = " ".join(following) if following else None
        yield _Occurrence(at, at + 1 + len(following), name, value, joined=False)
        at += 1 + len(following)


def redact(argv: Iterable[str]) -> tuple[str, ...]:
    """The same command with every secret's value shown as ``***``, for messages, logs and reports.

    Secrets are the values of ``--api-key``, ``--hf-token`` and of any flag or ``NAME=value`` whose name ends in key, token,
    secret, password or credential, and the user part of a URL. File names (``--api-key-file``) are shown.
    """
    shown: list[str] = []
    hide_next = False
    for token in argv:
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
            continue
        name, equals, _ = token.partition("=")
        if _is_secret_flag(name):
            shown.append(f"{name}={HIDDEN}" if equals else token)
            hide_next = not equals
            continue
        assignment = _ASSIGNMENT.match(token)
        if assignment and _SECRET_NAME.search(assignment[1]):
            shown.append(f"{assignment[1]}={HIDDEN}")
            continue
        shown.append(_USER_INFO.sub(HIDDEN, token))
    return tuple(shown)


def _is_secret_flag(name: str) -> bool:
    spelled = canonical(name)
    if spelled in _SECRET_FLAGS:
        return True
    return spelled.startswith("--") and spelled not in BY_NAME and _SECRET_NAME.search(spelled) is not None


def shell_line(argv: Iterable[str], env: Iterable[tuple[str, str]] = ()) -> str:
    """One line that a person can paste into a shell: environment, then the command, quoted, secrets hidden."""
    words = [f"{name}={shlex.quote(value)}" for name, value in (_redact_pair(*pair) for pair in env)]
    return " ".join([*words, *(shlex.quote(token) for token in redact(argv))])


def _redact_pair(name: str, value: str) -> tuple[str, str]:
    return (name, HIDDEN) if _SECRET_NAME.search(name) else (name, _USER_INFO.sub(HIDDEN, value))
