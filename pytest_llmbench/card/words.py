"""What is wrong in a card, in the card's words: the one place that knows how pydantic speaks.

A test (test_card_words.py) holds that nothing of its speech comes through.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, get_args

from pydantic import Tag, ValidationError

from pytest_llmbench.card.base import NO_TAG, PATTERN_WORDS, CardModel, Fault
from pytest_llmbench.card.checks import nearest

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

# Their values may be secrets, or hold one: an error never quotes them.
_NEVER_QUOTED = re.compile(r"^server\.(args|env|wrapper|secrets)\b")

# Type of pydantic's error to what must be there, and what to write.
_MUST_BE = {
    "int_type": ("a whole number", "write a whole number, without quotes"),
    "int_from_float": ("a whole number", "write a whole number, without quotes"),
    "float_type": ("a number", "write a number, without quotes"),
    "bool_type": ("true or false", "write true or false, without quotes"),
    "string_type": ("text", "write text in double quotes"),
    "tuple_type": ("a list", "write a list: […]"),
    "mapping_type": ("an object", "write an object: {…}"),
    "dict_type": ("an object", "write an object: {…}"),
    "model_type": ("an object", "write an object: {…}"),
    "model_attributes_type": ("an object", "write an object: {…}"),
    "scalar": ("a number, text, true or false", "write such a value, or leave it out"),
}
_SUCH = "write such a number, or leave the field out"
# Type of pydantic's error to (reason, remedy), by the error's context and the value.
_SAID: dict[str, Callable[[Mapping[str, Any], Any], tuple[str, str]]] = {
    "greater_than": lambda ctx, _: (f"must be above {ctx['gt']:g}", _SUCH),
    "greater_than_equal": lambda ctx, _: (f"must be at least {ctx['ge']:g}", _SUCH),
    "less_than": lambda ctx, _: (f"must be below {ctx['lt']:g}", _SUCH),
    "less_than_equal": lambda ctx, _: (f"must be at most {ctx['le']:g}", _SUCH),
    "finite_number": lambda _, __: ("is too large a number", "write a smaller one, or leave the field out"),
    "int_parsing_size": lambda _, __: ("is too large a number", "write a smaller one, or leave the field out"),
    "too_short": lambda ctx, _: (
        f"needs {ctx['min_length']} or more entries, has {ctx.get('actual_length') or 'none'}",
        "name at least one, or leave the field out",
    ),
    "string_too_short": lambda _, __: ("is empty", "write something, or leave out a field that is not needed"),
    "string_too_long": lambda ctx, value: (
        f"has {len(value)} characters, at most {ctx['max_length']} are allowed",
        "shorten it",
    ),
    **dict.fromkeys(
        ("date_type", "date_parsing", "date_from_datetime_parsing", "date_from_datetime_inexact"),
        lambda _, __: ("must be a date", "write it as in 2026-11-30, in double quotes"),
    ),
    "card_version": lambda _, __: ("is no card format that this version reads", "write 1"),
}


def faults_in(kind: type[CardModel], error: ValidationError) -> list[Fault]:
    """Everything wrong in the data of a card (or a part of one) as its own faults."""
    errors = error.errors(include_url=False)
    return [fault for one in errors if not _follows(one, errors) for fault in _faults(kind, one)]


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
    if type_ in _MUST_BE:
        wanted, remedy = _MUST_BE[type_]
        return [Fault(field, _quoted(field, value), f"must be {wanted}, is {json_type(value)}", remedy)]
    said = _SAID.get(type_)
    reason, remedy = said(context, value) if said else ("is not what belongs here", "docs/card.md says what does")
    return [Fault(field, _quoted(field, value) if said else None, reason, remedy)]


def _quoted(field: str, value: object) -> object:
    return None if _NEVER_QUOTED.match(field) else value


def json_type(value: object) -> str:
    """What a JSON value is, in words."""
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
        return Fault(field, value, f"must be an object, is {json_type(value)}", "write an object: {…}")
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
