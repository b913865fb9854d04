"""The setup card: one JSON file that describes one setup (METHOD: "setup") and what is promised about it."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from pytest_llmbench import card_args as args
from pytest_llmbench.card import checks
from pytest_llmbench.card.base import CardModel, CellId, FrozenMap, Scalar, Slug, Text, refuse
from pytest_llmbench.card.build import Engine
from pytest_llmbench.card.hardware import Hardware
from pytest_llmbench.card.load import load
from pytest_llmbench.card.parts import ClientCheck, Limit, Plan, Validity
from pytest_llmbench.card.server import Placeholder, Sampling, Server, Thinking
from pytest_llmbench.card.watch import Watch
from pytest_llmbench.card.weights import Model


class Deviation(CardModel):
    """Where the setup differs from what the model's maker recommends."""

    what: Text
    why: Text
    source: Text | None = None


class Published(CardModel):
    """A figure that somebody published for this setup; never a baseline, never a threshold."""

    figure: Text
    """Our name of it where the definition is ours (decode_tok_s, ttft_ms, …), else the publisher's."""
    value: Scalar
    """A number, or text where the source gives no plain number ("~50")."""
    unit: Text | None = None
    cell: CellId | None = None
    conditions: Text | None = None
    definition: Text | None = None
    """As the publisher gives it."""
    tool: Text | None = None
    """What it was measured with."""
    source: Text


class Control(CardModel):
    """The control beside this setup: a small pinned server whose runs take turns with the setup's."""

    card: Text
    """Path of the control's card, relative to this card."""
    resident: bool = True
    """false: no room for both servers at once; the control is measured between the lifetimes of the setup's server."""


def _version(value: Any) -> Any:
    """1 and nothing that Python takes for 1 (true, 1.0)."""
    if type(value) is not int or value != 1:
        raise PydanticCustomError("card_version", "unknown version")
    return value


class SetupCard(CardModel):
    """A setup as promised before the first request. Frozen; build one with ``load``."""

    json_schema: str | None = Field(default=None, alias="$schema")
    """For editors: the path or URL of card.schema.json."""
    llmbench_card: Annotated[Literal[1], BeforeValidator(_version)]
    """The version of this format."""
    id: Slug
    title: Text
    notes: tuple[Text, ...] = ()
    hardware: Hardware = Hardware()
    model: Model
    engine: Engine
    server: Server = Server()
    sampling: Sampling = Sampling()
    thinking: Thinking = Thinking()
    plan: Plan = Plan()
    thresholds: FrozenMap[str, FrozenMap[str, Limit]] = Field(default_factory=dict)
    """Cell id to figure to limit."""
    client_check: ClientCheck = ClientCheck()
    validity: Validity = Validity()
    watch: Watch = Watch()
    control: Control | None = None
    deviations: tuple[Deviation, ...] = ()
    published: tuple[Published, ...] = ()

    @model_validator(mode="after")
    def _possible(self) -> Self:
        refuse(checks.faults(self))
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a card. Raises CardError that names file, field, value, reason and remedy of everything wrong in it."""
        return load(cls, Path(path))

    @property
    def context(self) -> int | None:
        """Tokens of ``-c``; None where it is not given, 0 (the model's own) or a placeholder."""
        return args.whole_number(args.value(self.server.args, self.server.env, args.CONTEXT)) or None

    @property
    def slots(self) -> int | None:
        """Server slots of ``-np``; None where it is not given, automatic (-1) or a placeholder."""
        number = args.whole_number(args.value(self.server.args, self.server.env, args.SLOTS))
        return number if number is not None and number > 0 else None

    @property
    def unified_cache(self) -> bool:
        """Whether the slots share one cache: ``-kvu``, or no ``-np`` (llama-server then shares)."""
        said = args.unified(self.server.args, self.server.env)
        return self.slots is None if said is None else said

    @property
    def slot_context(self) -> int | None:
        """Tokens that one request may use: ``-c``, or its share of a slot rounded up to 256 where slots do not share."""
        if self.context is None or self.unified_cache or self.slots is None:
            return self.context
        return -(-self.context // (self.slots * 256)) * 256

    @property
    def batch(self) -> int | None:
        """Tokens of ``-b``."""
        return args.whole_number(args.value(self.server.args, self.server.env, args.BATCH))

    @property
    def micro_batch(self) -> int | None:
        """Tokens of ``-ub``."""
        return args.whole_number(args.value(self.server.args, self.server.env, args.MICRO_BATCH))

    @property
    def cache_types(self) -> tuple[str | None, str | None]:
        """``-ctk`` and ``-ctv``; None where not given (llama-server: f16)."""
        server = self.server
        return (
            args.value(server.args, server.env, args.CACHE_TYPE_K),
            args.value(server.args, server.env, args.CACHE_TYPE_V),
        )

    @property
    def draft_settings(self) -> dict[str, str | None]:
        """The arguments that set up drafting, as the card writes them; None for one without a value."""
        return args.draft_settings(self.server.args)

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """Every ``<…>`` in the server's command and environment: unknown, to be filled in before a start."""
        return self.server.placeholders

    def as_json(self) -> dict[str, Any]:
        """The card as plain JSON data, defaults included and what is not stated left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)
