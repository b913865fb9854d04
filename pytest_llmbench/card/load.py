"""From a JSON file to a card, or to one CardError that names everything wrong in it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import ValidationError

from pytest_llmbench.card.base import CardModel, Fault
from pytest_llmbench.card.words import faults_in, json_type
from pytest_llmbench.errors import CardError

if TYPE_CHECKING:
    from pathlib import Path

C = TypeVar("C", bound=CardModel)


def load(kind: type[C], path: Path) -> C:
    """Read and check a card; see ``SetupCard.load``."""
    text = _read(path)
    _parse(path, text)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        faults = faults_in(kind, error)
    raise _as_error(path, faults)


def _read(path: Path) -> str:
    try:
        # utf-8-sig: editors under Windows put a mark in front.
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CardError(str(path), None, "no such file", "ready cards are in bench_suites/cards/") from None
    except IsADirectoryError:
        raise CardError(str(path), None, "is a directory", "name the card's .json file") from None
    except UnicodeDecodeError as error:
        raise CardError(str(path), None, f"is not UTF-8 text (byte {error.start})", "save it as UTF-8") from None
    except OSError as error:
        raise CardError(str(path), None, f"cannot be read: {error.strerror}") from None
    if not text.strip():
        raise CardError(str(path), None, "is empty", "copy a ready card from bench_suites/cards/")
    return text


def _parse(path: Path, text: str) -> None:
    """Refuse what is not one JSON object, with the place."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in pairs]
        for at, key in enumerate(keys):
            if key in keys[:at]:
                raise CardError(f"{path}: {key}", None, "the key stands twice in one object", "remove one")
        return dict(pairs)

    def constant(name: str) -> NoReturn:
        raise CardError(str(path), name, "is not JSON", "leave out what is not known")

    try:
        data = json.loads(text, object_pairs_hook=once, parse_constant=constant)
    except json.JSONDecodeError as error:
        where = f"{path}, line {error.lineno}, column {error.colno}"
        line = text.splitlines()[error.lineno - 1].strip() if error.lineno <= len(text.splitlines()) else ""
        remedy = "JSON has no comments and no comma after the last entry; an editor shows the place"
        # The line itself is not quoted: it may hold a secret. Its first word is enough to find it.
        begin = f" (the line begins {line[:1]!r})" if line else ""
        raise CardError(where, None, f"is not JSON: {error.msg}{begin}", remedy) from None
    except ValueError:  # Python reads no number of thousands of digits
        raise CardError(str(path), None, "holds a number of thousands of digits", "shorten it") from None
    except RecursionError:
        raise CardError(str(path), None, "is nested too deeply to be a card") from None
    if not isinstance(data, dict):
        raise CardError(str(path), None, f"is {json_type(data)}, not an object", "a card is one object: {…}")
    half = re.search("[\ud800-\udfff]", json.dumps(data, ensure_ascii=False))
    if half:
        reason = f"holds half a character ({ascii(half[0])[1:-1]})"
        raise CardError(str(path), None, reason, "write the whole character")


def _as_error(path: Path, faults: list[Fault]) -> CardError:
    if len(faults) == 1:
        one = faults[0]
        return CardError(f"{path}: {one.field}", one.value, one.reason, one.remedy)
    each = [str(CardError(*one)).replace("\n", "\n  ") for one in faults]
    return CardError(str(path), None, f"{len(faults)} faults\n  " + "\n  ".join(each))
