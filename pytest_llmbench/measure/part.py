"""What a part is, and the parts whose run is one request."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_llmbench.figure_kinds import FigureKind, PartFigures
from pytest_llmbench.measure import figures as fig
from pytest_llmbench.measure.lateness import too_late
from pytest_llmbench.measure.validity import Bounds, Reasons, judge_request
from pytest_llmbench.records import Figure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pytest_llmbench.records import Answer, CellSpec, RequestTrace


@dataclass(frozen=True, slots=True)
class Sent:
    """One request of a run: what was sent, what came back, and what the prompt must count."""

    trace: RequestTrace
    answer: Answer
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of a run beside its requests; kept with each raw record, so that figures follow from raw alone.

    guard: the guard's word, guard_reason: who disturbed. error: what ended the run before its time. lag_ms: the most
    that the client woke up too late. kernel_stamps: arrivals are the kernel's word, which that does not move. slots, context: what the server says it has (context in tokens, of one request);
    context_asked: what it was asked for. load_s: seconds from the server's start to ready. peak_memory_mib with
    memory_source, or memory_reason why it is not known.
    """

    guard: str = "not watched"
    guard_reason: str | None = None
    error: str | None = None
    lag_ms: float = 0.0
    kernel_stamps: bool = False
    slots: int | None = None
    context: int | None = None
    context_asked: int | None = None
    load_s: float | None = None
    peak_memory_mib: float | None = None
    memory_source: str | None = None
    memory_reason: str | None = None


NOTHING_KNOWN = RunFacts()


@dataclass(frozen=True, slots=True)
class RunReading:
    """What one run says. details: what is worth keeping beside the figures (finish reasons, windows)."""

    figures: tuple[Figure, ...]
    details: dict[str, Any] = field(default_factory=dict)


class Part(PartFigures, Protocol):
    """A part of the protocol: the figures it yields, how to read a run, and what server it needs."""

    @property
    def name(self) -> str: ...

    @property
    def cold(self) -> bool:
        """Whether each run needs a server that was started for it."""
        ...

    @property
    def keeps_text(self) -> bool:
        """Whether the answers are kept as text files beside the raw records."""
        ...

    def changes(self, spec: CellSpec) -> tuple[tuple[str, str], ...]:
        """(flag, value) in place of the card's own server arguments; empty where the card's server serves."""
        ...

    def sized(self, spec: CellSpec, context: int | None) -> CellSpec:
        """The cell with the prompt size that follows from the context of one request, where the part has it so."""
        ...

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts = NOTHING_KNOWN) -> RunReading:
        """Turn one run's requests into figures. Pure: raw files are read again by the same code."""
        ...


def read_run(part: Part, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts) -> RunReading:
    """A run's figures by its part, with what holds for every part: a client that was late cannot tell."""
    reading = part.read(spec, sent, bounds, facts)
    figures = tuple(
        replace(one, reasons=(*one.reasons, *too_late(part.name, one.name, sent, bounds, facts)))
        for one in reading.figures
    )
    stamps = "kernel" if facts.kernel_stamps else "client"
    details = reading.details | {"client_lag_max_ms": round(facts.lag_ms, 2), "arrivals_stamped_by": stamps}
    if facts.guard_reason:
        details["guard"] = facts.guard_reason
    return RunReading(figures, details)


_Needs = Literal["every", "decode", "ttft"]
_Value = tuple[float | None, str | None]
NO_VALUE = "the server's answer does not hold what this figure is computed from"

DECODE = FigureKind("decode_tok_s", "tok/s", "higher", "tokens after the first chunk / (t_last - t_first)")
TTFT = FigureKind("ttft_ms", "ms", "lower", "t_first - t_send")
PREFILL = FigureKind("prefill_tok_s", "tok/s", "higher", "prompt tokens / TTFT of the same request")
WALL = FigureKind("wall_s", "s", "lower", "t_last - t_send")
WORDS = FigureKind("words_s", "words/s", "higher", "words after the first chunk / (t_last - t_first)", gated=False)
CHARS = FigureKind(
    "characters_s", "chars/s", "higher", "characters after the first chunk / (t_last - t_first)", gated=False
)
TOKENS = FigureKind("tokens", "tokens", "none", "generated tokens as the server counts them", gated=False)
SERVER_DECODE = FigureKind(
    "server_decode_tok_s", "tok/s", "higher", "the server's timings: (predicted_n - 1) / predicted_ms", gated=False
)
SERVER_PREFILL = FigureKind(
    "server_prefill_tok_s", "tok/s", "higher", "the server's timings: prompt_n / prompt_ms", gated=False
)

_READERS: Mapping[str, tuple[_Needs, Callable[[Sent], _Value]]] = {
    "decode_tok_s": ("decode", lambda s: fig.decode_tok_s(s.answer)),
    "ttft_ms": ("ttft", lambda s: (fig.ttft_ms(s.answer, s.trace.t_send_ns), None)),
    "prefill_tok_s": ("ttft", lambda s: (fig.prefill_tok_s(s.answer, s.trace.t_send_ns), None)),
    "wall_s": ("every", lambda s: (fig.wall_s(s.answer, s.trace.t_send_ns), None)),
    "words_s": ("decode", lambda s: (fig.words_s(s.answer), None)),
    "characters_s": ("decode", lambda s: (fig.characters_s(s.answer), None)),
    "tokens": ("every", lambda s: (s.answer.completion_tokens, None)),
    "server_decode_tok_s": ("every", lambda s: (fig.server_decode_tok_s(s.answer.timings), None)),
    "server_prefill_tok_s": ("every", lambda s: (fig.server_prefill_tok_s(s.answer.timings), None)),
}


class SharedServer:
    """A part that is measured on the server of the card as it stands."""

    cold = False
    keeps_text = False

    def changes(self, _spec: CellSpec) -> tuple[tuple[str, str], ...]:
        return ()

    def sized(self, spec: CellSpec, _context: int | None) -> CellSpec:
        return spec


@dataclass(frozen=True)
class SingleRequestPart(SharedServer):
    """A part whose run is one request."""

    name: str
    kinds: tuple[FigureKind, ...]
    headline: str

    def read(self, spec: CellSpec, sent: Sequence[Sent], bounds: Bounds, facts: RunFacts = NOTHING_KNOWN) -> RunReading:  # noqa: ARG002
        (one,) = sent
        reasons = judge_request(spec, one.trace, one.answer, bounds, prompt_tokens=one.prompt_tokens)
        return RunReading(read_kinds(self.kinds, one, reasons), details_of(one))


def details_of(one: Sent) -> dict[str, Any]:
    """What is kept of a request beside its figures."""
    answer = one.answer
    timings = answer.timings
    drafts = (
        {"draft_n": timings.draft_n, "draft_n_accepted": timings.draft_n_accepted}
        if timings is not None and timings.draft_n is not None
        else {}
    )
    return drafts | {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
        "cached_tokens": answer.cached_tokens,
        "finish_reason": answer.finish_reason,
        "windows_tok_s": [round(rate, 3) for rate in fig.windows_tok_s(answer)],
        "client_wait_ms": None if one.trace.t_send_ns is None else (one.trace.t_send_ns - one.trace.t_call_ns) / 1e6,
    }


def read_kinds(kinds: Sequence[FigureKind], one: Sent, reasons: Reasons) -> tuple[Figure, ...]:
    """The figures of one request, each with the reasons that concern it."""
    return tuple(_figure(kind, one, reasons) for kind in kinds)


def _figure(kind: FigureKind, one: Sent, reasons: Reasons) -> Figure:
    needs, reader = _READERS[kind.name]
    value, label = reader(one)
    why = reasons.every
    if needs == "decode":
        why += reasons.decode
    elif needs == "ttft":
        why += reasons.ttft
    if value is None and not why and kind.gated:
        why = (NO_VALUE,)
    return Figure(kind.name, kind.unit, value, why, label)
