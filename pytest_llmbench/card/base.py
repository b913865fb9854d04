"""What every object of a setup card shares: strict types, no unknown keys, frozen, and a source for what it states."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

K = TypeVar("K")
V = TypeVar("V")

SLUG = r"^[a-z0-9]+(-[a-z0-9]+)*$"
SHA256 = r"^[0-9a-f]{64}$"
COMMIT = r"^[0-9a-f]{7,40}$"
DIGEST = r"^sha256:[0-9a-f]{64}$"
ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"
CELL_ID = r"^(long_answer|(decode|prefill|conc|ctx|fit)\[[a-z0-9_-]+\])$"

PATTERN_WORDS: Mapping[str, str] = {
    SLUG: "small letters and digits, words joined by single hyphens, as in 'rtx3060-qwen3-q4km'",
    SHA256: "a SHA-256 as 64 hexadecimal digits in small letters",
    COMMIT: "a commit as 7 to 40 hexadecimal digits in small letters",
    DIGEST: "an image digest as 'sha256:' and 64 hexadecimal digits in small letters",
    ENV_NAME: "the name of an environment variable, as in 'LLAMA_API_KEY'",
    CELL_ID: "a cell id, as in 'decode[code]', 'prefill[8192]', 'conc[4]', 'ctx[32768-prose]', 'long_answer', 'fit[4096]'",
}

Text = Annotated[str, Field(min_length=1)]
Slug = Annotated[str, Field(pattern=SLUG, max_length=100)]
Sha256 = Annotated[str, Field(pattern=SHA256)]
Commit = Annotated[str, Field(pattern=COMMIT)]
Digest = Annotated[str, Field(pattern=DIGEST)]
EnvName = Annotated[str, Field(pattern=ENV_NAME)]
CellId = Annotated[str, Field(pattern=CELL_ID)]
Positive = Annotated[int, Field(ge=1)]
PositiveNumber = Annotated[float, Field(gt=0)]


class FrozenDict(dict[K, V]):
    """A dict that cannot be changed; unlike a mapping proxy it can be copied, pickled and written as JSON."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a setup card is frozen; build another one")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[Self], tuple[dict[K, V]]]:
        return type(self), (dict(self),)


FrozenMap = Annotated[Mapping[K, V], AfterValidator(FrozenDict)]


def _scalar(value: Any) -> Any:
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise PydanticCustomError("scalar", "must be a number, text, true or false")
    return value


Scalar = Annotated[
    bool | int | float | str, PlainValidator(_scalar), WithJsonSchema({"type": ["boolean", "number", "string"]})
]


class Fault(NamedTuple):
    """One thing wrong in a card. field: dotted, relative to the object that reports it; value None: not shown."""

    field: str
    value: object
    reason: str
    remedy: str = ""


def refuse(faults: Sequence[Fault]) -> None:
    """Raise one validation error that carries all the faults; nothing when there are none."""
    if faults:
        text = "; ".join(f"{one.field}: {one.reason}" for one in faults)
        raise PydanticCustomError("card_faults", "{text}", {"text": text, "faults": tuple(faults)})


class CardModel(BaseModel):
    """An object of the card. Absent or null means "not stated", never 0."""

    # The input is hidden in pydantic's own text because an argument may be a secret that does not belong there.
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )


class Stated(CardModel):
    """An object whose facts were stated somewhere."""

    source: Text | None = None
    """Where the facts of this object are stated, or "my choice because …"."""
    sources: FrozenMap[str, Text] = Field(default_factory=dict)
    """The same for single fields: field name to source."""

    @model_validator(mode="after")
    def _sources_name_fields(self) -> Self:
        known = {field.alias or name for name, field in type(self).model_fields.items()} - {"source", "sources"}
        refuse(
            [
                Fault(f"sources.{key}", None, "names no field of this object", f"fields: {', '.join(sorted(known))}")
                for key in self.sources
                if key not in known
            ]
        )
        return self


# ---- tagged unions: a tag stands in <…>, so that in an error's path it can be told from a key of the card ------------


def by_key(*keys: str) -> Discriminator:
    """Tells objects apart by which one key they have, ``{"path": …}`` or ``{"package": …}``; their tags are ``<key>``."""

    def pick(value: Any) -> str:
        names = value if isinstance(value, Mapping) else getattr(type(value), "model_fields", ())
        present = [key for key in keys if key in names]
        return f"<{present[0]}>" if len(present) == 1 else NO_TAG

    return Discriminator(pick)


def _kind(value: Any) -> str:
    return f"<{value.get('kind') if isinstance(value, Mapping) else getattr(value, 'kind', None)}>"


NO_TAG = "<>"
BY_KIND = Discriminator(_kind)
"""Tells objects apart by their ``kind``; their tags are ``<kind>``."""
