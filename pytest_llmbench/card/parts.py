"""The sections ``plan`` and ``thresholds``: what is measured, and what it must reach. Defaults are METHOD's."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from pytest_llmbench.card.base import CardModel, Fault, Positive, PositiveNumber, refuse
from pytest_llmbench.records import Direction

PartName = Literal["decode", "prefill", "concurrency", "context", "long_answer", "fit"]
PARTS: tuple[PartName, ...] = get_args(PartName)  # in the order in which they are measured
PromptId = Literal["code", "prose"]

# The figures of each part, and which way is better. Thresholds may name these.
FIGURES: Mapping[PartName, Mapping[str, Direction]] = {
    "decode": {"decode_tok_s": "higher", "words_s": "higher", "characters_s": "higher", "ttft_ms": "lower"},
    "prefill": {"prefill_tok_s": "higher", "ttft_ms": "lower"},
    "concurrency": {"total_tok_s": "higher", "request_tok_s": "higher", "ttft_ms": "lower"},
    "context": {"prefill_tok_s": "higher", "ttft_ms": "lower", "decode_tok_s": "higher"},
    "long_answer": {"wall_s": "lower", "decode_tok_s": "higher"},
    "fit": {
        "prefill_tok_s": "higher",
        "decode_tok_s": "higher",
        "ttft_ms": "lower",
        "load_s": "lower",
        "peak_memory_mib": "lower",
    },
}

Some = Field(min_length=1)
Depth = Annotated[int, Field(ge=16)]
# More is a slip of the pen, and would keep a machine busy for days without a word.
Repeats = Annotated[int, Field(ge=1, le=1000)]
Level = Annotated[int, Field(ge=1, le=4096)]


class _Part(CardModel):
    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        faults = []
        for name in ("prompts", "depths", "levels", "sizes"):
            several = getattr(self, name, None) or ()
            faults += [
                Fault(f"{name}[{at}]", one, "is there twice", "name it once; repeats are runs")
                for at, one in enumerate(several)
                if one in several[:at]
            ]
        refuse(faults)
        return self


class Decode(_Part):
    """Speed of generation after a short prompt."""

    prompts: Annotated[tuple[PromptId, ...], Some] = ("code", "prose")
    runs: Repeats = 2
    warmups: Annotated[int, Field(ge=0, le=1000)] = 1
    """For the whole part, before its first run."""
    max_tokens: Positive = 512
    ignore_eos: bool = False
    """Go on past the end of the answer: for base models, which may stop early or never."""


class Prefill(_Part):
    """Speed of reading a prompt."""

    depths: Annotated[tuple[Depth, ...], Some] = (2048, 8192, 32768)
    """Prompt tokens as the server counts them, chat template included."""
    runs: Repeats = 3
    max_tokens: Positive = 16
    """More than one, because a first token may be half a character, which no event carries."""
    ignore_eos: bool = False


class Concurrency(_Part):
    """Several requests released together."""

    levels: Annotated[tuple[Level, ...], Some] = (1, 2, 4, 8)
    """Above the server's slots is measured too, and labelled "queues"."""
    rounds: Repeats = 2
    max_tokens: Positive = 512
    prompt: PromptId = "prose"
    ignore_eos: bool = False


class Context(_Part):
    """A filler log first, the code or prose task last."""

    depths: Annotated[tuple[Depth, ...], Some] = (16384, 32768, 65536, 131072)
    prompts: Annotated[tuple[PromptId, ...], Some] = ("code", "prose")
    runs: Repeats = 2
    max_tokens: Positive = 512
    ignore_eos: bool = False


class LongAnswer(_Part):
    """One long task that must end by itself."""

    max_tokens: Positive | None = None
    """null: no limit of ours."""
    ignore_eos: Annotated[bool, Field(json_schema_extra={"const": False})] = False

    @model_validator(mode="after")
    def _ends_by_itself(self) -> Self:
        if self.ignore_eos:
            remedy = "remove it here; a model that never ends has no long_answer"
            refuse([Fault("ignore_eos", self.ignore_eos, "a long answer must end by itself", remedy)])
        return self


class Fit(_Part):
    """The memory test: the server is started anew with each size."""

    sizes: Annotated[tuple[Positive, ...], Some] | None = None
    """In place of the doubling from smallest to largest."""
    smallest: Positive = 4096
    largest: Positive | None = None
    """null: the context of the server's arguments."""
    max_tokens: Positive = 96
    refine: bool = False
    """After the first size that fails: search between it and the last that answered, to 1,024 tokens."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.sizes is not None and {"smallest", "largest"} & self.model_fields_set:
            refuse([Fault("sizes", None, "smallest or largest is there too", "write sizes, or smallest and largest")])
        if self.largest is not None and self.largest < self.smallest:
            refuse([Fault("largest", self.largest, f"is below smallest ({self.smallest})", "raise it")])
        if self.sizes is not None and list(self.sizes) != sorted(self.sizes):
            remedy = "write the smallest first: the test stops at the first size that fails"
            refuse([Fault("sizes", list(self.sizes), "does not go up", remedy)])
        return self


class Plan(CardModel):
    """Which parts are measured, and how."""

    parts: Annotated[tuple[PartName, ...], Some] = ("decode", "prefill", "concurrency", "context", "long_answer")
    """Their order here does not matter."""
    decode: Decode = Decode()
    prefill: Prefill = Prefill()
    concurrency: Concurrency = Concurrency()
    context: Context = Context()
    long_answer: LongAnswer = LongAnswer()
    fit: Fit = Fit()

    @model_validator(mode="after")
    def _parts_once(self) -> Self:
        refuse(
            [
                Fault(f"parts[{at}]", part, "is there twice", "name each part once")
                for at, part in enumerate(self.parts)
                if part in self.parts[:at]
            ]
        )
        return self


class Limit(CardModel):
    """What a figure must reach. For a figure where less is better (ttft_ms, …) both are the most it may be."""

    floor: PositiveNumber | None = None
    """Hard: nothing hides a miss."""
    target: PositiveNumber | None = None
    """Soft: a miss fails too, unless a reviewed ``slow`` mark covers it."""


class ClientCheck(CardModel):
    """How far the client's figures may stand from the server's own timings of the same request."""

    decode_within: PositiveNumber = 0.01
    """Share of the server's figure, either way."""
    ttft_above_fraction: Annotated[float, Field(ge=0)] = 0.05
    ttft_above_ms: Annotated[float, Field(ge=0)] = 50.0
    """TTFT is not below prompt_ms, and not above it by more than that share of prompt_ms + this."""


class Validity(CardModel):
    """When a run counts."""

    min_tokens: Positive = 256
    """Generated tokens under which a run has no decode figure (half of what was asked, where that is under 512)."""
    client_lag_ms: PositiveNumber | None = None
    """How late the client may run before a run says nothing. null: as late as moves no figure by more than client_check allows."""
