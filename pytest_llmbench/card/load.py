"""From a JSON file to a card, or to one CardError that names everything wrong in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args

from pydantic import Tag, ValidationError

from pytest_llmbench.card.base import NO_TAG, PATTERN_WORDS, CardModel, Fault
from pytest_llmbench.card.checks import nearest
from pytest_llmbench.errors import CardError

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

C = TypeVar("C", bound=CardModel)

# Their values may be secrets, or hold one: an error never quotes them.
_NEVER_QUOTED = re.compile(r"^server\.(args|env|wrapper|secrets)\b")
_REMEDIES = {
    "int_type": "write a whole number, without quotes",
    "int_from_float": "write a whole number, without quotes",
    "float_type": "write a number, without quotes",
    "bool_type": "write true or false, without quotes",
    "string_type": "write text in double quotes",
    "tuple_type": "write a list: […]",
    "mapping_type": "write an object: {…}",
    "model_type": "write an object: {…}",
    "scalar": "nested values have no place here",
    "too_short": "name at least one, or leave the field out",
    "string_too_short": "leave the field out where nothing is known",
}
_LOOKS_LIKE = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "tuple_type": "a list",
    "mapping_type": "an object",
    "model_type": "an object",
}


def load(kind: type[C], path: Path) -> C:
    """Read and check a card; see ``SetupCard.load``."""
    text = _read(path)
    _parse(path, text)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        faults = [fault for one in errors if not _follows(one, errors) for fault in _faults(kind, one)]
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
    except ValueError as error:  # a number of thousands of digits
        raise CardError(str(path), None, f"holds a number that is none: {error}", "shorten it") from None
    except RecursionError:
        raise CardError(str(path), None, "is nested too deeply to be a card") from None
    if not isinstance(data, dict):
        raise CardError(str(path), None, f"is a {type(data).__name__}, not an object", "a card is one object: {…}")


def _follows(error: ErrorDetails, errors: list[ErrorDetails]) -> bool:
    """A list that only counts as too short because entries of it were refused."""
    loc = error["loc"]
    return error["type"] == "too_short" and any(one["loc"][: len(loc)] == loc != one["loc"] for one in errors)


def _faults(kind: type[CardModel], error: ErrorDetails) -> list[Fault]:
    """One of pydantic's errors in the card's words."""
    place = [part for part in error["loc"] if not _is_tag(part) and part != "[key]"]
    field = _dotted(place)
    type_, context = error["type"], error.get("ctx", {})
    if type_ == "card_faults":
        return [one._replace(field=f"{field}.{one.field}".lstrip(".")) for one in context["faults"]]
    value = error["input"]
    if type_ == "missing":
        return [Fault(field, None, "is missing", f'add "{place[-1]}"')]
    if type_ == "extra_forbidden":
        keys = [one.alias or name for name, one in _model_at(kind, error["loc"][:-1]).model_fields.items()]
        return [Fault(field, None, "unknown key", nearest(str(place[-1]), keys))]
    if type_ == "union_tag_invalid":
        return [_no_such_member(field, value, re.findall(r"<([^>]*)>", context["expected_tags"]), context["tag"])]
    if type_ == "literal_error":
        known = re.findall(r"'([^']*)'", context["expected"]) or [context["expected"]]
        return [Fault(field, _quoted(field, value), "unknown value", nearest(str(value), known))]
    if type_ == "string_pattern_mismatch":
        words = PATTERN_WORDS.get(context["pattern"], f"text that fits {context['pattern']}")
        return [Fault(field, _quoted(field, value), "is not in the right form", f"write {words}")]
    reason = (
        error["msg"].replace("Input should be", "must be").replace("a valid tuple", "a list").replace("a valid ", "a ")
    )
    if type_ in {"greater_than", "greater_than_equal"}:
        limit = f"above {context['gt']:g}" if "gt" in context else f"at least {context['ge']:g}"
        remedy = "write such a number, or leave the field out"
        return [Fault(field, _quoted(field, value), f"must be {limit}", remedy)]
    if type_ in _LOOKS_LIKE:
        reason = f"must be {_LOOKS_LIKE[type_]}, is {_json_type(value)}"
    return [Fault(field, _quoted(field, value), reason[:1].lower() + reason[1:], _REMEDIES.get(type_, ""))]


def _quoted(field: str, value: object) -> object:
    return None if _NEVER_QUOTED.match(field) else value


def _json_type(value: object) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number with a fraction",
        str: "text",
        list: "a list",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _is_tag(part: int | str) -> bool:
    return isinstance(part, str) and part.startswith("<") and part.endswith(">")


def _dotted(place: list[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.lstrip(".")


def _no_such_member(field: str, value: object, known: list[str], tag: str) -> Fault:
    """A value that is none of a union's members: told apart by a key, or by their ``kind``."""
    if not isinstance(value, Mapping):
        return Fault(field, value, f"must be an object, is {_json_type(value)}", "write an object: {…}")
    if tag == NO_TAG:
        return Fault(field, None, f"must hold exactly one of {', '.join(known)}", "keep one of them")
    if "kind" not in value:
        return Fault(f"{field}.kind", None, "is missing", f"known kinds: {', '.join(known)}")
    return Fault(f"{field}.kind", value["kind"], "unknown kind", nearest(str(value["kind"]), known))


def _model_at(kind: type[CardModel], loc: tuple[int | str, ...]) -> type[CardModel]:
    """The class of the object at a path; tags in the path choose among the members of a union."""
    members: dict[str, type[CardModel]] = {}
    for part in loc:
        fields = {one.alias or name: one for name, one in kind.model_fields.items()}
        if part in fields:
            members = _members(fields[str(part)].annotation)
            kind = next(iter(members.values()), kind)
        elif part in members:
            kind = members[str(part)]
    return kind


def _members(annotation: Any, tag: str = "") -> dict[str, type[CardModel]]:
    """The card's classes in an annotation, by their tags."""
    if isinstance(annotation, type) and issubclass(annotation, CardModel):
        return {tag: annotation}
    tags = [one.tag for one in getattr(annotation, "__metadata__", ()) if isinstance(one, Tag)]
    found: dict[str, type[CardModel]] = {}
    for inner in get_args(annotation):
        found |= _members(inner, tags[0] if tags else tag)
    return found


def _as_error(path: Path, faults: list[Fault]) -> CardError:
    if len(faults) == 1:
        one = faults[0]
        return CardError(f"{path}: {one.field}", one.value, one.reason, one.remedy)
    each = [str(CardError(*one)).replace("\n", "\n  ") for one in faults]
    return CardError(str(path), None, f"{len(faults)} faults\n  " + "\n  ".join(each))
