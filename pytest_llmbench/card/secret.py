"""Literal secrets in a command: found by the name they are given to or by their own look. Pure; never quotes one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytest_llmbench.card.base import Fault

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_WORD = r"(api[-_]?key|access[-_]?key|secret[-_]?key|private[-_]?key|token|passw(or)?d|passphrase|secret|credentials?)"
_FLAG = re.compile(rf"^(-hft|--?([a-z0-9-]+[-_])?{_WORD})$", re.IGNORECASE)
_ENV = re.compile(rf"^([a-z0-9_]+_)?({_WORD}|key)$", re.IGNORECASE)
_LOOK = re.compile(r"\b(sk-[\w-]{16,}|hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,})|://[^/@\s:]+:[^/@\s]+@")
# Upper case, a blank or a hyphen: <GPU1-UUID>, <your key>; not <think> or </s>, which are text for the model.
PLACEHOLDER = re.compile(r"<(?=[^<>]*[A-Z \-])[\w .\-/]+>")

_REMEDY = 'name an environment variable instead: "secrets": {{"{name}": "MY_VARIABLE"}} in "server"'


def is_secret_flag(word: str) -> bool:
    """``--api-key``, ``--hf-token``, … but not ``--api-key-file``, which is a path."""
    return bool(_FLAG.match(word))


def is_secret_env(name: str) -> bool:
    """``HF_TOKEN``, ``LLAMA_API_KEY``, … but not ``TOKENIZERS_PARALLELISM``."""
    return bool(_ENV.match(name))


def faults(words: Mapping[str, Sequence[str]], env: Mapping[str, str]) -> Iterator[Fault]:
    """Literal secrets in lists of command words (by the lists' names) and in an environment."""
    for list_name, several in words.items():
        for at, word in enumerate(several):
            name, equals, value = word.partition("=")
            before = several[at - 1] if at else ""
            if equals and _is_name(name) and not _is_open(value):
                yield _fault(f"{list_name}[{at}]", name)
            elif is_secret_flag(before) and not _is_open(word):
                yield _fault(f"{list_name}[{at}]", before)
            elif _LOOK.search(word):
                yield _fault(f"{list_name}[{at}]", before if before.startswith("-") else "FLAG")
    for name, value in env.items():
        if (is_secret_env(name) and not _is_open(value)) or _LOOK.search(value):
            yield _fault(f"env.{name}", name)


def _is_name(name: str) -> bool:
    return is_secret_flag(name) if name.startswith("-") else is_secret_env(name)


def _is_open(value: str) -> bool:
    return not value or bool(PLACEHOLDER.fullmatch(value))


def _fault(field: str, name: str) -> Fault:
    return Fault(field, None, "holds a literal secret (its value is not shown)", _REMEDY.format(name=name))
